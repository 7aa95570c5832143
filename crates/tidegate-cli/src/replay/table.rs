//! `--output table`: the results for people.

use std::fmt::Write as _;

use comfy_table::{Cell, CellAlignment, Table, presets};
use tidegate_insight::log::utc_seconds;
use tidegate_insight::replay::find::{Found, HourFigures, PartFigures};
use tidegate_insight::replay::{ClientBehavior, Curve, PolicyFigures, ReplayReport};
use tidegate_insight::text::{count, duration, per_cent, plural};

use super::Results;
use crate::simulate::printable;

pub(super) fn rendered(results: &Results<'_>) -> String {
    let mut text = String::new();
    write_log(&mut text, results);
    for policy in &results.report.policies {
        write_policy(&mut text, results, policy);
    }
    if !results.report.policies.is_empty() {
        write_keys(&mut text, results);
    }
    if let Some(curve) = &results.curve {
        write_curve(&mut text, curve);
    }
    if let Some(found) = &results.found {
        write_found(&mut text, results, found);
    }
    text
}

/// Returns the time that a log covers.
pub(super) fn span(report: &ReplayReport) -> String {
    format!(
        "{} to {} UTC",
        utc_seconds(report.first_us),
        utc_seconds(report.last_us)
    )
}

fn write_log(text: &mut String, results: &Results<'_>) {
    let report = &results.report;
    let more = if report.is_exact { "" } else { "more than " };
    let _ = writeln!(
        text,
        "log       {} of {more}{}, {}",
        plural(report.requests, "request"),
        plural(report.keys, "key"),
        span(report)
    );
    let mut notes = Vec::new();
    let unreadable = results.unreadable.count();
    if unreadable > 0 {
        notes.push(format!("{} left out", plural(unreadable, "line")));
    }
    if results.was_spread {
        notes.push("times within a second are spread evenly (--no-spread keeps them)".to_owned());
    }
    if report.out_of_order > 0 {
        notes.push(format!(
            "{} out of order",
            plural(report.out_of_order, "line")
        ));
    }
    if results.is_partial {
        notes.push("interrupted: these results are partial".to_owned());
    }
    for note in notes {
        let _ = writeln!(text, "          {note}");
    }
}

fn write_policy(text: &mut String, results: &Results<'_>, policy: &PolicyFigures) {
    let report = &results.report;
    let _ = writeln!(text, "\npolicy    {}", policy.policy);
    let _ = writeln!(
        text,
        "denied    {} of {} requests ({})",
        count(policy.denied),
        count(report.requests),
        per_cent(policy.denied, report.requests)
    );
    let _ = writeln!(
        text,
        "limited   {} of {} keys ({})",
        count(policy.limited_keys),
        count(report.keys),
        per_cent(policy.limited_keys, report.keys)
    );
    if policy.denied > policy.never {
        let _ = writeln!(
            text,
            "          longest retry-after {}",
            duration(policy.longest_wait_us * 1_000)
        );
    }
    if policy.never > 0 {
        let never = count(policy.never);
        let _ = writeln!(
            text,
            "          {never} can never be allowed: the cost exceeds the capacity"
        );
    }
    let behavior = results.options.clients();
    if behavior != ClientBehavior::AsLogged {
        let _ = writeln!(
            text,
            "clients   {}: {} retries, {} served later after {} on average, {} gave up",
            behavior.name(),
            count(policy.retries),
            count(policy.served_later),
            duration(policy.mean_delay_us * 1_000),
            count(policy.given_up)
        );
    }
    if policy.evictions > 0 {
        let _ = writeln!(
            text,
            "          {} keys were evicted too early; --max-keys N keeps more",
            count(policy.evictions)
        );
    }
}

fn right(text: impl ToString) -> Cell {
    Cell::new(text.to_string()).set_alignment(CellAlignment::Right)
}

fn lines(table: &Table) -> String {
    let lines = table.lines().map(|line| format!("{}\n", line.trim_end()));
    lines.collect()
}

