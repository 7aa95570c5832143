//! The operations: check, batch, peek, settle, refund and reset.

use std::collections::HashMap;

use futures_util::future::join_all;
use http::StatusCode;
use serde::Serialize;
use tidegate::store::Store;
use tidegate::{AnyStore, CheckError, Cost, Gate, Subject, Verdict};
use tidegate_core::encoded_key;
use tokio::sync::SemaphorePermit;

use super::Response;
use super::problem::Problem;
use super::receipt::Receipt;
use super::request::{BatchRequest, CheckRequest, CheckTarget, CostRule, SettleRequest};
use super::response::{CheckResponse, from_verdict, json};
use super::response_body::check_room_for_batch;
use crate::inline::Inline;
use crate::net::Timeouts;
use crate::server::{ActiveConfig, Server};

/// The connection that sent a request, and the active configuration.
#[derive(Clone, Copy)]
pub(super) struct Caller<'a> {
    pub(super) server: &'a Server,
    pub(super) active: &'a ActiveConfig,
    /// Bounds the operations in flight to a remote store, and the unread responses.
    pub(super) timeouts: &'a Timeouts,
}

impl<'a> Caller<'a> {
    /// Waits until the connection may send another operation to a remote store.
    async fn permit(self) -> Option<SemaphorePermit<'a>> {
        if !self.active.gate.store().is_remote() {
            return None;
        }
        self.timeouts.in_flight().acquire().await.ok()
    }
}

/// A verdict, and whether its limits came with the request.
struct CheckVerdict {
    verdict: Verdict,
    is_inline: bool,
}

/// `POST /v1/check`, and `POST /v1/peek`, which takes nothing.
pub(super) async fn check(
    caller: Caller<'_>,
    request: &CheckRequest<'_>,
    cost: CostRule,
    denied: StatusCode,
) -> Result<Response, Problem> {
    let target = request.target(cost)?;
    if request.receipt {
        return check_with_receipt(caller, &target, cost, denied).await;
    }
    let checked = decide(caller, &target).await?;
    let body = match cost {
        CostRule::Allowed => CheckResponse::new(&checked.verdict, checked.is_inline),
        CostRule::Forbidden => CheckResponse::from_look(&checked.verdict, checked.is_inline),
    };
    Ok(from_verdict(caller.active, &checked.verdict, &body, denied))
}

/// Checks with a receipt.
async fn check_with_receipt(
    caller: Caller<'_>,
    target: &CheckTarget<'_>,
    cost: CostRule,
    denied: StatusCode,
) -> Result<Response, Problem> {
    let Caller { server, active, .. } = caller;
    if cost == CostRule::Forbidden {
        return Err(Problem::bad("`receipt` is for checks: expected none here"));
    }
    let unavailable = || {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the system's random source is not available",
        )
    };
    let receipt = Receipt::new(target).ok_or_else(unavailable)?;
    let _permit = caller.permit().await;
    let (verdict, is_inline, is_kept) = match target {
        CheckTarget::Named(subject) => {
            let (verdict, is_kept) = active
                .gate
                .decide_with_receipt(*subject, &receipt.id)
                .await
                .map_err(problem)?;
            (verdict, false, is_kept)
        }
        CheckTarget::Inline {
            limits,
            key,
            tenant,
            cost,
        } => {
            let Inline { label, limiter } = inline(&active.gate, limits)?;
            let key = encoded_key(*tenant, key.as_bytes())
                .map_err(|error| Problem::bad(error.to_string()))?;
            let checked = limiter
                .check_with_receipt_id(&key, *cost, &receipt.id)
                .await;
            let (decision, is_kept) = checked.map_err(problem)?;
            if *cost > Cost::ZERO {
                server.metrics.inline(&decision);
            }
            (Verdict::from_decision(label, decision), true, is_kept)
        }
    };
    let mut body = CheckResponse::new(&verdict, is_inline);
    body.receipt = Some(if is_kept { receipt.to_text() } else { None });
    Ok(from_verdict(active, &verdict, &body, denied))
}

/// `POST /v1/settle`: corrects a request to its actual cost, by its receipt, once.
pub(super) async fn settle(
    caller: Caller<'_>,
    settle: &SettleRequest<'_>,
) -> Result<Response, Problem> {
    let active = caller.active;
    let _permit = caller.permit().await;
    let receipt = Receipt::of_text(settle.receipt())
        .ok_or_else(|| Problem::bad("`receipt` is invalid: expected one that a check returned"))?;
    let target = receipt.target(settle.cost()?);
    let settled = match &target {
        CheckTarget::Named(subject) => active
            .gate
            .settle(*subject, &receipt.id)
            .await
            .map_err(problem)?,
        CheckTarget::Inline {
            limits,
            key,
            tenant,
            cost,
        } => {
            let key = encoded_key(*tenant, key.as_bytes())
                .map_err(|error| Problem::bad(error.to_string()))?;
            inline(&active.gate, limits)?
                .limiter
                .settle_receipt_id(&key, &receipt.id, *cost)
                .await
                .map_err(problem)?
        }
    };
    match settled {
        Some(decision) => Ok(json(&CheckResponse::from_decision(
            &decision,
            target.subject().map(|subject| subject.policy),
        ))),
        None => Err(Problem::new(
            StatusCode::CONFLICT,
            "the receipt is unknown, has expired or was settled before",
        )),
    }
}

