//! One request that several keys must all meet, in one call: the scripts of each, and what gives back where one denies.
//!
//! Nobody comes in between: a script is run whole. What is taken and given back at the same instant is as if it had never
//! been taken.

use std::collections::HashMap;

use parking_lot::Mutex;
use redis::{Cmd, Value};
use tidegate_core::Decision;

use crate::command::{Act, Ask, GivenTime};
use crate::error::ReplyError;
use crate::reply;
use crate::script::{Load, Script, Task};

/// So many keys have room in one script: Lua has 200 names.
pub(crate) const MOST_TOGETHER: usize = 32;

/// So many are remembered; a program has as many as it has sets of limits of different shapes.
const MOST_REMEMBERED: usize = 256;

/// The scripts that were put together before.
#[derive(Default)]
pub(crate) struct Remembered(Mutex<HashMap<Vec<u8>, Script>>);

impl Remembered {
    /// The script for these asks, in their order.
    pub(crate) fn script(&self, asks: &[Ask]) -> Script {
        let names = asks.iter().map(|ask| ask.plan.script(Task::Check, Load::One).sha.as_bytes());
        let name = names.collect::<Vec<_>>().concat();
        let mut all = self.0.lock();
        if all.len() >= MOST_REMEMBERED {
            all.clear();
        }
        all.entry(name).or_insert_with(|| compose(asks)).clone()
    }
}

/// Each ask's own scripts as functions, called one after the other.
fn compose(asks: &[Ask]) -> Script {
    let mut text = String::new();
    let mut key = 0;
    let mut calls = String::new();
    for (number, ask) in (1..).zip(asks) {
        let check = &ask.plan.script(Task::Check, Load::One).text;
        let refund = &ask.plan.script(Task::Refund, Load::Many).text;
        text.push_str(&format!("local function check{number}(KEYS, ARGV)\n{check}end\n"));
        text.push_str(&format!("local function refund{number}(KEYS, ARGV)\n{refund}end\n"));
        let count = ask.plan.keys_a_check();
        let keys: Vec<String> = (key + 1..=key + count).map(|key| format!("KEYS[{key}]")).collect();
        key += count;
        let (keys, first) = (keys.join(", "), 3 * number - 2);
        calls.push_str(&format!(
            "local keys{number} = {{ {keys} }}\n\
             local answer{number} = check{number}(keys{number}, {{ ARGV[{first}], ARGV[{}] }})\n\
             if answer{number}[2] ~= '1' then is_denied = true end\n",
            first + 1
        ));
    }
    text.push_str("local is_denied = false\n");
    text.push_str(&calls);
    text.push_str("local given_back = {}\nif is_denied then\n");
    for number in 1..=asks.len() {
        let first = 3 * number - 2;
        text.push_str(&format!(
            "if answer{number}[2] == '1' then\n\
             answer{number} = refund{number}(keys{number}, {{ ARGV[{first}], ARGV[{}] }})\n\
             given_back[{number}] = true\nend\n",
            first + 2
        ));
    }
    text.push_str("end\nreturn {");
    for number in 1..=asks.len() {
        text.push_str(&format!(" {{ given_back[{number}] and 1 or 0, answer{number} }},"));
    }
    text.push_str(" }\n");
    Script::of(text)
}

/// The call for these asks. Each has the numbers of its limits, what it costs, and what it costs to give back.
pub(crate) fn command(script: &Script, asks: &[&Ask], given: Option<&GivenTime>) -> Cmd {
    let key_count: usize = asks.iter().map(|ask| ask.plan.keys_a_check()).sum();
    let mut command = redis::cmd("EVALSHA");
    command.arg(&*script.sha).arg(key_count);
    for ask in asks {
        ask.plan.add_names(&ask.name, &mut command);
    }
    let (now, keep) = given.map_or((0, 0), GivenTime::numbers);
    for ask in asks {
        command.arg(ask.plan.numbers(now, keep));
        for task in [Task::Check, Task::Refund] {
            let mut run = Vec::with_capacity(28);
            ask.plan.add_run(1, ask.cost, task, &mut run);
            command.arg(run);
        }
    }
    command
}

/// The answers to asks that went together, in their order.
pub(crate) fn answers(asks: &[&Ask], value: &Value) -> Result<Vec<Result<Decision, ReplyError>>, ReplyError> {
    let Value::Array(parts) = value else { return Err(ReplyError::NotAnAnswer) };
    if parts.len() != asks.len() {
        return Err(ReplyError::NotAnAnswer);
    }
    let answer = |(ask, part): (&&Ask, &Value)| {
        let Value::Array(part) = part else { return Err(ReplyError::NotAnAnswer) };
        let [Value::Int(given_back), answer] = &part[..] else { return Err(ReplyError::NotAnAnswer) };
        let act = if *given_back == 1 { Act::REFUND } else { Act::CHECK };
        let ask = Ask { act, ..(*ask).clone() };
        reply::answers(&[&ask], answer)?.pop().unwrap_or(Err(ReplyError::NotAnAnswer))
    };
    Ok(asks.iter().zip(parts).map(answer).collect())
}
