//! A connection that lets other tasks run before it writes.
//!
//! The decisions of one round trip to Redis arrive together and wake their calls one by one. Without
//! a pause, the connection would write each response with a system call of its own.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::net::Drain;

/// A connection that is polled after all tasks that are ready now.
pub(super) struct YieldingConnection<C> {
    connection: C,
    /// The pause before the next poll, once it has begun.
    pause: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<C> YieldingConnection<C> {
    pub(super) fn new(connection: C) -> Self {
        Self {
            connection,
            pause: None,
        }
    }
}

impl<C: Drain> Future for YieldingConnection<C> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let pause = self
            .pause
            .get_or_insert_with(|| Box::pin(tokio::task::yield_now()));
        ready!(pause.as_mut().poll(context));
        self.pause = None;
        Pin::new(&mut self.connection).poll(context)
    }
}

impl<C: Drain> Drain for YieldingConnection<C> {
    fn drain(&mut self) {
        self.connection.drain();
    }
}