#[derive(Serialize)]
struct Results<'a> {
    results: Vec<CheckResponse<'a>>,
}

/// `POST /v1/check:batch`: each check on its own, in order, or all together. If one is invalid,
/// nothing is taken.
pub(super) async fn batch(
    caller: Caller<'_>,
    batch: &BatchRequest<'_>,
) -> Result<Response, Problem> {
    let active = caller.active;
    let count = batch.checks.len();
    if count == 0 || count > active.config.bounds.max_batch {
        let most = active.config.bounds.max_batch;
        return Err(Problem::bad(format!(
            "there are {count} checks: expected 1 to {most}"
        )));
    }
    check_room_for_batch(&caller.server.responses, caller.timeouts, count)?;
    let named = |number: usize, problem: Problem| problem.within(&format!("checks[{number}]"));
    let mut asked = Vec::with_capacity(count);
    for (number, request) in batch.checks.iter().enumerate() {
        let target = request
            .target(CostRule::Allowed)
            .map_err(|problem| named(number, problem))?;
        if request.receipt {
            return Err(named(
                number,
                Problem::bad("`receipt` is for single checks: expected none in a batch"),
            ));
        }
        is_known(&active.gate, &target).map_err(|problem| named(number, problem))?;
        asked.push(target);
    }
    if batch.together {
        return together(caller, &asked).await;
    }
    let checked = decide_each(caller, &asked).await;
    let checked = checked
        .into_iter()
        .enumerate()
        .map(|(number, verdict)| verdict.map_err(|problem| named(number, problem)));
    let checked = checked.collect::<Result<Vec<CheckVerdict>, Problem>>()?;
    let results = checked
        .iter()
        .map(|checked| CheckResponse::new(&checked.verdict, checked.is_inline))
        .collect();
    Ok(json(&Results { results }))
}

/// Decides each check on its own. In memory they run in order. On a remote store, checks of
/// different keys share round trips, and checks of one key run in order.
async fn decide_each(
    caller: Caller<'_>,
    asked: &[CheckTarget<'_>],
) -> Vec<Result<CheckVerdict, Problem>> {
    let gate = &caller.active.gate;
    let mut rows: Vec<Vec<usize>> = Vec::new();
    let mut row_of: HashMap<_, usize> = HashMap::new();
    for (number, target) in asked.iter().enumerate() {
        let row = if gate.store().is_remote() {
            *row_of.entry(target.client()).or_insert(rows.len())
        } else {
            0
        };
        match rows.get_mut(row) {
            Some(row) => row.push(number),
            None => rows.push(vec![number]),
        }
    }
    let in_order = async |row: Vec<usize>| {
        let mut checked = Vec::with_capacity(row.len());
        for number in row {
            checked.push((number, decide(caller, &asked[number]).await));
        }
        checked
    };
    let checked = join_all(rows.into_iter().map(in_order)).await;
    let mut checked: Vec<(usize, Result<CheckVerdict, Problem>)> =
        checked.into_iter().flatten().collect();
    checked.sort_by_key(|(number, _)| *number);
    checked.into_iter().map(|(_, verdict)| verdict).collect()
}

/// Decides one request under all policies.
async fn together(caller: Caller<'_>, asked: &[CheckTarget<'_>]) -> Result<Response, Problem> {
    let active = caller.active;
    let _permit = caller.permit().await;
    let Some(subjects) = asked
        .iter()
        .map(CheckTarget::subject)
        .collect::<Option<Vec<Subject<'_>>>>()
    else {
        return Err(Problem::bad(
            "`together` is for policies by name: expected no `limits`",
        ));
    };
    let verdict = match active.gate.decide(&subjects).into_ready() {
        Some(verdict) => verdict,
        None => active.gate.decide(&subjects).await,
    };
    let verdict = verdict.map_err(problem)?;
    Ok(from_verdict(
        active,
        &verdict,
        &CheckResponse::new(&verdict, false),
        StatusCode::OK,
    ))
}

