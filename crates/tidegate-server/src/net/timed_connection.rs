//! A connection with its timer, which is drained at shutdown.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::timeouts::Timeouts;

/// The time that an HTTP/2 connection has to end after GOAWAY.
const GOODBYE: Duration = Duration::from_secs(1);

/// A connection that can be asked to end after its requests in flight.
pub(crate) trait Drain: Future<Output = ()> + Unpin {
    fn drain(&mut self);
}

/// A connection with its timer.
pub(crate) struct TimedConnection<C> {
    connection: C,
    timeouts: Arc<Timeouts>,
    timer: Pin<Box<Sleep>>,
    ending: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// Runs out when the connection is old.
    max_age: Option<Pin<Box<Sleep>>>,
    /// Runs out when idle connections are closed at shutdown.
    linger: Option<Pin<Box<Sleep>>>,
    /// Set if the connection was asked to end because of a timeout.
    has_sent_goaway: bool,
}

impl<C: Drain> TimedConnection<C> {
    pub(crate) fn new(
        connection: C,
        timeouts: Arc<Timeouts>,
        ending: WaitForCancellationFutureOwned,
    ) -> Self {
        let left = timeouts.time_left().unwrap_or_default();
        let max_age = timeouts.max_age();
        Self {
            connection,
            timeouts,
            timer: Box::pin(tokio::time::sleep(left)),
            ending: Some(Box::pin(ending)),
            max_age: max_age.map(|age| Box::pin(tokio::time::sleep(age))),
            linger: None,
            has_sent_goaway: false,
        }
    }

    /// Returns `true` if the connection has timed out.
    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        while self.timer.as_mut().poll(context).is_ready() {
            match self.timeouts.time_left() {
                // An HTTP/2 client may be sending a request. GOAWAY tells it first which requests
                // were received.
                None if self.timeouts.is_http2() && !self.has_sent_goaway => {
                    self.has_sent_goaway = true;
                    self.connection.drain();
                    self.timer.as_mut().reset(after(GOODBYE));
                    context.waker().wake_by_ref();
                }
                None => return true,
                // Not polled again within the timer's own resolution.
                Some(left) => self
                    .timer
                    .as_mut()
                    .reset(after(left.max(Duration::from_millis(5)))),
            }
        }
        false
    }

    /// Returns `true` if the connection was just asked to end.
    fn poll_ending(&mut self, context: &mut Context<'_>) -> bool {
        if let Some(ending) = &mut self.ending
            && ending.as_mut().poll(context).is_ready()
        {
            self.ending = None;
            self.linger = Some(Box::pin(tokio::time::sleep(self.timeouts.linger())));
        }
        if let Some(age) = &mut self.max_age
            && age.as_mut().poll(context).is_ready()
        {
            self.max_age = None;
            self.connection.drain();
            return true;
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

/// Unpin, because everything that must not move is boxed.
impl<C: Drain> Future for TimedConnection<C> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if Pin::new(&mut self.connection).poll(context).is_ready() {
            return Poll::Ready(());
        }
        if self.is_over(context) {
            return Poll::Ready(());
        }
        // Asking it to end may have ended it.
        if self.poll_ending(context) {
            return Pin::new(&mut self.connection).poll(context);
        }
        Poll::Pending
    }
}
