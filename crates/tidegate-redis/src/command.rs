//! What is sent: one command for checks of one policy that can travel together.

use redis::Cmd;
use tidegate_core::{Cost, ManualClock};

use crate::plan::RedisPlan;
use crate::script::{Load, Script, Task};

/// What is done to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Script(Task),
    Reset,
}

impl Act {
    pub(crate) const CHECK: Self = Self::Script(Task::Check);
    pub(crate) const REFUND: Self = Self::Script(Task::Refund);
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
    /// Whether one script call can do both.
    pub(crate) fn goes_with(&self, other: &Self) -> bool {
        self.act == other.act && self.plan.is(&other.plan)
    }
}

/// The script that does these, if one does.
pub(crate) fn script<'a>(asks: &[&'a Ask]) -> Option<&'a Script> {
    let first = asks.first()?;
    let load = if asks.len() == 1 { Load::One } else { Load::Many };
    match first.act {
        Act::Script(task) => Some(first.plan.script(task, load)),
        Act::Reset => None,
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
pub(crate) fn command(asks: &[&Ask], given: Option<&GivenTime>) -> Option<Cmd> {
    let first = asks.first()?;
    Some(match (first.act, script(asks)) {
        (Act::Script(task), Some(script)) => script_call(script, &first.plan, asks, task, given),
        (Act::Script(_) | Act::Reset, _) => unlink(asks),
    })
}

fn script_call(script: &Script, plan: &RedisPlan, asks: &[&Ask], task: Task, given: Option<&GivenTime>) -> Cmd {
    let bytes: usize = asks.iter().map(|ask| ask.name.len() * plan.keys_a_check()).sum();
    let mut command = Cmd::with_capacity(5 + asks.len() * plan.keys_a_check(), 160 + bytes);
    command.arg("EVALSHA").arg(&*script.sha).arg(asks.len() * plan.keys_a_check());
    for ask in asks {
        plan.add_names(&ask.name, &mut command);
    }
    let (now, keep) = given.map_or((0, 0), GivenTime::numbers);
    let mut runs = Vec::with_capacity(28);
    for (last, ask) in (1..).zip(asks) {
        // Checks of one cost in a row are a run.
        if asks.get(last as usize).is_none_or(|next| next.cost != ask.cost) {
            plan.add_run(last, ask.cost, task, &mut runs);
        }
    }
    command.arg(plan.numbers(now, keep)).arg(runs);
    command
}

fn unlink(asks: &[&Ask]) -> Cmd {
    let mut command = redis::cmd("UNLINK");
    for ask in asks {
        ask.plan.add_names(&ask.name, &mut command);
    }
    command
}
