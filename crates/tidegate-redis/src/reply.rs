//! Parses replies. The script decides, and the state that it returns explains the decision.

use std::collections::HashMap;

use redis::Value;
use tidegate_core::remote::{self, Stored, stored_limits};
use tidegate_core::{
    Admission, Algorithm, BucketNumbers, Claim, Claims, Cost, Limit, Record, Settlement, Timestamp,
};

use crate::error::ReplyError;
use crate::operation::{Operation, OperationKind};
use crate::plan::RedisPlan;
use crate::rate::{Refill, period_us};

/// The reply to one operation.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    /// The decision, with the claims of an admitted request. For a settlement, the claims are those
    /// that remain to be settled.
    pub(crate) admission: Admission,
    /// The admission of the check that was decided together with this one.
    pub(crate) beside: Option<Admission>,
    /// The cost that a charge dropped.
    pub(crate) dropped: Cost,
    /// The bytes of a receipt.
    pub(crate) bytes: Option<Vec<u8>>,
    /// The number of deleted keys.
    pub(crate) deleted: u64,
}

/// Parses the replies to operations that shared a call, in order.
pub(crate) fn parse(
    operations: &[&Operation],
    is_atomic: bool,
    value: &Value,
) -> Result<Vec<Result<Reply, ReplyError>>, ReplyError> {
    let Some(first) = operations.first() else {
        return Ok(Vec::new());
    };
    if matches!(
        first.kind,
        OperationKind::Reset | OperationKind::StoreReceipt(..) | OperationKind::TakeReceipt
    ) {
        return Ok(operations
            .iter()
            .map(|operation| Ok(without_decision(&operation.plan, value)))
            .collect());
    }
    let reply = ScriptReply::parse(value, operations)?;
    let is_denied = is_atomic && reply.verdicts.iter().any(|verdict| *verdict != b'1');
    let mut explainer = Explainer {
        reply: &reply,
        is_denied,
        next_log: 0,
        records: HashMap::new(),
    };
    Ok(operations
        .iter()
        .enumerate()
        .map(|(index, operation)| explainer.reply(index, operation))
        .collect())
}

/// Returns the reply to an operation that is not a decision: that of an empty record, with the
/// bytes that were returned.
fn without_decision(plan: &RedisPlan, value: &Value) -> Reply {
    let decision = remote::decide(
        plan.policy(),
        &mut Record::default(),
        Timestamp::default(),
        Cost::ZERO,
    );
    let (mut bytes, mut deleted) = (None, 0);
    match value {
        Value::BulkString(text) => bytes = Some(text.clone()),
        Value::Okay => bytes = Some(Vec::new()),
        Value::Int(count) => deleted = u64::try_from(*count).unwrap_or(0),
        _ => {}
    }
    Reply {
        admission: Admission::look(decision),
        beside: None,
        dropped: Cost::ZERO,
        bytes,
        deleted,
    }
}

/// The parts of a script's reply, with checked lengths.
struct ScriptReply<'a> {
    now: Timestamp,
    verdicts: &'a [u8],
    records: &'a [Value],
    logs: &'a [Value],
}

impl<'a> ScriptReply<'a> {
    fn parse(value: &'a Value, operations: &[&Operation]) -> Result<Self, ReplyError> {
        let Value::Array(parts) = value else {
            return Err(ReplyError::Malformed);
        };
        let (now, verdicts, records, logs) = match &parts[..] {
            [
                Value::Int(now),
                Value::BulkString(verdicts),
                Value::Array(records),
            ] => (now, verdicts, records, &[][..]),
            [
                Value::Int(now),
                Value::BulkString(verdicts),
                Value::Array(records),
                Value::Array(logs),
            ] => (now, verdicts, records, &logs[..]),
            _ => return Err(ReplyError::Malformed),
        };
        let now = u64::try_from(*now)
            .ok()
            .and_then(Timestamp::from_micros)
            .ok_or(ReplyError::Malformed)?;
        let log_count: usize = operations
            .iter()
            .map(|operation| operation.plan.log_count())
            .sum();
        // If no limit is stored in the record, the reply may omit the records.
        let are_records_good = records.len() == operations.len()
            || (records.is_empty()
                && operations
                    .iter()
                    .all(|operation| !operation.plan.has_record()));
        if verdicts.len() != operations.len() || !are_records_good || logs.len() != log_count {
            return Err(ReplyError::Malformed);
        }
        Ok(Self {
            now,
            verdicts,
            records,
            logs,
        })
    }
}

