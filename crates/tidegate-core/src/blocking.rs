//! Running a future to completion on the current thread.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use crate::store::BlockingError;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Fails in async code, where blocking the thread would block other tasks.
pub(crate) fn ensure_no_runtime() -> Result<(), BlockingError> {
    match tokio::runtime::Handle::try_current() {
        Ok(_) => Err(BlockingError::new()),
        Err(_) => Ok(()),
    }
}

/// Runs a future to completion, parking the current thread while it is pending.
pub(crate) fn wait<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Returns the output of a future that is usually ready on the first poll. Blocks if it is not.
#[inline]
pub(crate) fn ready<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(output) => output,
        Poll::Pending => wait(future),
    }
}
