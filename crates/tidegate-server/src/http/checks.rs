//! Checks, looks, refunds and resets.

use std::collections::HashMap;

use futures_util::future::join_all;
use http::StatusCode;
use serde::Serialize;
use tidegate::{AnyStore, CheckError, Cost, Gate, Store, Subject, Verdict};
use tidegate_core::composed_key;
use tokio::sync::SemaphorePermit;

use super::Response;
use super::answer::{Told, json, of_verdict};
use super::pending::check_room_for_batch;
use super::problem::Problem;
use super::receipt::Receipt;
use super::request::{About, Batch, Cost1, Question, Settle};
use crate::inline::Inline;
use crate::net::Watch;
use crate::server::{Live, Server};

/// A connection of a server that asks, under one configuration.
#[derive(Clone, Copy)]
pub(super) struct Caller<'a> {
    pub(super) server: &'a Server,
    pub(super) live: &'a Live,
    /// Bounds what the connection has on its way to a remote store, and to its client.
    pub(super) watch: &'a Watch,
}

impl<'a> Caller<'a> {
    /// Waits until the connection may ask a remote store one question more.
    async fn permit(self) -> Option<SemaphorePermit<'a>> {
        if !self.live.gate.store().is_remote() {
            return None;
        }
        self.watch.in_flight().acquire().await.ok()
    }
}

/// A verdict, and whether it is of limits that came along.
struct Ruled {
    verdict: Verdict,
    is_inline: bool,
}

/// `POST /v1/check`, and `/v1/peek`, which takes nothing.
pub(super) async fn check(
    caller: Caller<'_>,
    question: &Question<'_>,
    cost: Cost1,
    denied: StatusCode,
) -> Result<Response, Problem> {
    let about = question.about(cost)?;
    if question.receipt {
        return check_with_receipt(caller, &about, cost, denied).await;
    }
    let ruled = decide(caller, &about).await?;
    let told = match cost {
        Cost1::May => Told::of(&ruled.verdict, ruled.is_inline),
        Cost1::Never => Told::of_look(&ruled.verdict, ruled.is_inline),
    };
    Ok(of_verdict(caller.live, &ruled.verdict, &told, denied))
}

/// A check that returns a receipt.
async fn check_with_receipt(
    caller: Caller<'_>,
    about: &About<'_>,
    cost: Cost1,
    denied: StatusCode,
) -> Result<Response, Problem> {
    let Caller { server, live, .. } = caller;
    if cost == Cost1::Never {
        return Err(Problem::bad("`receipt` is for checks: this takes nothing"));
    }
    let unavailable = || {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the system's random source is not available",
        )
    };
    let receipt = Receipt::new(about).ok_or_else(unavailable)?;
    let _permit = caller.permit().await;
    let (verdict, is_inline, is_kept) = match about {
        About::Named(subject) => {
            let (verdict, is_kept) = live
                .gate
                .decide_with_receipt(*subject, &receipt.id)
                .await
                .map_err(problem)?;
            (verdict, false, is_kept)
        }
        About::Inline {
            limits,
            key,
            tenant,
            cost,
        } => {
            let Inline { label, limiter } = inline(&live.gate, limits)?;
            let key = composed_key(*tenant, key.as_bytes())
                .map_err(|error| Problem::bad(error.to_string()))?;
            let checked = limiter
                .check_with_receipt_id(&key, *cost, &receipt.id)
                .await;
            let (decision, is_kept) = checked.map_err(problem)?;
            if *cost > Cost::ZERO {
                server.metrics.inline(&decision);
            }
            (Verdict::of_one(label, decision), true, is_kept)
        }
    };
    let mut told = Told::of(&verdict, is_inline);
    told.receipt = Some(if is_kept { receipt.to_text() } else { None });
    Ok(of_verdict(live, &verdict, &told, denied))
}

/// `POST /v1/settle`: corrects a request to its actual cost, by its receipt, once.
pub(super) async fn settle(caller: Caller<'_>, settle: &Settle<'_>) -> Result<Response, Problem> {
    let live = caller.live;
    let _permit = caller.permit().await;
    let receipt = Receipt::of_text(settle.receipt())
        .ok_or_else(|| Problem::bad("`receipt` is invalid: expected one that a check returned"))?;
    let about = receipt.about(settle.cost()?);
    let settled = match &about {
        About::Named(subject) => live
            .gate
            .settle(*subject, &receipt.id)
            .await
            .map_err(problem)?,
        About::Inline {
            limits,
            key,
            tenant,
            cost,
        } => {
            let key = composed_key(*tenant, key.as_bytes())
                .map_err(|error| Problem::bad(error.to_string()))?;
            inline(&live.gate, limits)?
                .limiter
                .settle_receipt_id(&key, &receipt.id, *cost)
                .await
                .map_err(problem)?
        }
    };
    match settled {
        Some(decision) => Ok(json(&Told::of_decision(
            &decision,
            about.subject().map(|subject| subject.policy),
        ))),
        None => Err(Problem::new(
            StatusCode::CONFLICT,
            "the receipt is unknown, has expired or was settled before",
        )),
    }
}

