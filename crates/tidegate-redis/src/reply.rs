//! What comes back: the script decides, and what it had kept explains the decision.

use std::collections::HashMap;

use redis::Value;
use tidegate_core::remote::{self, Stored};
use tidegate_core::{Algorithm, Cost, Decision, Limit, Record, Timestamp};

use crate::command::{Act, Ask};
use crate::error::ReplyError;
use crate::plan::RedisPlan;
use crate::rate::{Refill, period_us};

/// The answers to asks that went together, in their order.
pub(crate) fn answers(asks: &[&Ask], value: &Value) -> Result<Vec<Result<Decision, ReplyError>>, ReplyError> {
    let Some(first) = asks.first() else { return Ok(Vec::new()) };
    if first.act == Act::Reset {
        return Ok(asks.iter().map(|ask| Ok(untouched(&ask.plan))).collect());
    }
    let reply = Reply::read(value, asks.len(), &first.plan)?;
    let mut explained = Explained { reply: &reply, plan: &first.plan, records: HashMap::new() };
    Ok(asks.iter().enumerate().map(|(index, ask)| explained.answer(index, ask)).collect())
}

/// A decision on a key of which nothing is kept.
fn untouched(plan: &RedisPlan) -> Decision {
    remote::decide(plan.policy(), &mut Record::default(), Timestamp::default(), Cost::ZERO)
}

/// A script's answer, its parts told apart and counted.
struct Reply<'a> {
    now: Timestamp,
    verdicts: &'a [u8],
    records: &'a [Value],
    logs: &'a [Value],
}

impl<'a> Reply<'a> {
    fn read(value: &'a Value, count: usize, plan: &RedisPlan) -> Result<Self, ReplyError> {
        let Value::Array(parts) = value else { return Err(ReplyError::NotAnAnswer) };
        let (now, verdicts, records, logs) = match &parts[..] {
            [Value::Int(now), Value::BulkString(verdicts), Value::Array(records)] => (now, verdicts, records, &[][..]),
            [Value::Int(now), Value::BulkString(verdicts), Value::Array(records), Value::Array(logs)] => {
                (now, verdicts, records, &logs[..])
            }
            _ => return Err(ReplyError::NotAnAnswer),
        };
        let now = u64::try_from(*now).ok().and_then(Timestamp::from_micros).ok_or(ReplyError::NotAnAnswer)?;
        let record_count = if plan.has_record() { count } else { 0 };
        if verdicts.len() != count || records.len() != record_count || logs.len() != count * plan.log_count() {
            return Err(ReplyError::NotAnAnswer);
        }
        Ok(Self { now, verdicts, records, logs })
    }
}

/// Walks through the checks in order and carries each key's record on from one to the next, as the script did.
struct Explained<'a> {
    reply: &'a Reply<'a>,
    plan: &'a RedisPlan,
    records: HashMap<&'a [u8], Record>,
}

impl<'a> Explained<'a> {
    fn answer(&mut self, index: usize, ask: &'a Ask) -> Result<Decision, ReplyError> {
        let is_allowed = match self.reply.verdicts.get(index) {
            Some(b'1') => true,
            Some(b'0') => false,
            _ => return Err(ReplyError::Unreadable),
        };
        let mut record = match self.records.remove(&ask.name[..]) {
            Some(record) => record,
            None => self.stored_record(index)?,
        };
        let (policy, now) = (self.plan.policy(), self.reply.now);
        let mut cost = ask.cost;
        if ask.act == Act::REFUND {
            policy.refund(&mut record, now, cost);
            cost = Cost::ZERO;
        }
        self.put_logs(index, &mut record)?;
        let decision = remote::decide(policy, &mut record, now, cost);
        if ask.act == Act::CHECK && decision.is_allowed() != is_allowed {
            return Err(ReplyError::Disagrees);
        }
        self.records.insert(&ask.name, record);
        Ok(decision)
    }

    fn stored_record(&self, index: usize) -> Result<Record, ReplyError> {
        let limits = self.plan.policy().limits();
        let stored = match self.reply.records.get(index) {
            None | Some(Value::Nil) => vec![Stored::Fresh; limits.len()],
            Some(Value::BulkString(record)) => stored_states(limits, record).ok_or(ReplyError::Unreadable)?,
            Some(_) => return Err(ReplyError::NotAnAnswer),
        };
        Ok(remote::record(self.plan.policy(), &stored))
    }

    fn put_logs(&self, index: usize, record: &mut Record) -> Result<(), ReplyError> {
        let first = index * self.plan.log_count();
        let logs = self.plan.policy().limits().iter().enumerate().filter(|(_, limit)| is_log(limit));
        for (log, (limit, _)) in logs.enumerate() {
            let Some(Value::BulkString(summary)) = self.reply.logs.get(first + log) else {
                return Err(ReplyError::NotAnAnswer);
            };
            let stored = log_summary(summary).ok_or(ReplyError::NotAnAnswer)?;
            remote::replace(self.plan.policy(), record, limit, stored);
        }
        Ok(())
    }
}

fn is_log(limit: &Limit) -> bool {
    limit.algorithm() == Algorithm::SlidingWindowLog
}

/// The states in a record: one a limit, but for logs. Where there are several, each comes after its length.
fn stored_states(limits: &[Limit], mut record: &[u8]) -> Option<Vec<Stored>> {
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
    let state = |limit: &Limit| if is_log(limit) { Some(Stored::Fresh) } else { stored_state(limit, next()?) };
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
            let [number, current, previous] = unpacked(text, [4, 4, 4]).or_else(|| unpacked(text, [8, 8, 8]))?;
            Some(Stored::Counter { end: number.saturating_mul(period), current, previous })
        }
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::Gcra => stored_bucket(limit, text),
        Algorithm::SlidingWindowLog => None,
    }
}

fn stored_bucket(limit: &Limit, text: &[u8]) -> Option<Stored> {
    if text.iter().all(u8::is_ascii_digit) {
        let free_at = std::str::from_utf8(text).ok()?.parse().ok()?;
        return Some(Stored::Bucket { free_at, part: 0, denominator: 1 });
    }
    let [free_at, part, denominator] = unpacked(text, [8, 2, 2]).or_else(|| unpacked(text, [8, 8, 8]))?;
    // A part of another rate's denominator says nothing here: up to the next microsecond.
    Some(if denominator == Refill::new(limit).denominator {
        Stored::Bucket { free_at, part, denominator }
    } else {
        Stored::Bucket { free_at: free_at.saturating_add(1), part: 0, denominator: 1 }
    })
}

/// Numbers of these sizes in bytes, the highest byte first, and nothing else.
fn unpacked<const N: usize>(mut text: &[u8], sizes: [usize; N]) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    for (number, size) in numbers.iter_mut().zip(sizes) {
        let (bytes, rest) = text.split_at_checked(size)?;
        *number = bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        text = rest;
    }
    text.is_empty().then_some(numbers)
}

/// All that is live, the newest entry, and of what is denied the entry it waits for with all that is live up to it.
fn log_summary(text: &[u8]) -> Option<Stored> {
    match numbers(std::str::from_utf8(text).ok()?)?[..] {
        [live, newest] => Some(Stored::Log { waits_for: None, newest, live }),
        [live, newest, at, total] => Some(Stored::Log { waits_for: Some((at, total)), newest, live }),
        _ => None,
    }
}

fn numbers(text: &str) -> Option<Vec<u64>> {
    text.split(' ').map(|number| number.parse().ok()).collect()
}
