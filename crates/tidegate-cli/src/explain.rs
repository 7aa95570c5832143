//! `tidegate explain`: the properties of policies, and where they differ.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use comfy_table::{Table, presets};
use serde::Serialize;
use tidegate::{Cost, Policy};
use tidegate_insight::explain::{Arrivals, Difference, Explanation, TraceStep, WorstCase};
use tidegate_insight::text::{count, duration, instant, thousandths};

use crate::check::OutputFormat;

/// Explain policies: rates, worst cases, waits, memory, headers and likely mistakes
///
/// For each stretch of time it prints the most requests that can pass in it, and the arrivals that
/// attain it. Instants are relative to the edge of a window, or to the first request. With two or
/// more policies it also prints the shortest trace on which the first one and each other differ.
///
/// Exit code: 0, or 2 if a policy is invalid.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExplainOptions {
    /// Policies: one or more limits each, separated by `;`
    #[arg(required = true, value_name = "POLICY")]
    policies: Vec<String>,
    /// Largest cost of a request: warns about limits that never allow it
    #[arg(long, short, value_name = "COST")]
    cost: Option<Cost>,
    /// Output format
    #[arg(long, short, value_enum, default_value = "text", value_name = "FORMAT")]
    output: OutputFormat,
}

const EXAMPLES: &str = "\
Examples:
  tidegate explain '100/minute burst=20'
  tidegate explain 'fixed_window 100/minute' 'sliding_window_log 100/minute'
  tidegate explain '10/s; fixed_window 5000/day' --cost 25
  tidegate explain '1/hour burst=1000' --output json";

#[derive(Serialize)]
struct ExplainOutput {
    policies: Vec<Explanation>,
    /// The differences of the first policy to each other one; `null` if none was found.
    differences: Vec<Option<Difference>>,
}

pub(crate) fn run(options: &ExplainOptions) -> anyhow::Result<()> {
    let parsed = options.policies.iter().map(|text| text.parse::<Policy>());
    let policies: Vec<Policy> = parsed.collect::<Result<_, _>>()?;
    let explain = |policy| Explanation::of(policy, options.cost);
    let output = ExplainOutput {
        policies: policies.iter().map(explain).collect(),
        differences: policies
            .iter()
            .skip(1)
            .map(|other| Difference::between(&policies[0], other))
            .collect(),
    };
    let text = match (options.output, &output.policies[..]) {
        (OutputFormat::Json, _) => serde_json::to_string_pretty(&output)? + "\n",
        (OutputFormat::Text, [one]) => explained(one),
        (OutputFormat::Text, _) => compared(&output),
    };
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).context("standard output")
}

/// The lines of one policy.
fn explained(explanation: &Explanation) -> String {
    let mut text = String::new();
    for (name, value) in properties(explanation) {
        let _ = writeln!(text, "{name:<13} {value}");
    }
    text.push_str("\nMost requests that can pass\n");
    for worst in &explanation.worst_cases {
        let _ = writeln!(
            text,
            "  in any {:<9} {:>7}   {}",
            duration(worst.stretch_ns),
            most(worst),
            arrivals(worst)
        );
    }
    text.push_str("\nHeaders of a policy named \"api\"\n");
    for (name, headers) in [
        ("first request", &explanation.headers.allowed),
        ("denied", &explanation.headers.denied),
    ] {
        for (index, header) in headers.iter().enumerate() {
            let name = if index == 0 { name } else { "" };
            let _ = writeln!(text, "  {name:<13} {header}");
        }
    }
    write_warnings(&mut text, &explanation.warnings);
    text
}

fn write_warnings(text: &mut String, warnings: &[String]) {
    if !warnings.is_empty() {
        text.push('\n');
    }
    for warning in warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
}

/// The properties that fit one line each.
fn properties(explanation: &Explanation) -> Vec<(&'static str, String)> {
    let sustained = &explanation.sustained;
    let per_second = sustained.thousandths_per(Duration::from_secs(1));
    let exact = format!(
        "{} per {}",
        count(sustained.units),
        duration(sustained.period_ns)
    );
    let average = match per_second {
        0 => {
            let per_day = sustained.thousandths_per(Duration::from_secs(86_400));
            format!("{exact} ({}/day)", thousandths(per_day))
        }
        _ => format!("{exact} ({}/s)", thousandths(per_second)),
    };
    let bytes = |empty: u64, full: u64| match full == empty {
        true => count(empty),
        false => format!("{} to {}", count(empty), count(full)),
    };
    let footprint = explanation.footprint;
    vec![
        ("policy", explanation.policy.clone()),
        ("sustained", average),
        ("at once", count(explanation.at_once)),
        (
            "full again",
            format!("after {}", duration(explanation.refill_ns)),
        ),
        (
            "longest wait",
            format!("{} for one request", duration(explanation.longest_wait_ns)),
        ),
        (
            "bytes per key",
            format!(
                "{} in memory, {} in Redis",
                bytes(footprint.memory, footprint.memory_full),
                bytes(footprint.redis, footprint.redis_full)
            ),
        ),
    ]
}

