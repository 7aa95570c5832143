//! A connection with its timer, which ends well when the server does.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::watch::Watch;

/// How long one of HTTP/2 that was told to end may take to.
const GOODBYE: Duration = Duration::from_secs(1);

/// A connection that can be asked to end once what it is at is done.
pub(crate) trait Drains: Future<Output = ()> + Unpin {
    fn drain(&mut self);
}

/// A connection with its timer.
pub(crate) struct Guarded<C> {
    connection: C,
    watch: Arc<Watch>,
    timer: Pin<Box<Sleep>>,
    ending: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// When what asks nothing is ended, once the server ends.
    linger: Option<Pin<Box<Sleep>>>,
    /// Whether it was told to end because it has taken too long.
    is_told: bool,
}

impl<C: Drains> Guarded<C> {
    pub(crate) fn new(
        connection: C,
        watch: Arc<Watch>,
        ending: WaitForCancellationFutureOwned,
    ) -> Self {
        let left = watch.time_left().unwrap_or_default();
        Self {
            connection,
            watch,
            timer: Box::pin(tokio::time::sleep(left)),
            ending: Some(Box::pin(ending)),
            linger: None,
            is_told: false,
        }
    }

    /// Whether the connection has taken too long.
    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        while self.timer.as_mut().poll(context).is_ready() {
            match self.watch.time_left() {
                // Of many requests one may just be on its way: it is told first which of them were heard.
                None if self.watch.is_http2() && !self.is_told => {
                    self.is_told = true;
                    self.connection.drain();
                    self.timer.as_mut().reset(after(GOODBYE));
                    context.waker().wake_by_ref();
                }
                None => return true,
                // Not to be looked at again and again within the timer's own tick.
                Some(left) => self
                    .timer
                    .as_mut()
                    .reset(after(left.max(Duration::from_millis(5)))),
            }
        }
        false
    }

    /// Whether the connection was asked to end just now.
    fn poll_ending(&mut self, context: &mut Context<'_>) -> bool {
        if let Some(ending) = &mut self.ending
            && ending.as_mut().poll(context).is_ready()
        {
            self.ending = None;
            self.linger = Some(Box::pin(tokio::time::sleep(self.watch.linger())));
        }
        if let Some(linger) = &mut self.linger
            && linger.as_mut().poll(context).is_ready()
        {
            self.linger = None;
            self.connection.drain();
            return true;
        }
        false
    }
}

fn after(left: Duration) -> Instant {
    Instant::now() + left
}

/// Nothing in it is moved that must not be: what must not is boxed.
impl<C: Drains> Future for Guarded<C> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if Pin::new(&mut self.connection).poll(context).is_ready() {
            return Poll::Ready(());
        }
        if self.is_over(context) {
            return Poll::Ready(());
        }
        // It may have ended by being asked to.
        if self.poll_ending(context) {
            return Pin::new(&mut self.connection).poll(context);
        }
        Poll::Pending
    }
}
