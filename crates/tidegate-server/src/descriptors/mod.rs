//! Rules for descriptors, the key-value pairs that Envoy sends: read from the files of
//! envoyproxy/ratelimit or from its xDS resources, compiled, matched and decided.
//!
//! `from_yaml`, `from_xds` and `source` are the written form, `compile` and `rules` the compiled one, `decide`
//! the decision. The protocols are in `grpc/` and `http/`.

mod compile;
mod decide;
mod figures;
mod files;
mod from_xds;
mod from_yaml;
mod key;
mod pattern;
mod rules;
mod source;
mod stats;
mod target;

#[cfg(feature = "limitador")]
pub(crate) use compile::service_namespace;
pub(crate) use compile::{MAX_COUNT, compile, unit_period};
pub(crate) use decide::{
    DecideOptions, Decided, Hits, LimitRequest, MAX_DESCRIPTORS, RuleDecision, decide,
};
pub(crate) use figures::cost;
pub(crate) use figures::{DecideError, Figures};
#[cfg(feature = "limitador")]
pub(crate) use figures::{available, check_together, failed};
#[cfg(feature = "limitador")]
pub(crate) use files::read_rule_file;
pub(crate) use files::{RuleFiles, rule_folders};
pub(crate) use from_xds::domain_from_xds;
#[cfg(feature = "manual-time")]
pub use from_xds::xds_from_yaml;
#[cfg(feature = "limitador")]
pub(crate) use key::{DescriptorKey, encode_values};
pub(crate) use rules::{Domains, Rule, RuleLimit};
pub(crate) use source::{DescriptorSource, DomainSource, LimitSource, RuleError};
pub(crate) use stats::{HitCounters, stat_name};
