//! Commands: one for operations that can travel together.

use std::time::Duration;

use redis::Cmd;
use tidegate_core::{Claims, Cost, Key, ManualClock};

use crate::plan::RedisPlan;
use crate::script::{Load, Script, Task};
use crate::settings::MAX_BATCH;

/// An operation on a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Check,
    Refund,
    /// Gives back the ask's cost as far as it still counts where the request was counted.
    Settle(Claims),
    /// Takes the ask's cost, or as much of it as fits.
    Charge,
    Reset,
    /// Stores some bytes under the ask's name for some time, if there is nothing yet.
    Put(Vec<u8>, Duration),
    /// Deletes what is stored under the ask's name, and returns it.
    Take,
}

impl Act {
    /// The task of the generic script.
    fn task(&self) -> Option<Task> {
        match self {
            Self::Check => Some(Task::Check),
            Self::Refund => Some(Task::Refund),
            Self::Settle(_) => Some(Task::Settle),
            Self::Charge => Some(Task::Charge),
            Self::Reset | Self::Put(..) | Self::Take => None,
        }
    }
}

/// One thing to do to one key.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) plan: RedisPlan,
    pub(crate) act: Act,
    pub(crate) name: Vec<u8>,
    pub(crate) cost: Cost,
}

impl Ask {
    pub(crate) fn new(plan: &RedisPlan, act: Act, key: Key<'_>, cost: Cost) -> Self {
        Self {
            plan: plan.clone(),
            act,
            name: plan.name(key),
            cost,
        }
    }

    /// Under the name of one of the key's receipts.
    pub(crate) fn for_receipt(mut self, id: &str) -> Self {
        self.name.extend_from_slice(b":r:");
        self.name.extend_from_slice(id.as_bytes());
        self
    }

    /// The work for Redis, a check of one limit being 1. A settlement may rewrite a part of a log, and travels alone.
    pub(crate) fn weight(&self) -> usize {
        match self.act {
            Act::Settle(_) if self.plan.log_count() > 0 => MAX_BATCH,
            _ => self.plan.weight(),
        }
    }

    /// Whether one script call can do both.
    pub(crate) fn goes_with(&self, other: &Self) -> bool {
        self.act == other.act
            && matches!(self.act, Act::Check | Act::Reset)
            && self.plan.is(&other.plan)
    }
}

/// The script that does these, if one does. `is_together`: all or nothing.
pub(crate) fn script<'a>(asks: &[&'a Ask], is_together: bool) -> Option<&'a Script> {
    let first = asks.first()?;
    let load = if asks.len() == 1 {
        Load::One
    } else {
        Load::Many
    };
    match first.act.task()? {
        Task::Check if !is_together => Some(
            first
                .plan
                .check_script(load)
                .unwrap_or_else(|| Script::generic()),
        ),
        _ => Some(Script::generic()),
    }
}

/// A time that is given to the script in place of the server's, and how long what is written then stays.
#[derive(Clone, Debug)]
pub(crate) struct GivenTime {
    pub(crate) clock: ManualClock,
    pub(crate) keep_ms: u64,
}

impl GivenTime {
    /// The time, and how long to keep, as scripts are told.
    pub(crate) fn numbers(&self) -> (u64, u64) {
        ((self.clock.now().as_nanos() / 1_000).max(1), self.keep_ms)
    }
}

/// The command for asks that go together, of which there is at least one.
pub(crate) fn command(asks: &[&Ask], is_together: bool, given: Option<&GivenTime>) -> Option<Cmd> {
    let first = asks.first()?;
    Some(match &first.act {
        Act::Reset => unlink(asks),
        Act::Put(bytes, keep_for) => {
            let keep_ms = given.map_or(keep_for.as_millis() + 1, |given| u128::from(given.keep_ms));
            let keep_ms = u64::try_from(keep_ms).unwrap_or(u64::MAX);
            redis::cmd("SET")
                .arg(&first.name)
                .arg(&bytes[..])
                .arg("NX")
                .arg("PX")
                .arg(keep_ms)
                .to_owned()
        }
        Act::Take => redis::cmd("GETDEL").arg(&first.name).to_owned(),
        Act::Check | Act::Refund | Act::Settle(_) | Act::Charge => {
            let script = script(asks, is_together)?;
            let arguments = match first.plan.check_script(if asks.len() == 1 {
                Load::One
            } else {
                Load::Many
            }) {
                Some(own) if own.sha == script.sha => check_arguments(asks, given),
                _ => generic_arguments(asks, is_together, given),
            };
            call(script, asks, arguments)
        }
    })
}

fn call(script: &Script, asks: &[&Ask], [first, second]: [Vec<u8>; 2]) -> Cmd {
    let key_count: usize = asks.iter().map(|ask| ask.plan.keys_a_check()).sum();
    let bytes: usize = asks
        .iter()
        .map(|ask| ask.name.len() * ask.plan.keys_a_check())
        .sum();
    let mut command = Cmd::with_capacity(5 + key_count, 160 + bytes);
    command.arg("EVALSHA").arg(&*script.sha).arg(key_count);
    for ask in asks {
        ask.plan.add_names(&ask.name, &mut command);
    }
    command.arg(first).arg(second);
    command
}

/// The arguments of a script for checks of one policy. Checks of one cost in a row are a run.
fn check_arguments(asks: &[&Ask], given: Option<&GivenTime>) -> [Vec<u8>; 2] {
    let (now, keep) = given.map_or((0, 0), GivenTime::numbers);
    let mut runs = Vec::with_capacity(28);
    for (last, ask) in (1_u32..).zip(asks) {
        if asks
            .get(last as usize)
            .is_none_or(|next| next.cost != ask.cost)
        {
            runs.extend(last.to_be_bytes());
            ask.plan.add_cost(ask.cost, true, &mut runs);
        }
    }
    [
        asks.first()
            .map_or_else(Vec::new, |first| first.plan.numbers(now, keep)),
        runs,
    ]
}

/// The arguments of the generic script.
fn generic_arguments(asks: &[&Ask], is_together: bool, given: Option<&GivenTime>) -> [Vec<u8>; 2] {
    let (now, keep) = given.map_or((0, 0), GivenTime::numbers);
    let task = match asks.first().and_then(|first| first.act.task()) {
        _ if is_together => 1,
        None | Some(Task::Check) => 0,
        Some(Task::Refund) => 2,
        Some(Task::Settle) => 3,
        Some(Task::Charge) => 4,
    };
    let mut numbers = [
        &now.to_be_bytes()[..],
        &keep.to_be_bytes(),
        &[task],
        &(asks.len() as u16).to_be_bytes(),
    ]
    .concat();
    let mut costs = Vec::new();
    for ask in asks {
        ask.plan.add_limits(&mut numbers);
        ask.plan.add_cost(ask.cost, task <= 1, &mut costs);
        if let Act::Settle(claims) = &ask.act {
            ask.plan.add_claims(claims, &mut costs);
        }
    }
    [numbers, costs]
}

fn unlink(asks: &[&Ask]) -> Cmd {
    let mut command = redis::cmd("UNLINK");
    for ask in asks {
        ask.plan.add_names(&ask.name, &mut command);
    }
    command
}
