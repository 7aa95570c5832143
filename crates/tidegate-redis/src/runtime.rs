//! A runtime of the store's own, for programs that have none.

use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A thread that runs what the store has to do. Ends when it is dropped.
pub(crate) struct OwnRuntime {
    handle: Handle,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl OwnRuntime {
    pub(crate) fn start() -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        let run = move || {
            // Both ways it is over: told to end, or nobody left to tell.
            let _ = runtime.block_on(ended);
            // A name that is being looked up, on a thread of its own, is not waited for.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new()
            .name("tidegate-redis".to_owned())
            .spawn(run)?;
        Ok(Self {
            handle,
            end: Some(end),
            thread: Some(thread),
        })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // It has nothing left to do but to end.
            let _ = thread.join();
        }
    }
}
