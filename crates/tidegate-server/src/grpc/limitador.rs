//! Answers in limitador's protocols: Envoy's service, and Kuadrant's two calls.

use std::sync::Arc;

use tonic::Status;

use super::rate_limit::{Caller, check_request, undecided};
use super::response;
use crate::descriptors::{Decided, RuleDecision};
use crate::limitador::{Bindings, CheckKind, Limitador, decide, rate_limit};
use crate::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::server::Server;

/// Returns the limits that apply to a domain, or `None` if it is one of the rules of Envoy's
/// service.
pub(super) fn limits_of(server: &Server, domain: &str) -> Option<Arc<Limitador>> {
    let limits = server.limitador.load_full()?;
    let rules = server.rules();
    let is_elsewhere = rules
        .as_ref()
        .is_some_and(|rules| rules.domain(domain).is_some());
    (!is_elsewhere).then_some(limits)
}

/// Answers one of Kuadrant's calls.
pub(super) async fn kuadrant(
    caller: Caller<'_>,
    request: RateLimitRequest,
    kind: CheckKind,
) -> Result<RateLimitResponse, Status> {
    check_request(&request)?;
    let limits = caller.server.limitador.load_full();
    let limits = limits.ok_or_else(|| Status::unavailable("no limits are configured"))?;
    answer(caller, &limits, &request, kind).await
}

/// Decides a request. The status of the first descriptor is that of the nearest limit: limits do
/// not belong to single descriptors.
pub(super) async fn answer(
    caller: Caller<'_>,
    limits: &Limitador,
    request: &RateLimitRequest,
    kind: CheckKind,
) -> Result<RateLimitResponse, Status> {
    let hits = match kind {
        CheckKind::Check => 1,
        CheckKind::CheckAndReport | CheckKind::Report => u64::from(request.hits_addend.max(1)),
    };
    let bindings = Bindings::Descriptors(&request.descriptors);
    let _permit = caller.permit().await;
    let server = caller.server;
    let decision = decide(server, limits, &request.domain, &bindings, kind, hits)
        .await
        .map_err(|error| undecided(server, error))?;
    let mut decided = Decided {
        is_over: decision.is_over,
        are_quotas_over: false,
        decisions: request
            .descriptors
            .iter()
            .map(|_| RuleDecision::NoRule)
            .collect(),
    };
    if let (Some(first), Some((limit, figures))) =
        (decided.decisions.first_mut(), decision.limits.first())
    {
        let mut figures = *figures;
        figures.is_over &= decision.is_over;
        *first = RuleDecision::Limited {
            figures,
            shown: rate_limit(limit),
            rule: None,
            is_quota: false,
        };
    }
    Ok(response::render(
        &caller.active.config.envoy,
        request,
        decided,
    ))
}
