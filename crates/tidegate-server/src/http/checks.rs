//! The operations: check, batch, peek, settle, charge, refund and reset.

use std::borrow::Cow;
use std::collections::HashMap;

use futures_util::future::join_all;
use http::StatusCode;
use serde::Serialize;
use tidegate::request::{GateRequest, GateRequestKind};
use tidegate::store::Store;
use tidegate::{AnyStore, CheckError, Cost, Decision, Gate, Limiter, Subject, Usage, Verdict};
use tidegate_core::encoded_key;
use tokio::sync::SemaphorePermit;

use super::Response;
use super::problem::Problem;
use super::receipt::Receipt;
use super::request::{BatchRequest, CheckRequest, CheckTarget, CostRule, SettleRequest};
use super::response::{CheckResponse, from_verdict, json};
use super::response_body::check_room_for_batch;
use crate::activity::{Label, Observed};
use crate::inline::Inline;
use crate::log::masked_key;
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
    pub(super) async fn permit(self) -> Option<SemaphorePermit<'a>> {
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

/// `POST /v1/check`.
pub(super) async fn check(
    caller: Caller<'_>,
    request: &CheckRequest<'_>,
    denied: StatusCode,
) -> Result<Response, Problem> {
    let target = request.target(CostRule::Optional)?;
    if request.receipt {
        return check_with_receipt(caller, &target, request.details, denied).await;
    }
    let checked = decide(caller, &target, request.details).await?;
    Ok(checked.response(caller, request.details, denied))
}

/// `POST /v1/peek`: the decision that a check would get. It takes nothing.
pub(super) async fn peek(
    caller: Caller<'_>,
    request: &CheckRequest<'_>,
) -> Result<Response, Problem> {
    let target = request.target(CostRule::Optional)?;
    request.no_receipt()?;
    let _permit = caller.permit().await;
    let gate = &caller.active.gate;
    let verdict = match Operand::new(gate, &target)? {
        Operand::Named(subject) => {
            let peek = gate.peek(subject.policy, subject.key.borrowed());
            of_subject(peek, subject).await.map_err(problem)?
        }
        Operand::Inline { inline, key, cost } => {
            let peek = inline.limiter.peek(&key[..]).cost(cost).with_limits();
            let (decision, limits) = peek.await.map_err(problem)?;
            Verdict::from_decision(inline.label, decision).with_limits(limits)
        }
    };
    let checked = CheckVerdict {
        verdict,
        is_inline: target.policy().is_none(),
    };
    Ok(checked.response(caller, request.details, StatusCode::OK))
}

impl CheckVerdict {
    fn body(&self, has_details: bool) -> CheckResponse<'_> {
        let body = CheckResponse::new(&self.verdict, self.is_inline);
        if has_details {
            body.with_details(&self.verdict, self.is_inline)
        } else {
            body
        }
    }

    fn response(&self, caller: Caller<'_>, has_details: bool, denied: StatusCode) -> Response {
        let body = self.body(has_details);
        from_verdict(caller.active, &self.verdict, &body, denied)
    }
}

/// A target that is ready to run: limits that came with the request are compiled, and their key is
/// encoded.
enum Operand<'a> {
    Named(&'a Subject<'a>),
    Inline {
        inline: Inline,
        key: Cow<'a, [u8]>,
        cost: Cost,
    },
}

impl<'a> Operand<'a> {
    fn new(gate: &Gate<AnyStore>, target: &'a CheckTarget<'_>) -> Result<Self, Problem> {
        Ok(match target {
            CheckTarget::Named(subject) => Self::Named(subject),
            CheckTarget::Inline {
                limits,
                key,
                tenant,
                cost,
            } => Self::Inline {
                inline: inline(gate, limits)?,
                key: encoded_key(*tenant, key).map_err(|error| Problem::bad(error.to_string()))?,
                cost: *cost,
            },
        })
    }
}

/// Sets the cost, tier and tenant of a request to the gate.
fn of_subject<'a, K: GateRequestKind>(
    mut request: GateRequest<'a, AnyStore, K>,
    subject: &'a Subject<'_>,
) -> GateRequest<'a, AnyStore, K> {
    request = request.cost(subject.cost);
    if let Some(tier) = subject.tier {
        request = request.tier(tier);
    }
    if let Some(tenant) = subject.tenant {
        request = request.tenant(tenant);
    }
    request
}