fn write_keys(text: &mut String, results: &Results<'_>) {
    if results.top.is_empty() {
        text.push_str("\nNo key was limited.\n");
        return;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let several = results.report.policies.len() > 1;
    let mut header = vec!["key".to_owned(), "requests".to_owned()];
    for index in 1..=results.report.policies.len() {
        header.push(if several {
            format!("denied by {index}")
        } else {
            "denied".to_owned()
        });
    }
    header.extend([
        "first denied".to_owned(),
        "last denied".to_owned(),
        "irregularity".to_owned(),
    ]);
    table.set_header(header);
    for key in &results.top {
        let denied = key.denials.iter().filter(|denials| denials.count > 0);
        let first = denied.clone().map(|denials| denials.first_us).min();
        let last = denied.map(|denials| denials.last_us).max();
        let time = |at_us: Option<u64>| at_us.map_or_else(|| "-".to_owned(), utc_seconds);
        let irregularity = key.irregularity.map(|value| format!("{value:.2}"));
        let mut cells = vec![Cell::new(printable(&key.key)), right(count(key.requests))];
        cells.extend(
            key.denials
                .iter()
                .map(|denials| right(count(denials.count))),
        );
        cells.extend([right(time(first)), right(time(last))]);
        cells.push(right(irregularity.unwrap_or_else(|| "-".to_owned())));
        table.add_row(cells);
    }
    let _ = write!(text, "\n{}", lines(&table));
    text.push_str(
        " Irregularity: deviation of the gaps between requests by their mean; 0 is a timer.\n",
    );
}

fn write_curve(text: &mut String, curve: &Curve) {
    if curve.points.is_empty() {
        return;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["limit", "keys limited", "requests denied", ""]);
    for (index, point) in curve.points.iter().enumerate() {
        table.add_row([
            Cell::new(&point.policy),
            right(per_cent(point.limited_keys, point.keys)),
            right(per_cent(point.denied, point.requests)),
            Cell::new(if curve.knee == Some(index) {
                "← knee"
            } else {
                ""
            }),
        ]);
    }
    let _ = write!(text, "\n{}", lines(&table));
    if curve.sample > 1 {
        let _ = writeln!(text, " From one in {} keys.", count(curve.sample));
    }
}

/// Returns the configuration to paste, enforced and as a candidate.
pub(super) fn policy_block(name: &str, policy: &str) -> String {
    format!(
        "[policies.{name}]\nlimits = \"{policy}\"\n\n\
         # Or beside the limits that you enforce now, to compare before you switch:\n\
         # [policies.{name}]\n# limits = \"…\"\n# candidate = \"{policy}\"\n"
    )
}

fn write_found(text: &mut String, results: &Results<'_>, found: &Found) {
    let _ = writeln!(text, "\nfound     {}", found.policy);
    if !found.reaches_goal {
        text.push_str("          no limit reaches the goal; this one is the nearest\n");
    }
    write_part(text, "searched", &found.searched);
    write_part(text, "checked", &found.checked);
    let _ = writeln!(text, "by hour   {}", spread(&found.hours));
    write_doubts(text, results, found);
    if found.sample > 1 {
        let _ = writeln!(text, "          from one in {} keys", count(found.sample));
    }
    let block = policy_block(results.options.name.as_str(), &found.policy);
    let _ = write!(text, "\n{block}");
}

/// The number of keys below which a share of keys means little.
const FEW_KEYS: u64 = 1_000;

/// Says why a recommendation should be read with care.
fn write_doubts(text: &mut String, results: &Results<'_>, found: &Found) {
    let (searched, checked) = (&found.searched, &found.checked);
    if checked.limited_keys * 1_000_000 > checked.keys * results.touched_ppm {
        text.push_str("warning   the second half of the log misses the goal: it has other traffic");
        text.push_str(match checked.attack_stopped {
            None => ", or an attack (--attack FROM..TO)\n",
            Some(_) => "\n",
        });
    }
    if searched.keys < FEW_KEYS {
        let keys = count(searched.keys);
        let _ = writeln!(
            text,
            "warning   only {keys} keys were searched: use a longer log for a share of keys"
        );
    }
}

fn write_part(text: &mut String, name: &str, part: &PartFigures) {
    let _ = write!(
        text,
        "{name:<9} {} of {} keys limited ({}), {} of {} requests denied ({})",
        count(part.limited_keys),
        count(part.keys),
        per_cent(part.limited_keys, part.keys),
        count(part.denied),
        count(part.requests),
        per_cent(part.denied, part.requests)
    );
    if let Some(stopped) = part.attack_stopped {
        let _ = write!(text, ", {:.1} % of the attack stopped", stopped * 100.0);
    }
    text.push('\n');
}

/// Returns the least, median and largest share of denied requests in an hour.
fn spread(hours: &[HourFigures]) -> String {
    let mut shares: Vec<&HourFigures> = hours.iter().collect();
    shares.sort_by(|a, b| {
        let (a, b) = (
            u128::from(a.denied) * u128::from(b.requests),
            u128::from(b.denied) * u128::from(a.requests),
        );
        a.cmp(&b)
    });
    let share = |hour: Option<&&HourFigures>| {
        hour.map_or_else(String::new, |hour| per_cent(hour.denied, hour.requests))
    };
    format!(
        "{} to {} of requests denied, median {}, in {}",
        share(shares.first()),
        share(shares.last()),
        share(shares.get(shares.len() / 2)),
        plural(hours.len() as u64, "hour")
    )
}
