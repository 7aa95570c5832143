//! A runtime of the store's own, for programs without one.

use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A thread that runs the store's tasks. It ends when this is dropped.
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
            // Returns when the sender is used or dropped.
            let _ = runtime.block_on(ended);
            // Does not wait for a name lookup, which runs on its own thread.
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
            // The thread has nothing left to do.
            let _ = thread.join();
        }
    }
}