/// Checks with a receipt.
async fn check_with_receipt(
    caller: Caller<'_>,
    target: &CheckTarget<'_>,
    has_details: bool,
    denied: StatusCode,
) -> Result<Response, Problem> {
    let Caller { server, active, .. } = caller;
    let unavailable = || {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the system's random source is not available",
        )
    };
    let receipt = Receipt::new(target).ok_or_else(unavailable)?;
    let _permit = caller.permit().await;
    let (verdict, is_kept) = match Operand::new(&active.gate, target)? {
        Operand::Named(subject) => {
            let decided = active.gate.decide_with_receipt(subject, &receipt.id).await;
            let (verdict, is_kept) = decided.map_err(problem)?;
            let subjects = std::slice::from_ref(subject);
            server.activity.verdict(&server.clock, subjects, &verdict);
            (verdict, is_kept)
        }
        Operand::Inline { inline, key, cost } => {
            let checked = inline
                .limiter
                .check_with_receipt_id(&key, cost, &receipt.id)
                .await;
            let (admission, is_kept) = checked.map_err(problem)?;
            if cost > Cost::ZERO {
                server.metrics.inline(&admission.decision);
            }
            observe_inline(server, target, &inline, cost, &admission.decision);
            let verdict = Verdict::from_decision(inline.label, admission.decision);
            (verdict.with_limits(admission.limits), is_kept)
        }
    };
    let checked = CheckVerdict {
        verdict,
        is_inline: target.policy().is_none(),
    };
    let mut body = checked.body(has_details);
    body.receipt = Some(if is_kept { receipt.to_text() } else { None });
    Ok(from_verdict(active, &checked.verdict, &body, denied))
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
    let settled = match Operand::new(&active.gate, &target)? {
        Operand::Named(subject) => {
            let settled = active.gate.settle(subject, &receipt.id).await;
            settled.map_err(problem)?.map(|usage| (usage.into(), None))
        }
        Operand::Inline { inline, key, cost } => {
            let settled = inline
                .limiter
                .settle_receipt_id(&key, &receipt.id, cost)
                .await;
            let settled = settled.map_err(problem)?;
            settled.map(|settled| (settled.decision, Some(inline.limiter)))
        }
    };
    match settled {
        Some((decision, limiter)) => Ok(usage_response(&target, &decision, limiter.as_ref())),
        None => Err(Problem::new(
            StatusCode::CONFLICT,
            "the receipt is unknown, has expired or was settled before",
        )),
    }
}

/// Returns the response to a charge, refund or settlement.
fn usage_response(
    target: &CheckTarget<'_>,
    decision: &Decision,
    limiter: Option<&Limiter<AnyStore>>,
) -> Response {
    let limits = limiter.map(|limiter| limiter.policy().limits());
    json(&CheckResponse::from_decision(
        decision,
        target.policy(),
        limits,
    ))
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
            .target(CostRule::Optional)
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
        let has_details = batch.checks.iter().any(|request| request.details);
        return together(caller, &asked, has_details).await;
    }
    let details: Vec<bool> = batch.checks.iter().map(|request| request.details).collect();
    let checked = decide_each(caller, &asked, &details).await;
    let checked = checked
        .into_iter()
        .enumerate()
        .map(|(number, verdict)| verdict.map_err(|problem| named(number, problem)));
    let checked = checked.collect::<Result<Vec<CheckVerdict>, Problem>>()?;
    let mut results = Vec::with_capacity(checked.len());
    for (checked, request) in checked.iter().zip(&batch.checks) {
        results.push(checked.body(request.details));
    }
    Ok(json(&Results { results }))
}