#[derive(Serialize)]
struct Results<'a> {
    results: Vec<Told<'a>>,
}

/// `POST /v1/check:batch`: each for itself, in order; or together. Nothing is taken if one of them is no question.
pub(super) async fn batch(caller: Caller<'_>, batch: &Batch<'_>) -> Result<Response, Problem> {
    let live = caller.live;
    let count = batch.checks.len();
    if count == 0 || count > live.config.bounds.max_batch {
        let most = live.config.bounds.max_batch;
        return Err(Problem::bad(format!(
            "there are {count} checks: expected 1 to {most}"
        )));
    }
    check_room_for_batch(&caller.server.responses, caller.watch, count)?;
    let named = |number: usize, problem: Problem| problem.within(&format!("checks[{number}]"));
    let mut asked = Vec::with_capacity(count);
    for (number, question) in batch.checks.iter().enumerate() {
        let about = question
            .about(Cost1::May)
            .map_err(|problem| named(number, problem))?;
        if question.receipt {
            return Err(named(
                number,
                Problem::bad("`receipt` is for single checks: expected none in a batch"),
            ));
        }
        is_known(&live.gate, &about).map_err(|problem| named(number, problem))?;
        asked.push(about);
    }
    if batch.together {
        return together(caller, &asked).await;
    }
    let ruled = decide_each(caller, &asked).await;
    let ruled = ruled
        .into_iter()
        .enumerate()
        .map(|(number, ruled)| ruled.map_err(|problem| named(number, problem)));
    let ruled = ruled.collect::<Result<Vec<Ruled>, Problem>>()?;
    let results = ruled
        .iter()
        .map(|ruled| Told::of(&ruled.verdict, ruled.is_inline))
        .collect();
    Ok(json(&Results { results }))
}

/// Decides on each for itself: in memory one after the other, across a network so that those of different keys travel
/// together. Those of one key are decided in order.
async fn decide_each(caller: Caller<'_>, asked: &[About<'_>]) -> Vec<Result<Ruled, Problem>> {
    let gate = &caller.live.gate;
    let mut rows: Vec<Vec<usize>> = Vec::new();
    let mut row_of: HashMap<_, usize> = HashMap::new();
    for (number, about) in asked.iter().enumerate() {
        let row = if gate.store().is_remote() {
            *row_of.entry(about.whose()).or_insert(rows.len())
        } else {
            0
        };
        match rows.get_mut(row) {
            Some(row) => row.push(number),
            None => rows.push(vec![number]),
        }
    }
    let in_order = async |row: Vec<usize>| {
        let mut ruled = Vec::with_capacity(row.len());
        for number in row {
            ruled.push((number, decide(caller, &asked[number]).await));
        }
        ruled
    };
    let ruled = join_all(rows.into_iter().map(in_order)).await;
    let mut ruled: Vec<(usize, Result<Ruled, Problem>)> = ruled.into_iter().flatten().collect();
    ruled.sort_by_key(|(number, _)| *number);
    ruled.into_iter().map(|(_, ruled)| ruled).collect()
}

/// One request that all of them must meet.
async fn together(caller: Caller<'_>, asked: &[About<'_>]) -> Result<Response, Problem> {
    let live = caller.live;
    let _permit = caller.permit().await;
    let Some(subjects) = asked
        .iter()
        .map(About::subject)
        .collect::<Option<Vec<Subject<'_>>>>()
    else {
        return Err(Problem::bad(
            "`together` is for policies by name: expected no `limits`",
        ));
    };
    let verdict = match live.gate.decide_at_once(&subjects) {
        Some(verdict) => verdict,
        None => live.gate.decide(&subjects).await,
    };
    let verdict = verdict.map_err(problem)?;
    Ok(of_verdict(
        live,
        &verdict,
        &Told::of(&verdict, false),
        StatusCode::OK,
    ))
}

