//! Gubernator's protocol: a batch of requests, each with its own limit.
//!
//! Its token bucket is a window that opens with the first hit, its leaky bucket refills evenly.
//! `limit` finds the limiter of a request, `calendar` the windows of calendar units, `json` reads
//! and writes messages in JSON. docs/migrating.md lists what is missing.

mod calendar;
mod json;
mod limit;

use std::time::Duration;

use futures_util::future::join_all;
use tidegate::{Cost, Decision};
use tidegate_core::Store;
use tonic::Status;

pub(crate) use json::{health_json, request_from_json, response_json};
use limit::{LimitKind, RequestLimit};

use crate::activity::{Label, Observed};
use crate::config::Scope;
use crate::grpc::Caller;
use crate::http::response_body::check_room_for_batch;
use crate::proto::pb::gubernator::{
    Behavior, GetRateLimitsReq, GetRateLimitsResp, HealthCheckResp, RateLimitReq, RateLimitResp,
    Status as LimitStatus,
};
use crate::server::Server;

/// The maximum number of requests in a batch.
const MAX_BATCH: usize = 1_000;
/// The number of requests of a batch that are decided at a time on a remote store.
const AT_A_TIME: usize = 64;

/// Returns the state of the server.
pub(crate) fn health(server: &Server) -> HealthCheckResp {
    let is_healthy = !server.is_leaving();
    let message = if is_healthy {
        ""
    } else {
        "the server is shutting down"
    };
    HealthCheckResp {
        status: if is_healthy { "healthy" } else { "unhealthy" }.to_owned(),
        message: message.to_owned(),
        peer_count: 1,
        advertise_address: String::new(),
    }
}

/// Decides a batch. A request that is invalid has an error; the others are decided.
///
/// # Errors
///
/// Returns an error if there are too many requests, or if the caller may not give hits back or
/// reset.
pub(crate) async fn get_rate_limits(
    caller: Caller<'_>,
    batch: GetRateLimitsReq,
) -> Result<GetRateLimitsResp, Status> {
    let count = batch.requests.len();
    if count > MAX_BATCH {
        return Err(Status::out_of_range(format!(
            "Requests.RateLimits list too large; max size is '{MAX_BATCH}'"
        )));
    }
    if batch.requests.iter().any(|request| request.hits < 0) {
        caller.authorize_refund().await?;
    }
    if batch.requests.iter().any(is_reset) {
        authorize_reset(caller).await?;
    }
    // Nothing is taken if the response would not fit.
    check_room_for_batch(&caller.server.responses, caller.timeouts, count)
        .map_err(|problem| Status::resource_exhausted(problem.detail()))?;
    let _permit = caller.permit().await;
    let mut responses = Vec::with_capacity(count);
    if caller.active.gate.store().is_remote() {
        for requests in batch.requests.chunks(AT_A_TIME) {
            let decided = requests.iter().map(|request| answer(caller, request));
            responses.extend(join_all(decided).await);
        }
    } else {
        for request in &batch.requests {
            responses.push(answer(caller, request).await);
        }
    }
    Ok(GetRateLimitsResp { responses })
}

/// Fails if the caller may not reset counters: as for Redis clients, this needs the scope `admin`
/// if tokens are configured, and a local client otherwise.
async fn authorize_reset(caller: Caller<'_>) -> Result<(), Status> {
    let tokens = &caller.active.secrets.tokens;
    if !tokens.is_open(Scope::Admin) {
        return caller.authorize(Scope::Admin).await;
    }
    // Without a token of this scope it would be open to every client.
    if tokens.is_empty() && caller.timeouts.is_local() {
        return Ok(());
    }
    Err(Status::permission_denied(
        "RESET_REMAINING is not permitted: expected a token of scope admin",
    ))
}

fn has(request: &RateLimitReq, behavior: Behavior) -> bool {
    request.behavior & i32::from(behavior) != 0
}

