//! The interface of stores: for implementing a [`Store`], not for using one.
//!
//! A store turns a policy into a plan once, and then checks keys against the plan. A [`Record`] is
//! the state of a key under a policy, for stores with compare-and-swap.

pub use crate::any_store::AnyPlan;
pub use tidegate_core::{Charged, Plan, Record, Store, StoreError};
#[cfg(feature = "redis")]
pub use tidegate_redis::RedisPlan;