/// Decides each check on its own. In memory they run in order. On a remote store, checks of
/// different keys share round trips, and checks of one key run in order.
async fn decide_each(
    caller: Caller<'_>,
    asked: &[CheckTarget<'_>],
    details: &[bool],
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
            let has_details = details.get(number).copied().unwrap_or(false);
            checked.push((number, decide(caller, &asked[number], has_details).await));
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
async fn together(
    caller: Caller<'_>,
    asked: &[CheckTarget<'_>],
    has_details: bool,
) -> Result<Response, Problem> {
    let _permit = caller.permit().await;
    let mut subjects = Vec::with_capacity(asked.len());
    for target in asked {
        let CheckTarget::Named(subject) = target else {
            return Err(Problem::bad(
                "`together` is for policies by name: expected no `limits`",
            ));
        };
        subjects.push(subject.clone());
    }
    let checked = CheckVerdict {
        verdict: decide_subjects(caller, &subjects, has_details).await?,
        is_inline: false,
    };
    Ok(checked.response(caller, has_details, StatusCode::OK))
}

pub(super) async fn decide_subjects(
    caller: Caller<'_>,
    subjects: &[Subject<'_>],
    has_details: bool,
) -> Result<Verdict, Problem> {
    let Caller { server, active, .. } = caller;
    let decided = if has_details {
        active.gate.decide_with_limits(subjects).await
    } else {
        match active.gate.decide(subjects).ready_or_future() {
            Ok(verdict) => verdict,
            Err(future) => future.await,
        }
    };
    let verdict = decided.map_err(problem)?;
    server.activity.verdict(&server.clock, subjects, &verdict);
    Ok(verdict)
}

/// Reports a decision under limits that came with the request.
fn observe_inline(
    server: &Server,
    target: &CheckTarget<'_>,
    inline: &Inline,
    cost: Cost,
    decision: &Decision,
) {
    let (tenant, _, key) = target.client();
    let policy = inline.limiter.policy();
    server.activity.observe(
        &server.clock,
        &Observed {
            label: Label::Inline(policy),
            tenant,
            key,
            cost,
            is_denied: decision.is_denied(),
            retry_after: decision.retry_after(),
            limit: policy.limits().get(decision.limit_index()),
        },
    );
}

/// Checks that the policy exists and the limits are valid, before anything is taken.
fn is_known(gate: &Gate<AnyStore>, target: &CheckTarget<'_>) -> Result<(), Problem> {
    match target {
        CheckTarget::Named(subject) => gate
            .ensure_tier(subject.policy, subject.tier)
            .map_err(problem),
        CheckTarget::Inline { limits, .. } => inline(gate, limits).map(drop),
    }
}

async fn decide(
    caller: Caller<'_>,
    target: &CheckTarget<'_>,
    has_details: bool,
) -> Result<CheckVerdict, Problem> {
    let Caller { server, active, .. } = caller;
    let _permit = caller.permit().await;
    let verdict = match Operand::new(&active.gate, target)? {
        Operand::Named(subject) => {
            let subjects = std::slice::from_ref(subject);
            decide_subjects(caller, subjects, has_details).await?
        }
        Operand::Inline { inline, key, cost } => {
            let check = inline.limiter.check(&key[..]).cost(cost);
            let (decision, limits) = if has_details {
                check.with_limits().await.map_err(problem)?
            } else {
                (check.await.map_err(problem)?, Vec::new())
            };
            if cost > Cost::ZERO {
                server.metrics.inline(&decision);
            }
            observe_inline(server, target, &inline, cost, &decision);
            Verdict::from_decision(inline.label, decision).with_limits(limits)
        }
    };
    Ok(CheckVerdict {
        verdict,
        is_inline: target.policy().is_none(),
    })
}

/// `POST /v1/charge`: takes a cost whatever the limits say.
pub(super) async fn charge(
    caller: Caller<'_>,
    request: &CheckRequest<'_>,
) -> Result<Response, Problem> {
    let target = request.target(CostRule::Required)?;
    request.no_receipt()?;
    let _permit = caller.permit().await;
    let gate = &caller.active.gate;
    match Operand::new(gate, &target)? {
        Operand::Named(subject) => {
            let charge = gate.charge(subject.policy, subject.key.borrowed(), subject.cost);
            let usage = of_subject(charge, subject).await.map_err(problem)?;
            usage_or_conflict(&target, usage)
        }
        Operand::Inline { inline, key, cost } => {
            let usage = inline.limiter.charge(&key[..], cost).await;
            let decision = usage.map_err(problem)?.into();
            Ok(usage_response(&target, &decision, Some(&inline.limiter)))
        }
    }
}

/// `POST /v1/refund`: gives back the cost of a request that did not happen.
pub(super) async fn refund(
    caller: Caller<'_>,
    request: &CheckRequest<'_>,
) -> Result<Response, Problem> {
    let target = request.target(CostRule::Optional)?;
    request.no_receipt()?;
    let _permit = caller.permit().await;
    let gate = &caller.active.gate;
    match Operand::new(gate, &target)? {
        Operand::Named(subject) => {
            let refund = gate.refund(subject.policy, subject.key.borrowed(), subject.cost);
            let usage = of_subject(refund, subject).await.map_err(problem)?;
            usage_or_conflict(&target, usage)
        }
        Operand::Inline { inline, key, cost } => {
            let usage = inline.limiter.refund(&key[..], cost).await;
            let decision = usage.map_err(problem)?.into();
            Ok(usage_response(&target, &decision, Some(&inline.limiter)))
        }
    }
}

/// Returns the response to a charge or refund under a named policy.
fn usage_or_conflict(target: &CheckTarget<'_>, usage: Option<Usage>) -> Result<Response, Problem> {
    match usage {
        Some(usage) => Ok(usage_response(target, &usage, None)),
        None => Err(Problem::new(
            StatusCode::CONFLICT,
            "the key has no limit, or is blocked: nothing is counted",
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
    request.no_receipt()?;
    let was_used = match Operand::new(&active.gate, &target)? {
        Operand::Named(subject) => {
            let reset = active.gate.reset(subject.policy, subject.key.borrowed());
            of_subject(reset, subject).await.map_err(problem)?
        }
        Operand::Inline { inline, key, .. } => {
            inline.limiter.reset(&key[..]).await.map_err(problem)?
        }
    };
    let policy = target.policy().unwrap_or("(inline limits)");
    let (_, _, key) = target.client();
    let (key, caller_address) = (masked_key(key), caller.timeouts.peer());
    tracing::info!(policy, key, caller = %caller_address, was_used, "key reset");
    let checked = decide(caller, &target, request.details).await?;
    let mut body = checked.body(request.details);
    body.reset = Some(was_used);
    let response = from_verdict(active, &checked.verdict, &body, StatusCode::OK);
    Ok(response)
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
        | CheckError::UnknownTier { .. }
        | CheckError::TwoTiers { .. } => Problem::bad(error.to_string()),
        other => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, other.to_string()),
    }
}
