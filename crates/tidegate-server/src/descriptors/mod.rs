//! Rules for descriptors, the key-value pairs that Envoy sends: read from the files of
//! envoyproxy/ratelimit or from its xDS resources, compiled, matched and decided.
//!
//! `from_yaml` and `source` are the written form, `compile` and `rules` the compiled one, `decide`
//! the decision. The protocols are in `grpc/` and `http/`.

mod compile;
mod decide;
mod files;
mod from_yaml;
mod key;
mod pattern;
mod rules;
mod source;
mod stats;
mod target;

pub(crate) use compile::compile;
pub(crate) use decide::{
    DecideError, DecideOptions, Decided, Figures, Hits, LimitRequest, MAX_DESCRIPTORS,
    RuleDecision, decide,
};
pub(crate) use files::{RuleFiles, rule_folders};
pub(crate) use rules::{Domains, Rule, RuleLimit};
pub(crate) use source::RuleError;
