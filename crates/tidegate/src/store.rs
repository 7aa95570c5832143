//! The interface of stores: for implementing a [`Store`], not for using one.
//!
//! A store turns a policy into a plan once, and then checks keys against the plan. A [`Record`] is
//! the state of a key under a policy. [`CasStore`] makes a store of any database with
//! compare-and-swap: PostgreSQL, SQLite, memcached, DynamoDB.

pub use crate::any_store::AnyPlan;
pub use tidegate_core::{
    CasBackend, CasPlan, CasStore, Charged, Plan, Record, RecordError, Store, StoreError,
};
#[cfg(feature = "redis")]
pub use tidegate_redis::{Finding, RedisPlan, Severity};
