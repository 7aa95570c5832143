//! What comes back: the script decides, and what it had kept explains the decision.

use std::collections::HashMap;

use redis::Value;
use tidegate_core::remote::{self, Stored, stored_limits};
use tidegate_core::{
    Algorithm, BucketNumbers, Claim, Claims, Cost, Decision, Limit, Record, Settlement, Timestamp,
};

use crate::command::{Act, Ask};
use crate::error::ReplyError;
use crate::plan::RedisPlan;
use crate::rate::{Refill, period_us};

/// The answer to one ask.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) decision: Decision,
    /// The claims of an admitted request; of a settlement, those that are still to be settled.
    pub(crate) claims: Claims,
    /// The bytes that were stored under the name of an ask to take them.
    pub(crate) bytes: Option<Vec<u8>>,
}

/// The answers to asks that went together, in their order. `is_together`: all or nothing.
pub(crate) fn answers(
    asks: &[&Ask],
    is_together: bool,
    value: &Value,
) -> Result<Vec<Result<Answer, ReplyError>>, ReplyError> {
    let Some(first) = asks.first() else {
        return Ok(Vec::new());
    };
    if matches!(first.act, Act::Reset | Act::Put(..) | Act::Take) {
        return Ok(asks
            .iter()
            .map(|ask| Ok(untouched(&ask.plan, value)))
            .collect());
    }
    let reply = Reply::read(value, asks)?;
    let none_taken = is_together && reply.verdicts.iter().any(|verdict| *verdict != b'1');
    let mut explained = Explained {
        reply: &reply,
        none_taken,
        next_log: 0,
        records: HashMap::new(),
    };
    Ok(asks
        .iter()
        .enumerate()
        .map(|(index, ask)| explained.answer(index, ask))
        .collect())
}

/// The answer to what is no decision: as on a key of which nothing is kept, and the bytes that came back.
fn untouched(plan: &RedisPlan, value: &Value) -> Answer {
    let decision = remote::decide(
        plan.policy(),
        &mut Record::default(),
        Timestamp::default(),
        Cost::ZERO,
    );
    let bytes = match value {
        Value::BulkString(bytes) => Some(bytes.clone()),
        Value::Okay => Some(Vec::new()),
        _ => None,
    };
    Answer {
        decision,
        claims: Claims::new(),
        bytes,
    }
}

/// A script's answer, its parts told apart and counted.
struct Reply<'a> {
    now: Timestamp,
    verdicts: &'a [u8],
    records: &'a [Value],
    logs: &'a [Value],
}

impl<'a> Reply<'a> {
    fn read(value: &'a Value, asks: &[&Ask]) -> Result<Self, ReplyError> {
        let Value::Array(parts) = value else {
            return Err(ReplyError::NotAnAnswer);
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
            _ => return Err(ReplyError::NotAnAnswer),
        };
        let now = u64::try_from(*now)
            .ok()
            .and_then(Timestamp::from_micros)
            .ok_or(ReplyError::NotAnAnswer)?;
        let log_count: usize = asks.iter().map(|ask| ask.plan.log_count()).sum();
        // Where nothing is kept in a record, none need be there.
        let are_records_good = records.len() == asks.len()
            || (records.is_empty() && asks.iter().all(|ask| !ask.plan.has_record()));
        if verdicts.len() != asks.len() || !are_records_good || logs.len() != log_count {
            return Err(ReplyError::NotAnAnswer);
        }
        Ok(Self {
            now,
            verdicts,
            records,
            logs,
        })
    }
}

/// Walks through the checks in order and carries each key's record on from one to the next, as the script did.
struct Explained<'a> {
    reply: &'a Reply<'a>,
    /// Set if one of several denied, so that nothing was taken.
    none_taken: bool,
    next_log: usize,
    records: HashMap<&'a [u8], Record>,
}