fn most(worst: &WorstCase) -> String {
    if worst.attained == worst.most {
        return count(worst.most);
    }
    format!("≤ {}", count(worst.most))
}

/// The groups of arrivals that are shown.
const GROUPS_SHOWN: usize = 4;

/// Returns the arrivals of a worst case as one line.
fn arrivals(worst: &WorstCase) -> String {
    let mut parts: Vec<String> = worst
        .arrivals
        .iter()
        .take(GROUPS_SHOWN)
        .map(group)
        .collect();
    let left_out = worst.arrivals.len().saturating_sub(GROUPS_SHOWN);
    if left_out > 0 {
        parts.push(format!("… ({left_out} more groups)"));
    }
    let shown = parts.join(", ");
    if worst.attained < worst.most {
        return format!("found {}: {shown}", count(worst.attained));
    }
    shown
}

fn group(group: &Arrivals) -> String {
    let first = format!("{} at {}", count(group.count), instant(group.instant(0)));
    let interval = group.period_ns / group.units.max(1);
    match group.repeat {
        1 => first,
        2 if group.first == 0 => format!("{first}, once more after {}", duration(interval)),
        repeat if group.first == 0 => {
            let more = count(repeat - 1);
            format!("{first} and {more} more times every {}", duration(interval))
        }
        repeat if interval == 0 => format!("{} as they refill", count(repeat)),
        repeat => format!("{} × 1 every {}", count(repeat), duration(interval)),
    }
}

/// The table of several policies, their warnings and differences.
fn compared(output: &ExplainOutput) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let columns: Vec<_> = output.policies.iter().map(properties).collect();
    let names: Vec<&str> = columns[0].iter().map(|(name, _)| *name).collect();
    for (row, name) in names.iter().enumerate() {
        let values = columns.iter().map(|column| column[row].1.clone());
        table.add_row(std::iter::once((*name).to_owned()).chain(values));
    }
    for stretch in stretches(&output.policies) {
        let cells = output.policies.iter().map(|explanation| {
            let policy = explanation.policy.parse::<Policy>();
            let worst = policy.map(|policy| WorstCase::of(&policy, Duration::from_nanos(stretch)));
            worst.map_or_else(|error| error.to_string(), |worst| most(&worst))
        });
        let name = format!("most in {}", duration(stretch));
        table.add_row(std::iter::once(name).chain(cells));
    }
    let mut text = String::new();
    for line in table.lines() {
        let _ = writeln!(text, "{}", line.trim_end());
    }
    for (other, difference) in output.policies.iter().skip(1).zip(&output.differences) {
        text.push('\n');
        write_difference(
            &mut text,
            &output.policies[0].policy,
            &other.policy,
            difference,
        );
    }
    let warnings = output.policies.iter().flat_map(|one| one.warnings.clone());
    let mut warnings: Vec<String> = warnings.collect();
    warnings.dedup();
    write_warnings(&mut text, &warnings);
    text
}

/// Returns all stretches of all policies, in order.
fn stretches(policies: &[Explanation]) -> Vec<u64> {
    let all = policies.iter().flat_map(|one| &one.worst_cases);
    let mut stretches: Vec<u64> = all.map(|worst| worst.stretch_ns).collect();
    stretches.sort_unstable();
    stretches.dedup();
    stretches
}

/// The steps of a trace that are shown at its start and at its end.
const STEPS_SHOWN: usize = 3;

fn write_difference(text: &mut String, first: &str, other: &str, found: &Option<Difference>) {
    let Some(difference) = found else {
        let _ = writeln!(text, "No difference found: {first} and {other}");
        return;
    };
    let requests = difference.requests();
    let _ = writeln!(
        text,
        "Shortest trace on which they differ, {} requests",
        count(requests)
    );
    let steps = &difference.steps;
    let step = |step: &TraceStep| format!("{} at {}", count(step.count), instant(step.at_ns));
    let shown: Vec<String> = if steps.len() > 2 * STEPS_SHOWN {
        let left_out = steps.len() - 2 * STEPS_SHOWN;
        let tail = steps[steps.len() - STEPS_SHOWN..].iter().map(step);
        let head = steps[..STEPS_SHOWN].iter().map(step);
        head.chain([format!("… {left_out} more steps …")])
            .chain(tail)
            .collect()
    } else {
        steps.iter().map(step).collect()
    };
    let _ = writeln!(text, "  {}", shown.join(", "));
    let (allows, denies) = if difference.first_allows {
        (first, other)
    } else {
        (other, first)
    };
    let _ = writeln!(
        text,
        "  The last request is allowed by {allows}, denied by {denies}"
    );
}
