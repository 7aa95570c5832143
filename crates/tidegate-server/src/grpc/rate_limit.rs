//! Envoy's `ShouldRateLimit`: descriptors in, statuses out.

use http::HeaderMap;
use smallvec::SmallVec;
use tidegate::{Limit, Rate};
use tidegate_core::Store;
use tokio::sync::SemaphorePermit;
use tonic::Status;

use super::response;
use crate::activity::{Label, Observed};
use crate::config::{DescriptorHits, DescriptorMode, EnvoyConfig, Scope};
use crate::descriptors::{
    DecideError, DecideOptions, Figures, Hits, LimitRequest, MAX_DESCRIPTORS, RuleDecision, cost,
    decide, unit_period,
};
use crate::http::route::authorize;
#[cfg(feature = "limitador")]
use crate::limitador::CheckKind;
use crate::net::Timeouts;
use crate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_response::RateLimit;
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

impl<'a> Caller<'a> {
    /// Waits until the connection may send another operation to a remote store.
    pub(crate) async fn permit(self) -> Option<SemaphorePermit<'a>> {
        if !self.active.gate.store().is_remote() {
            return None;
        }
        self.timeouts.in_flight().acquire().await.ok()
    }

    /// Fails if the caller does not have a scope.
    pub(crate) async fn authorize(self, scope: Scope) -> Result<(), Status> {
        authorize(self.active, self.headers, scope)
            .await
            .map_err(|problem| super::unary::status(&problem))
    }

    /// Fails if the caller may not give hits back.
    pub(crate) async fn authorize_refund(self) -> Result<(), Status> {
        self.authorize(Scope::Refund).await
    }
}

/// Converts the error of a request that was not decided.
pub(crate) fn undecided(server: &Server, error: DecideError) -> Status {
    match error {
        DecideError::Invalid(message) => Status::invalid_argument(message),
        DecideError::Unavailable => {
            server.metrics.failed_descriptors();
            Status::unavailable(error.to_string())
        }
    }
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
    check_request(&request)?;
    #[cfg(feature = "limitador")]
    if let Some(limits) = super::limitador::limits_of(caller.server, &request.domain) {
        let kind = CheckKind::CheckAndReport;
        return Box::pin(super::limitador::answer(caller, &limits, &request, kind)).await;
    }
    let rules = caller.server.rules();
    let rules = rules.as_ref().ok_or_else(no_rules)?;
    let envoy = &caller.active.config.envoy;
    let asked: SmallVec<[LimitRequest<'_>; 2]> = request
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
        caller.authorize_refund().await?;
    }
    let gate = &caller.active.gate;
    let _permit = caller.permit().await;
    let decided = decide(rules, gate, &request.domain, &asked, options(envoy))
        .await
        .map_err(|error| undecided(caller.server, error))?;
    for (asked, decision) in asked.iter().zip(&decided.decisions) {
        if let RuleDecision::Limited { figures, shown, .. } = decision {
            caller.server.metrics.degraded_rule(figures.degraded);
            observe(caller.server, &request.domain, asked, figures, shown);
        }
    }
    Ok(response::render(envoy, &request, decided))
}

/// Reports a decision to the dashboard and the recorder. The key is the descriptor.
fn observe(
    server: &Server,
    domain: &str,
    asked: &LimitRequest<'_>,
    figures: &Figures,
    shown: &RateLimit,
) {
    let (Hits::Check(hits) | Hits::Charge(hits)) = asked.hits else {
        return;
    };
    let mut key = String::new();
    for entry in asked.entries {
        let separator = if key.is_empty() { "" } else { " " };
        key.extend([separator, &entry.key, "=", &entry.value]);
    }
    let period = unit_period(shown.unit());
    let limit = Limit::fixed_window(Rate::new(u64::from(shown.requests_per_unit), period));
    let observed = Observed {
        label: Label::Rule(domain),
        tenant: None,
        key: key.as_bytes(),
        cost: cost(hits),
        is_denied: figures.is_over,
        retry_after: figures.retry_after,
        limit: Some(&limit),
    };
    server.activity.observe(&server.clock, &observed);
}

/// Rejects a request without a domain or descriptors, or with too many.
pub(super) fn check_request(request: &RateLimitRequest) -> Result<(), Status> {
    let count = request.descriptors.len();
    let message = match count {
        _ if request.domain.is_empty() => "rate limit domain must not be empty".to_owned(),
        0 => "rate limit descriptor list must not be empty".to_owned(),
        1..=MAX_DESCRIPTORS => return Ok(()),
        _ => format!("{count} descriptors: expected at most {MAX_DESCRIPTORS}"),
    };
    Err(Status::invalid_argument(message))
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
