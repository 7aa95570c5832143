//! Atomics and spin hints, replaced by loom's when the lock-free code is model-checked.

#[cfg(not(tidegate_loom))]
pub(crate) use std::hint::spin_loop;
#[cfg(not(tidegate_loom))]
pub(crate) use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(tidegate_loom))]
pub(crate) use std::thread::yield_now;

#[cfg(tidegate_loom)]
pub(crate) use loom::hint::spin_loop;
#[cfg(tidegate_loom)]
pub(crate) use loom::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(tidegate_loom)]
pub(crate) use loom::thread::yield_now;