impl<'a> Explained<'a> {
    fn answer(&mut self, index: usize, ask: &'a Ask) -> Result<Answer, ReplyError> {
        let first_log = self.next_log;
        self.next_log += ask.plan.log_count();
        let is_allowed = match self.reply.verdicts.get(index) {
            Some(b'1') => true,
            Some(b'0') => false,
            _ => return Err(ReplyError::Unreadable),
        };
        let mut record = match self.records.remove(&ask.name[..]) {
            Some(record) => record,
            None => self.stored_record(index, &ask.plan)?,
        };
        let (policy, now) = (ask.plan.policy(), self.reply.now);
        let mut cost = ask.cost;
        match &ask.act {
            Act::Check if self.none_taken && is_allowed => cost = Cost::ZERO,
            Act::Check | Act::Reset | Act::Put(..) | Act::Take => {}
            Act::Refund => drop(policy.refund(&mut record, now, cost)),
            Act::Settle(claims) => {
                let settlement = Settlement {
                    claims,
                    taken: cost,
                    actual: Cost::ZERO,
                };
                policy.settle(&mut record, now, &settlement);
            }
            Act::Charge => {
                let claims: Claims = policy.limits().iter().map(|_| Claim::default()).collect();
                let settlement = Settlement {
                    claims: &claims,
                    taken: Cost::ZERO,
                    actual: cost,
                };
                policy.settle(&mut record, now, &settlement);
            }
        }
        if ask.act != Act::Check {
            cost = Cost::ZERO;
        }
        let unsettled = self.put_logs(first_log, ask, &mut record)?;
        let (decision, claims) = remote::admit(policy, &mut record, now, cost);
        if ask.act == Act::Check && decision.is_allowed() != is_allowed {
            return Err(ReplyError::Disagrees);
        }
        self.records.insert(&ask.name, record);
        let claims = if self.none_taken || ask.act != Act::Check {
            unsettled
        } else {
            claims
        };
        Ok(Answer {
            decision,
            claims,
            bytes: None,
        })
    }

    fn stored_record(&self, index: usize, plan: &RedisPlan) -> Result<Record, ReplyError> {
        let limits: Vec<&Limit> = stored_limits(plan.policy()).collect();
        let stored = match self.reply.records.get(index) {
            None | Some(Value::Nil) => vec![Stored::Fresh; limits.len()],
            Some(Value::BulkString(record)) => {
                stored_states(&limits, record).ok_or(ReplyError::Unreadable)?
            }
            Some(_) => return Err(ReplyError::NotAnAnswer),
        };
        Ok(remote::record(plan.policy(), &stored))
    }

    /// Puts what is told of the logs into the record. Returns the claims that are still to be settled, if any.
    fn put_logs(&self, first: usize, ask: &Ask, record: &mut Record) -> Result<Claims, ReplyError> {
        let policy = ask.plan.policy();
        let logs = stored_limits(policy)
            .enumerate()
            .filter(|(_, limit)| is_log(limit));
        let mut unsettled = Claims::new();
        for (log, (limit, _)) in logs.enumerate() {
            let Some(Value::BulkString(summary)) = self.reply.logs.get(first + log) else {
                return Err(ReplyError::NotAnAnswer);
            };
            let mut stored = log_summary(summary).ok_or(ReplyError::NotAnAnswer)?;
            if let (Act::Settle(_), Stored::Log { waits_for, .. }) = (&ask.act, &mut stored)
                && let Some((at, amount)) = waits_for.take()
            {
                unsettled.resize(policy.limits().len(), Claim::default());
                remote::set_claim(policy, &mut unsettled, limit, (at, amount));
            }
            remote::replace(policy, record, limit, stored);
        }
        Ok(unsettled)
    }
}

fn is_log(limit: &Limit) -> bool {
    limit.algorithm() == Algorithm::SlidingWindowLog
}

/// The states in a record: one a limit, but for logs. Where there are several, each comes after its length.
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
        Algorithm::SlidingWindowLog => None,
    }
}

/// Reads the state with the numbers of this bucket, beside other limits.
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
    // A part of another rate's denominator says nothing here: up to the next microsecond.
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

/// Numbers of these sizes in bytes, the highest byte first, and nothing else.
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

/// All that is live, the newest entry, and of what is denied the entry it waits for with all that is live up to it; of a
/// settlement, the entry from which on it goes on, and by how much.
fn log_summary(text: &[u8]) -> Option<Stored> {
    match numbers(std::str::from_utf8(text).ok()?)?[..] {
        [live, newest] => Some(Stored::Log {
            waits_for: None,
            newest,
            live,
        }),
        [live, newest, at, total] => Some(Stored::Log {
            waits_for: Some((at, total)),
            newest,
            live,
        }),
        _ => None,
    }
}

fn numbers(text: &str) -> Option<Vec<u64>> {
    text.split(' ').map(|number| number.parse().ok()).collect()
}
