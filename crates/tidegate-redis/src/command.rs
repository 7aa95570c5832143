//! Redis commands for operations that share a call.

use redis::Cmd;

use crate::operation::{ManualTime, Operation, OperationKind};
use crate::script::{BatchSize, Script, ScriptTask};

/// Returns the script that executes these operations, if one does.
pub(crate) fn script<'a>(operations: &[&'a Operation], is_atomic: bool) -> Option<&'a Script> {
    let first = operations.first()?;
    match first.kind.task()? {
        ScriptTask::Check if !is_atomic => {
            let own = first.plan.check_script(batch_size(operations));
            Some(own.unwrap_or_else(|| Script::generic()))
        }
        _ => Some(Script::generic()),
    }
}

fn batch_size(operations: &[&Operation]) -> BatchSize {
    if operations.len() == 1 {
        BatchSize::One
    } else {
        BatchSize::Many
    }
}

/// Returns the command for operations that share a call, of which there is at least one.
pub(crate) fn command(
    operations: &[&Operation],
    is_atomic: bool,
    manual_time: Option<&ManualTime>,
) -> Option<Cmd> {
    let first = operations.first()?;
    Some(match &first.kind {
        OperationKind::Reset => unlink(operations),
        OperationKind::StoreReceipt(bytes, keep_for) => {
            let keep_ms = manual_time.map_or(keep_for.as_millis() + 1, |manual| {
                u128::from(manual.keep_ms)
            });
            let keep_ms = u64::try_from(keep_ms).unwrap_or(u64::MAX);
            let mut set = redis::cmd("SET");
            set.arg(&first.name).arg(&bytes[..]);
            set.arg("NX").arg("PX").arg(keep_ms).to_owned()
        }
        OperationKind::TakeReceipt => redis::cmd("GETDEL").arg(&first.name).to_owned(),
        OperationKind::Check
        | OperationKind::Peek
        | OperationKind::Refund
        | OperationKind::Settle(_)
        | OperationKind::Charge => evalsha(operations, is_atomic, manual_time)?,
    })
}

fn evalsha(
    operations: &[&Operation],
    is_atomic: bool,
    manual_time: Option<&ManualTime>,
) -> Option<Cmd> {
    let script = script(operations, is_atomic)?;
    let [first, second] = if std::ptr::eq(script, Script::generic()) {
        generic_arguments(operations, is_atomic, manual_time)
    } else {
        check_arguments(operations, manual_time)
    };
    let keys = |operation: &&Operation| operation.plan.keys_per_check();
    let key_count: usize = operations.iter().map(keys).sum();
    let bytes: usize = operations
        .iter()
        .map(|operation| operation.name.len() * operation.plan.keys_per_check())
        .sum();
    let mut command = Cmd::with_capacity(5 + key_count, 160 + bytes);
    command.arg("EVALSHA").arg(&*script.sha).arg(key_count);
    for operation in operations {
        operation.plan.add_names(&operation.name, &mut command);
    }
    command.arg(first).arg(second);
    Some(command)
}

/// Returns the arguments of a policy's own script. Consecutive checks of one cost are a run.
fn check_arguments(operations: &[&Operation], manual_time: Option<&ManualTime>) -> [Vec<u8>; 2] {
    let (now, keep) = ManualTime::numbers(manual_time);
    let mut runs = Vec::with_capacity(28);
    for (last, operation) in (1_u32..).zip(operations) {
        let next = operations.get(last as usize);
        if next.is_none_or(|next| next.cost != operation.cost) {
            runs.extend(last.to_be_bytes());
            operation.plan.add_cost(operation.cost, true, &mut runs);
        }
    }
    let first = operations.first();
    let numbers = first.map_or_else(Vec::new, |first| first.plan.numbers(now, keep));
    [numbers, runs]
}

/// Returns the arguments of the generic script.
fn generic_arguments(
    operations: &[&Operation],
    is_atomic: bool,
    manual_time: Option<&ManualTime>,
) -> [Vec<u8>; 2] {
    let (now, keep) = ManualTime::numbers(manual_time);
    let task = operations.first().and_then(|first| first.kind.task());
    let task = match task {
        _ if is_atomic => 1,
        None | Some(ScriptTask::Check) => 0,
        Some(ScriptTask::Peek) => 2,
        Some(ScriptTask::Refund) => 3,
        Some(ScriptTask::Settle) => 4,
        Some(ScriptTask::Charge) => 5,
    };
    let mut numbers = Vec::new();
    numbers.extend(now.to_be_bytes());
    numbers.extend(keep.to_be_bytes());
    numbers.push(task);
    numbers.extend((operations.len() as u16).to_be_bytes());
    let mut costs = Vec::new();
    for operation in operations {
        let plan = &operation.plan;
        plan.add_limits(&mut numbers);
        plan.add_cost(operation.cost, task <= 2, &mut costs);
        match &operation.kind {
            OperationKind::Settle(claims) => plan.add_claims(claims, &mut costs),
            OperationKind::Charge => plan.add_most_counted(&mut costs),
            _ => {}
        }
    }
    [numbers, costs]
}

fn unlink(operations: &[&Operation]) -> Cmd {
    let mut command = redis::cmd("UNLINK");
    for operation in operations {
        operation.plan.add_names(&operation.name, &mut command);
    }
    command
}
