//! Envoy's `ShouldRateLimit`: descriptors in, statuses out.

use http::HeaderMap;
use smallvec::SmallVec;
use tonic::Status;

use super::response;
use crate::config::{DescriptorHits, DescriptorMode, EnvoyConfig, Scope};
use crate::descriptors::{DecideError, DecideOptions, Hits, LimitRequest, MAX_DESCRIPTORS, decide};
use crate::http::route::authorize;
use crate::net::Timeouts;
use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::server::{ActiveConfig, Server};

/// A request's view of the server.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub(crate) server: &'a Server,
    pub(crate) active: &'a ActiveConfig,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) timeouts: &'a Timeouts,
}

/// Returns the error of a server that has no rules yet.
fn no_rules() -> Status {
    Status::unavailable("no rate limit configuration loaded")
}

/// Decides a request.
///
/// # Errors
///
/// Returns `INVALID_ARGUMENT` for an invalid request, and `UNAVAILABLE` if there are no rules, or
/// if the store is unavailable and the failure policy denies.
pub(crate) async fn should_rate_limit(
    caller: Caller<'_>,
    request: RateLimitRequest,
) -> Result<RateLimitResponse, Status> {
    if request.domain.is_empty() {
        return Err(Status::invalid_argument(
            "rate limit domain must not be empty",
        ));
    }
    let count = request.descriptors.len();
    if count == 0 {
        return Err(Status::invalid_argument(
            "rate limit descriptor list must not be empty",
        ));
    }
    if count > MAX_DESCRIPTORS {
        let message = format!("{count} descriptors: expected at most {MAX_DESCRIPTORS}");
        return Err(Status::invalid_argument(message));
    }
    let rules = caller.server.rules();
    let rules = rules.as_ref().ok_or_else(no_rules)?;
    let envoy = &caller.active.config.envoy;
    let asked: SmallVec<[LimitRequest<'_>; 4]> = request
        .descriptors
        .iter()
        .map(|descriptor| LimitRequest {
            entries: &descriptor.entries,
            limit: descriptor.limit.as_ref(),
            hits: hits(descriptor, request.hits_addend, envoy.descriptor_hits),
        })
        .collect();
    if asked
        .iter()
        .any(|asked| matches!(asked.hits, Hits::Refund(_)))
    {
        authorize(caller.active, caller.headers, Scope::Refund)
            .await
            .map_err(|problem| super::unary::status(&problem))?;
    }
    let gate = &caller.active.gate;
    let _permit = match gate.store() {
        store if tidegate_core::Store::is_remote(store) => {
            caller.timeouts.in_flight().acquire().await.ok()
        }
        _ => None,
    };
    let decided = decide(rules, gate, &request.domain, &asked, options(envoy)).await;
    let decided = decided.map_err(|error| match error {
        DecideError::Invalid(message) => Status::invalid_argument(message),
        DecideError::Unavailable => Status::unavailable(error.to_string()),
    })?;
    Ok(response::render(envoy, &request, decided))
}

fn options(envoy: &EnvoyConfig) -> DecideOptions {
    DecideOptions {
        is_independent: envoy.descriptors == DescriptorMode::Independent,
        has_quota_mode: envoy.quota_mode,
        near_limit: (envoy.near_limit_ratio * 1_000.0) as u64,
    }
}

/// Returns the effect of a descriptor: its own hits, or those of the request, at least 1.
fn hits(descriptor: &RateLimitDescriptor, of_request: u32, own: DescriptorHits) -> Hits {
    let of_request = u64::from(of_request.max(1));
    match (descriptor.hits_addend, descriptor.is_negative_hits) {
        (Some(0), _) => Hits::Look,
        (hits, true) => Hits::Refund(hits.unwrap_or(of_request)),
        (None, false) => Hits::Check(of_request),
        (Some(hits), false) => match own {
            DescriptorHits::Charge => Hits::Charge(hits),
            DescriptorHits::Check => Hits::Check(hits),
        },
    }
}