/// Processes the checks in order, and carries each key's record from one to the next, as the script
/// did.
struct Explainer<'a> {
    reply: &'a ScriptReply<'a>,
    /// Set if an atomic call was denied, so nothing was taken.
    is_denied: bool,
    next_log: usize,
    records: HashMap<&'a [u8], Record>,
}

impl<'a> Explainer<'a> {
    fn reply(&mut self, index: usize, operation: &'a Operation) -> Result<Reply, ReplyError> {
        let first_log = self.next_log;
        self.next_log += operation.plan.log_count();
        let is_allowed = match self.reply.verdicts.get(index) {
            Some(b'1') => true,
            Some(b'0') => false,
            _ => return Err(ReplyError::Unreadable),
        };
        let mut record = match self.records.remove(&operation.name[..]) {
            Some(record) => record,
            None => self.stored_record(index, &operation.plan)?,
        };
        let (policy, now) = (operation.plan.policy(), self.reply.now);
        let mut cost = operation.cost;
        let mut dropped = Cost::ZERO;
        match &operation.kind {
            OperationKind::Check if self.is_denied && is_allowed => cost = Cost::ZERO,
            OperationKind::Check
            | OperationKind::Peek
            | OperationKind::Reset
            | OperationKind::StoreReceipt(..)
            | OperationKind::TakeReceipt => {}
            OperationKind::Refund => drop(policy.refund(&mut record, now, cost)),
            OperationKind::Settle(claims) => {
                let settlement = Settlement {
                    claims,
                    taken: cost,
                    actual: Cost::ZERO,
                };
                policy.settle(&mut record, now, &settlement);
            }
            OperationKind::Charge => dropped = policy.charge(&mut record, now, cost).dropped,
        }
        let is_check = matches!(operation.kind, OperationKind::Check | OperationKind::Peek);
        if !is_check {
            cost = Cost::ZERO;
        }
        let logs = self.put_logs(first_log, operation, &mut record)?;
        let mut admission = remote::admit(policy, &mut record, now, cost);
        if is_check && admission.decision.is_allowed() != is_allowed {
            return Err(ReplyError::Contradiction);
        }
        self.records.insert(&operation.name, record);
        if self.is_denied || operation.kind != OperationKind::Check {
            admission.claims = logs.unsettled;
        }
        if operation.plan.lease().is_some() {
            admission.decision = remote::leased(admission.decision);
        }
        Ok(Reply {
            admission,
            beside: None,
            dropped: dropped.max(logs.dropped),
            bytes: None,
            deleted: 0,
        })
    }

    fn stored_record(&self, index: usize, plan: &RedisPlan) -> Result<Record, ReplyError> {
        let limits: Vec<&Limit> = stored_limits(plan.policy()).collect();
        let stored = match self.reply.records.get(index) {
            None | Some(Value::Nil) => vec![Stored::Fresh; limits.len()],
            Some(Value::BulkString(record)) => {
                stored_states(&limits, record).ok_or(ReplyError::Unreadable)?
            }
            Some(_) => return Err(ReplyError::Malformed),
        };
        Ok(remote::record(plan.policy(), &stored))
    }

    /// Puts the summaries of the logs into the record.
    fn put_logs(
        &self,
        first: usize,
        operation: &Operation,
        record: &mut Record,
    ) -> Result<LogRest, ReplyError> {
        let policy = operation.plan.policy();
        let logs = stored_limits(policy)
            .enumerate()
            .filter(|(_, limit)| is_log(limit));
        let mut rest = LogRest::default();
        for (log, (limit, _)) in logs.enumerate() {
            let Some(Value::BulkString(summary)) = self.reply.logs.get(first + log) else {
                return Err(ReplyError::Malformed);
            };
            let (stored, at, amount) = log_summary(summary).ok_or(ReplyError::Malformed)?;
            if operation.kind == OperationKind::Charge {
                let dropped = Cost::from_thousandths(amount).map_err(|_| ReplyError::Malformed)?;
                rest.dropped = rest.dropped.max(dropped);
            } else if amount > 0 {
                rest.unsettled
                    .resize(policy.limits().len(), Claim::default());
                remote::set_claim(policy, &mut rest.unsettled, limit, (at, amount));
            }
            remote::replace(policy, record, limit, stored);
        }
        Ok(rest)
    }
}

/// The part of an operation that logs did not complete.
struct LogRest {
    /// The claims that remain to be settled.
    unsettled: Claims,
    /// The cost that a charge dropped.
    dropped: Cost,
}

impl Default for LogRest {
    fn default() -> Self {
        Self {
            unsettled: Claims::new(),
            dropped: Cost::ZERO,
        }
    }
}

fn is_log(limit: &Limit) -> bool {
    limit.algorithm() == Algorithm::SlidingWindowLog
}

