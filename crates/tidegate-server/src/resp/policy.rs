//! Commands for named policies: `TG.CHECK`, `TG.PEEK`, `TG.CHARGE`, `TG.REFUND` and `TG.RESET`.
//!
//! ```text
//! TG.CHECK  policy key [COST cost] [TIER tier] [TENANT tenant]
//! TG.PEEK   policy key [COST cost] [TIER tier] [TENANT tenant]
//! TG.CHARGE policy key COST cost [TIER tier] [TENANT tenant]
//! TG.REFUND policy key [COST cost] [TIER tier] [TENANT tenant]
//! TG.RESET  policy key [TENANT tenant]
//! ```
//!
//! `TG.RESET` replies 1 or 0. The others reply a decision, see [`write_decision`].

use tidegate::request::{GateRequest, GateRequestKind};
use tidegate::{AnyStore, CheckError, Cost, Decision, DenialReason, Gate, Subject, Verdict};
use tidegate_http::microseconds;

use super::frame::Words;
use super::reply::{Replies, Version};
use crate::server::Server;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PolicyOperation {
    Check,
    Peek,
    Charge,
    Refund,
    Reset,
}

/// The arguments of a command.
pub(super) struct PolicyCommand<'a> {
    pub(super) operation: PolicyOperation,
    pub(super) policy: &'a str,
    pub(super) key: &'a [u8],
    cost: Cost,
    tier: Option<&'a str>,
    tenant: Option<&'a str>,
}

impl PolicyOperation {
    pub(super) fn of(name: &[u8]) -> Option<Self> {
        let (prefix, name) = name.split_at_checked(3)?;
        if !prefix.eq_ignore_ascii_case(b"TG.") {
            return None;
        }
        const NAMES: [(&[u8], PolicyOperation); 5] = [
            (b"CHECK", PolicyOperation::Check),
            (b"PEEK", PolicyOperation::Peek),
            (b"CHARGE", PolicyOperation::Charge),
            (b"REFUND", PolicyOperation::Refund),
            (b"RESET", PolicyOperation::Reset),
        ];
        let found = NAMES
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, operation)| *operation)
    }

    fn usage(self) -> &'static str {
        match self {
            Self::Check => "TG.CHECK policy key [COST cost] [TIER tier] [TENANT tenant]",
            Self::Peek => "TG.PEEK policy key [COST cost] [TIER tier] [TENANT tenant]",
            Self::Charge => "TG.CHARGE policy key COST cost [TIER tier] [TENANT tenant]",
            Self::Refund => "TG.REFUND policy key [COST cost] [TIER tier] [TENANT tenant]",
            Self::Reset => "TG.RESET policy key [TENANT tenant]",
        }
    }
}

impl<'a> PolicyCommand<'a> {
    /// Parses a command. Nothing is taken if it is invalid.
    pub(super) fn read(
        operation: PolicyOperation,
        words: &Words<'a>,
        gate: &Gate<AnyStore>,
    ) -> Result<Self, String> {
        let usage = || format!("ERR syntax error: expected {}", operation.usage());
        let [_, policy, key, options @ ..] = &words[..] else {
            return Err(usage());
        };
        let text = |word: &'a [u8]| std::str::from_utf8(word).map_err(|_| usage());
        let mut command = Self {
            operation,
            policy: text(policy)?,
            key,
            cost: Cost::ONE,
            tier: None,
            tenant: None,
        };
        let (pairs, rest) = options.as_chunks::<2>();
        let mut has_cost = false;
        for [name, value] in pairs {
            let value = text(value)?;
            let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
            if is(b"COST") && operation != PolicyOperation::Reset && !has_cost {
                command.cost = value.parse().map_err(|error| format!("ERR {error}"))?;
                has_cost = true;
            } else if is(b"TIER") && operation != PolicyOperation::Reset && command.tier.is_none() {
                command.tier = Some(value);
            } else if is(b"TENANT") && command.tenant.is_none() {
                command.tenant = Some(value);
            } else {
                return Err(usage());
            }
        }
        if !rest.is_empty() || (operation == PolicyOperation::Charge && !has_cost) {
            return Err(usage());
        }
        if key.is_empty() {
            return Err("ERR the key is empty: expected at least one byte".to_owned());
        }
        gate.ensure_tier(command.policy, command.tier)
            .map_err(|error| format!("ERR {error}"))?;
        Ok(command)
    }