fn is_reset(request: &RateLimitReq) -> bool {
    has(request, Behavior::ResetRemaining)
}

async fn answer(caller: Caller<'_>, request: &RateLimitReq) -> RateLimitResp {
    let answered = match RequestLimit::of(caller.active, request) {
        Ok(limit) => decide(caller, &limit, request).await,
        Err(error) => Err(error),
    };
    answered.unwrap_or_else(|error| RateLimitResp {
        error,
        ..RateLimitResp::default()
    })
}

async fn decide(
    caller: Caller<'_>,
    limit: &RequestLimit<'_>,
    request: &RateLimitReq,
) -> Result<RateLimitResp, String> {
    let Some(limiter) = &limit.limiter else {
        // A limit of 0 denies every hit.
        let mut response = limit.response(request.hits > 0, 0, limit.period);
        response.limit = request.limit;
        return Ok(response);
    };
    let key = || limit.key.borrowed();
    let failed = |error: tidegate::CheckError| error.to_string();
    let mut was_reset = false;
    if is_reset(request) {
        was_reset = limiter.reset(key()).await.map_err(failed)?;
        if limit.kind == LimitKind::Window && was_reset {
            // Its hits are ignored. A new window takes them.
            let mut response = limit.response(false, limit.capacity, Duration::ZERO);
            response.reset_time = 0;
            return Ok(response);
        }
    }
    let cost = Cost::try_from(request.hits.unsigned_abs()).map_err(|error| error.to_string())?;
    let decision = if request.hits < 0 {
        let usage = limiter.refund(key(), cost).await.map_err(failed)?;
        Decision::from(usage)
    } else {
        limiter.check(key()).cost(cost).await.map_err(failed)?
    };
    caller.server.metrics.degraded_rule(decision.degraded());
    if request.hits > 0 {
        let observed = Observed {
            label: Label::Rule(&request.name),
            tenant: None,
            key: request.unique_key.as_bytes(),
            cost,
            is_denied: decision.is_denied(),
            retry_after: decision.retry_after(),
            limit: limiter.policy().limits().first(),
        };
        caller
            .server
            .activity
            .observe(&caller.server.clock, &observed);
    }
    if decision.is_denied() && !decision.has_figures() {
        return Err("the store is unavailable".to_owned());
    }
    // A look at an exhausted limit is not over it.
    let is_over = decision.is_denied() && request.hits > 0;
    let is_new = decision.remaining() >= limit.capacity;
    let drains = match limit.kind {
        LimitKind::Window => !is_new && has(request, Behavior::DrainOverLimit),
        LimitKind::Bucket => {
            let is_fresh = is_new && !was_reset;
            is_fresh || has(request, Behavior::DrainOverLimit)
        }
    };
    if is_over && drains {
        let usage = limiter.charge(key(), cost).await.map_err(failed)?;
        let drained = Decision::from(usage);
        return Ok(limit.response(true, 0, drained.reset_after()));
    }
    let wait = decision
        .retry_after()
        .unwrap_or_else(|| decision.reset_after());
    Ok(limit.response(is_over, decision.remaining(), wait))
}

impl RequestLimit<'_> {
    fn response(&self, is_over: bool, remaining: u64, reset_after: Duration) -> RateLimitResp {
        let status = if is_over {
            LimitStatus::OverLimit
        } else {
            LimitStatus::UnderLimit
        };
        let reset_at = self.resets_at_ms.unwrap_or_else(|| {
            let nanos = u64::try_from(reset_after.as_nanos()).unwrap_or(u64::MAX);
            self.now_ns.saturating_add(nanos).div_ceil(1_000_000)
        });
        RateLimitResp {
            status: status.into(),
            limit: self.shown_limit,
            remaining: i64::try_from(remaining).unwrap_or(i64::MAX),
            reset_time: i64::try_from(reset_at).unwrap_or(i64::MAX),
            ..RateLimitResp::default()
        }
    }
}