/// Parses the states in a record, one per limit except logs. If there are several, each is preceded
/// by its length.
fn stored_states(limits: &[&Limit], mut record: &[u8]) -> Option<Vec<Stored>> {
    let is_alone = limits.iter().filter(|limit| !is_log(limit)).count() == 1;
    let mut next = || {
        if is_alone {
            return Some(std::mem::take(&mut record));
        }
        let (length, rest) = record.split_first()?;
        let (text, rest) = rest.split_at_checked(usize::from(*length))?;
        record = rest;
        Some(text)
    };
    let is_only = limits.len() == 1;
    let state = |limit: &&Limit| match limit.algorithm() {
        Algorithm::SlidingWindowLog => Some(Stored::Fresh),
        algorithm if algorithm.is_bucket() && !is_only => stored_version(limit, next()?),
        _ => stored_state(limit, next()?),
    };
    let states: Option<Vec<Stored>> = limits.iter().map(state).collect();
    states.filter(|_| record.is_empty())
}

fn stored_state(limit: &Limit, text: &[u8]) -> Option<Stored> {
    let period = period_us(limit);
    match limit.algorithm() {
        Algorithm::FixedWindow => {
            let [end, count] = unpacked(text, [8, 4]).or_else(|| unpacked(text, [8, 8]))?;
            Some(Stored::Window { end, count })
        }
        Algorithm::SlidingWindowCounter => {
            let [number, current, previous] =
                unpacked(text, [4, 4, 4]).or_else(|| unpacked(text, [8, 8, 8]))?;
            Some(Stored::Counter {
                end: number.saturating_mul(period),
                current,
                previous,
            })
        }
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra => {
            stored_bucket(limit, text)
        }
        // A log is parsed elsewhere.
        _ => None,
    }
}

/// Parses the state with the numbers of this bucket, beside other limits.
fn stored_version(limit: &Limit, text: &[u8]) -> Option<Stored> {
    let (versions, []) = text.as_chunks::<32>() else {
        return None;
    };
    let numbers = BucketNumbers::new(limit).to_bytes();
    let own = versions
        .iter()
        .find_map(|version| version.strip_prefix(&numbers));
    let Some(own) = own else {
        return Some(Stored::Fresh);
    };
    let [free_at, part] = unpacked(own, [8, 8])?;
    Some(Stored::Bucket {
        free_at,
        part,
        denominator: Refill::new(limit).denominator,
    })
}

fn stored_bucket(limit: &Limit, text: &[u8]) -> Option<Stored> {
    if text.iter().all(u8::is_ascii_digit) {
        let free_at = std::str::from_utf8(text).ok()?.parse().ok()?;
        return Some(Stored::Bucket {
            free_at,
            part: 0,
            denominator: 1,
        });
    }
    let [free_at, part, denominator] =
        unpacked(text, [8, 2, 2]).or_else(|| unpacked(text, [8, 8, 8]))?;
    // A part of another rate's denominator is rounded up to the next microsecond.
    Some(if denominator == Refill::new(limit).denominator {
        Stored::Bucket {
            free_at,
            part,
            denominator,
        }
    } else {
        Stored::Bucket {
            free_at: free_at.saturating_add(1),
            part: 0,
            denominator: 1,
        }
    })
}

/// Parses big-endian numbers of these sizes, and nothing else.
fn unpacked<const N: usize>(mut text: &[u8], sizes: [usize; N]) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    for (number, size) in numbers.iter_mut().zip(sizes) {
        let (bytes, rest) = text.split_at_checked(size)?;
        *number = bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte));
        text = rest;
    }
    text.is_empty().then_some(numbers)
}

/// Parses the live amount and the newest entry. For a denial, the entry to wait for and the live
/// amount up to it follow. After an operation that is not a check, two more numbers follow: the
/// entry at which a settlement continues and its amount, or 0 and the amount that a charge dropped.
fn log_summary(text: &[u8]) -> Option<(Stored, u64, u64)> {
    let numbers = numbers(std::str::from_utf8(text).ok()?)?;
    let (newest, live, wait, rest) = match numbers[..] {
        [live, newest] => (newest, live, (0, 0), (0, 0)),
        [live, newest, at, total] => (newest, live, (at, total), (0, 0)),
        [live, newest, at, total, from, amount] => (newest, live, (at, total), (from, amount)),
        _ => return None,
    };
    let stored = Stored::Log {
        waits_for: (wait.1 > 0).then_some(wait),
        newest,
        live,
    };
    Some((stored, rest.0, rest.1))
}

fn numbers(text: &str) -> Option<Vec<u64>> {
    text.split(' ').map(|number| number.parse().ok()).collect()
}
