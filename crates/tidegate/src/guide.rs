//! The user guide: the pages of the repository's `docs` folder.
//!
//! Start with [`policies`], [`choosing_an_algorithm`] and [`recipes`]. [`middleware`] is for Rust
//! services, [`server`] and [`configuration`] for programs in other languages, [`envoy`] and
//! [`gateways`] for gateways. [`redis`] and [`failure_modes`] are for limits shared by several
//! processes. [`replay`] finds a limit, [`operating`] and [`sizing`] are for operators. [`migrating`]
//! compares other rate limiters.

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/policies.md")]
pub mod policies {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/choosing-an-algorithm.md")]
pub mod choosing_an_algorithm {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/recipes.md")]
pub mod recipes {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/middleware.md")]
pub mod middleware {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/redis.md")]
pub mod redis {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/failure-modes.md")]
pub mod failure_modes {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/server.md")]
pub mod server {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/envoy.md")]
pub mod envoy {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/gateways.md")]
pub mod gateways {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/migrating.md")]
pub mod migrating {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/configuration.md")]
pub mod configuration {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/security.md")]
pub mod security {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/replay.md")]
pub mod replay {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/operating.md")]
pub mod operating {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/sizing.md")]
pub mod sizing {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/simulate.md")]
pub mod simulate {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/specification.md")]
pub mod specification {}

#[doc = include_str!("links.md")]
#[doc = include_str!("../docs/performance.md")]
pub mod performance {}