/// Checks that the policy exists and the limits are valid, before anything is taken.
fn is_known(gate: &Gate<AnyStore>, target: &CheckTarget<'_>) -> Result<(), Problem> {
    match target {
        CheckTarget::Named(subject) => gate.ensure_policy(subject.policy).map_err(problem),
        CheckTarget::Inline { limits, .. } => inline(gate, limits).map(drop),
    }
}

async fn decide(caller: Caller<'_>, target: &CheckTarget<'_>) -> Result<CheckVerdict, Problem> {
    let Caller { server, active, .. } = caller;
    let gate = &active.gate;
    let _permit = caller.permit().await;
    let verdict = match target {
        CheckTarget::Named(subject) => {
            let subjects = std::slice::from_ref(subject);
            let verdict = match gate.decide(subjects).into_ready() {
                Some(verdict) => verdict,
                None => gate.decide(subjects).await,
            };
            return Ok(CheckVerdict {
                verdict: verdict.map_err(problem)?,
                is_inline: false,
            });
        }
        CheckTarget::Inline {
            limits,
            key,
            tenant,
            cost,
        } => {
            let Inline { label, limiter } = inline(gate, limits)?;
            let key = encoded_key(*tenant, key.as_bytes())
                .map_err(|error| Problem::bad(error.to_string()))?;
            let decision = limiter.check(&key[..]).cost(*cost).await.map_err(problem)?;
            if *cost > Cost::ZERO {
                server.metrics.inline(&decision);
            }
            Verdict::from_decision(label, decision)
        }
    };
    Ok(CheckVerdict {
        verdict,
        is_inline: true,
    })
}

/// `POST /v1/refund`: gives back the cost of a request that did not happen.
pub(super) async fn refund(
    caller: Caller<'_>,
    request: &CheckRequest<'_>,
) -> Result<Response, Problem> {
    let active = caller.active;
    let _permit = caller.permit().await;
    let target = request.target(CostRule::Allowed)?;
    if request.receipt {
        return Err(Problem::bad("`receipt` is for checks: expected none"));
    }
    let decision = match &target {
        CheckTarget::Named(subject) => active.gate.refund(*subject).await.map_err(problem)?,
        CheckTarget::Inline {
            limits,
            key,
            tenant,
            cost,
        } => {
            let key = encoded_key(*tenant, key.as_bytes())
                .map_err(|error| Problem::bad(error.to_string()))?;
            Some(
                inline(&active.gate, limits)?
                    .limiter
                    .refund(&key[..], *cost)
                    .await
                    .map_err(problem)?,
            )
        }
    };
    match decision {
        Some(decision) => {
            let policy = target.subject().map(|subject| subject.policy);
            Ok(json(&CheckResponse::from_decision(&decision, policy)))
        }
        None => Err(Problem::new(
            StatusCode::CONFLICT,
            "the key has no limit, or is blocked: nothing was taken",
        )),
    }
}

/// `POST /v1/reset`: deletes the usage of a key, and returns its state.
pub(super) async fn reset(
    caller: Caller<'_>,
    request: &CheckRequest<'_>,
) -> Result<Response, Problem> {
    let active = caller.active;
    let target = request.target(CostRule::Forbidden)?;
    match &target {
        CheckTarget::Named(subject) => {
            active
                .gate
                .reset(subject.policy, subject.key, subject.tenant)
                .await
                .map_err(problem)?;
        }
        CheckTarget::Inline {
            limits,
            key,
            tenant,
            ..
        } => {
            let key = encoded_key(*tenant, key.as_bytes())
                .map_err(|error| Problem::bad(error.to_string()))?;
            inline(&active.gate, limits)?
                .limiter
                .reset(&key[..])
                .await
                .map_err(problem)?;
        }
    }
    let policy = target
        .subject()
        .map_or("(inline limits)", |subject| subject.policy);
    tracing::info!(policy, "key reset");
    let checked = decide(caller, &target).await?;
    let body = CheckResponse::from_look(&checked.verdict, checked.is_inline);
    Ok(from_verdict(
        active,
        &checked.verdict,
        &body,
        StatusCode::OK,
    ))
}

fn inline(gate: &Gate<AnyStore>, limits: &str) -> Result<Inline, Problem> {
    Inline::find(gate, limits).map_err(|error| Problem::bad(format!("`limits`: {error}")))
}

fn problem(error: CheckError) -> Problem {
    match error {
        CheckError::UnknownPolicy { .. } => Problem::not_found(format!(
            "{error}; `limits` such as \"100/minute\" need no policy"
        )),
        CheckError::Store(_) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        CheckError::EmptyKey(_)
        | CheckError::Cost(_)
        | CheckError::TooManyPolicies { .. }
        | CheckError::TwoTiers { .. } => Problem::bad(error.to_string()),
        other => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, other.to_string()),
    }
}