/// Whether a question can be answered, before anything is taken.
fn is_known(gate: &Gate<AnyStore>, about: &About<'_>) -> Result<(), Problem> {
    match about {
        About::Named(subject) => gate.knows(subject.policy).map_err(problem),
        About::Inline { limits, .. } => inline(gate, limits).map(drop),
    }
}

async fn decide(caller: Caller<'_>, about: &About<'_>) -> Result<Ruled, Problem> {
    let Caller { server, live, .. } = caller;
    let gate = &live.gate;
    let _permit = caller.permit().await;
    let verdict = match about {
        About::Named(subject) => {
            let subjects = std::slice::from_ref(subject);
            let verdict = match gate.decide_at_once(subjects) {
                Some(verdict) => verdict,
                None => gate.decide(subjects).await,
            };
            return Ok(Ruled {
                verdict: verdict.map_err(problem)?,
                is_inline: false,
            });
        }
        About::Inline {
            limits,
            key,
            tenant,
            cost,
        } => {
            let Inline { label, limiter } = inline(gate, limits)?;
            let key = composed_key(*tenant, key.as_bytes())
                .map_err(|error| Problem::bad(error.to_string()))?;
            let decision = limiter.check(&key[..]).cost(*cost).await.map_err(problem)?;
            if *cost > Cost::ZERO {
                server.metrics.inline(&decision);
            }
            Verdict::of_one(label, decision)
        }
    };
    Ok(Ruled {
        verdict,
        is_inline: true,
    })
}

/// `POST /v1/refund`: gives back what a request took that did not happen after all.
pub(super) async fn refund(
    caller: Caller<'_>,
    question: &Question<'_>,
) -> Result<Response, Problem> {
    let live = caller.live;
    let _permit = caller.permit().await;
    let about = question.about(Cost1::May)?;
    if question.receipt {
        return Err(Problem::bad("`receipt` is for checks: expected none"));
    }
    let decision = match &about {
        About::Named(subject) => live.gate.refund(*subject).await.map_err(problem)?,
        About::Inline {
            limits,
            key,
            tenant,
            cost,
        } => {
            let key = composed_key(*tenant, key.as_bytes())
                .map_err(|error| Problem::bad(error.to_string()))?;
            Some(
                inline(&live.gate, limits)?
                    .limiter
                    .refund(&key[..], *cost)
                    .await
                    .map_err(problem)?,
            )
        }
    };
    match decision {
        Some(decision) => {
            let policy = about.subject().map(|subject| subject.policy);
            Ok(json(&Told::of_decision(&decision, policy)))
        }
        None => Err(Problem::new(
            StatusCode::CONFLICT,
            "this key has no limit, or is blocked: nothing was ever taken",
        )),
    }
}

/// `POST /v1/reset`: forgets what a key has used, and answers what it has now.
pub(super) async fn reset(
    caller: Caller<'_>,
    question: &Question<'_>,
) -> Result<Response, Problem> {
    let live = caller.live;
    let about = question.about(Cost1::Never)?;
    match &about {
        About::Named(subject) => {
            live.gate
                .reset(subject.policy, subject.key, subject.tenant)
                .await
                .map_err(problem)?;
        }
        About::Inline {
            limits,
            key,
            tenant,
            ..
        } => {
            let key = composed_key(*tenant, key.as_bytes())
                .map_err(|error| Problem::bad(error.to_string()))?;
            inline(&live.gate, limits)?
                .limiter
                .reset(&key[..])
                .await
                .map_err(problem)?;
        }
    }
    let policy = about
        .subject()
        .map_or("limits of its own", |subject| subject.policy);
    tracing::info!(policy, "a key was reset");
    let ruled = decide(caller, &about).await?;
    let told = Told::of_look(&ruled.verdict, ruled.is_inline);
    Ok(of_verdict(live, &ruled.verdict, &told, StatusCode::OK))
}

fn inline(gate: &Gate<AnyStore>, limits: &str) -> Result<Inline, Problem> {
    Inline::find(gate, limits).map_err(|error| Problem::bad(format!("`limits`: {error}")))
}

fn problem(error: CheckError) -> Problem {
    match error {
        CheckError::UnknownPolicy { .. } => Problem::not_found(format!(
            "{error}; `limits` such as \"100/minute\" in place of `policy` need none"
        )),
        CheckError::Store(_) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        CheckError::EmptyKey(_)
        | CheckError::Cost(_)
        | CheckError::TooManyPolicies { .. }
        | CheckError::TwoTiers { .. } => Problem::bad(error.to_string()),
        other => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, other.to_string()),
    }
}