    /// Runs the command and writes its reply. Returns whether a reset found anything.
    pub(super) async fn run(
        &self,
        server: &Server,
        gate: &Gate<AnyStore>,
        version: Version,
        replies: &mut Replies,
    ) -> Result<bool, CheckError> {
        let Self { policy, key, .. } = *self;
        match self.operation {
            PolicyOperation::Check => {
                let verdict = self.with_options(gate.check(policy, key)).await?;
                let subject = Subject {
                    tenant: self.tenant,
                    cost: self.cost,
                    ..Subject::new(policy, key)
                };
                server.activity.verdict(&server.clock, &[subject], &verdict);
                write_verdict(&verdict, version, replies);
            }
            PolicyOperation::Peek => {
                let verdict = self.with_options(gate.peek(policy, key)).await?;
                write_verdict(&verdict, version, replies);
            }
            PolicyOperation::Charge | PolicyOperation::Refund => {
                let usage = if self.operation == PolicyOperation::Charge {
                    self.with_options(gate.charge(policy, key, self.cost))
                        .await?
                } else {
                    self.with_options(gate.refund(policy, key, self.cost))
                        .await?
                };
                match usage {
                    Some(usage) => write_decision(&usage, usage.reason(), None, version, replies),
                    None => replies.null(version),
                }
            }
            PolicyOperation::Reset => {
                let was_used = self.with_options(gate.reset(policy, key)).await?;
                replies.integer(i64::from(was_used));
                return Ok(was_used);
            }
        }
        Ok(false)
    }

    fn with_options<'b, K: GateRequestKind>(
        &'b self,
        mut request: GateRequest<'b, AnyStore, K>,
    ) -> GateRequest<'b, AnyStore, K> {
        request = request.cost(self.cost);
        if let Some(tier) = self.tier {
            request = request.tier(tier);
        }
        if let Some(tenant) = self.tenant {
            request = request.tenant(tenant);
        }
        request
    }
}

fn write_verdict(verdict: &Verdict, version: Version, replies: &mut Replies) {
    let nearest = verdict.nearest().or_else(|| verdict.decisions().first());
    let denied_by = verdict.denial().and_then(|policy| policy.limit());
    let denied_by = denied_by.map(ToString::to_string);
    match nearest.and_then(|policy| policy.decision()) {
        Some(decision) => {
            // A shadow policy that would deny does not.
            let is_allowed = verdict.is_allowed();
            let reason = verdict.reason();
            write_figures(
                is_allowed,
                decision,
                reason,
                denied_by.as_deref(),
                version,
                replies,
            );
        }
        // An exception: unlimited or blocked.
        None => {
            replies.array(8);
            replies.integer(i64::from(verdict.is_allowed()));
            for number in [-1, -1, if verdict.is_allowed() { 0 } else { -1 }, 0, 0] {
                replies.integer(number);
            }
            write_text(verdict.reason().map(DenialReason::name), version, replies);
            replies.null(version);
        }
    }
}

/// Writes a decision as an array of eight: allowed (1 or 0), limit, remaining, retry_after,
/// reset_after and delay in microseconds (retry_after is 0 if allowed, -1 for never or unknown),
/// the reason for a denial, and the limit that denied.
///
/// Limit and remaining are -1 if they are unknown.
fn write_decision(
    decision: &Decision,
    reason: Option<DenialReason>,
    denied_by: Option<&str>,
    version: Version,
    replies: &mut Replies,
) {
    write_figures(
        decision.is_allowed(),
        decision,
        reason,
        denied_by,
        version,
        replies,
    );
}

fn write_figures(
    is_allowed: bool,
    decision: &Decision,
    reason: Option<DenialReason>,
    denied_by: Option<&str>,
    version: Version,
    replies: &mut Replies,
) {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let known = |figure: u64| {
        if decision.has_figures() {
            number(figure)
        } else {
            -1
        }
    };
    let retry_after = match decision.retry_after() {
        _ if is_allowed => 0,
        Some(wait) if decision.has_figures() => number(microseconds(wait)),
        _ => -1,
    };
    replies.array(8);
    replies.integer(i64::from(is_allowed));
    replies.integer(number(decision.limit()));
    replies.integer(known(decision.remaining()));
    replies.integer(retry_after);
    replies.integer(known(microseconds(decision.reset_after())));
    replies.integer(number(microseconds(decision.delay())));
    write_text(reason.map(DenialReason::name), version, replies);
    write_text(denied_by, version, replies);
}

fn write_text(text: Option<&str>, version: Version, replies: &mut Replies) {
    match text {
        Some(text) => replies.bulk(text.as_bytes()),
        None => replies.null(version),
    }
}
