//! `--html FILE`: the results as one self-contained page with plots.

use std::fmt::Write as _;

use tidegate_insight::Timeline;
use tidegate_insight::log::utc_seconds;
use tidegate_insight::plot::{AxisKind, Chart, Color, Panel, Series, SeriesShape};
use tidegate_insight::replay::find::HourFigures;
use tidegate_insight::replay::{Curve, Replay};
use tidegate_insight::text::{count, duration, escaped};

use super::Results;
use super::table;
use crate::plot_file;

/// Returns a chart of the requests over time, with a panel for each policy.
pub(super) fn timelines(replay: &Replay) -> Chart {
    let timelines = replay.timelines();
    let panels = timelines.iter().map(|(policy, timeline)| Panel {
        title: format!(
            "{policy}: requests per {}",
            duration(timeline.width_us() * 1_000)
        ),
        series: vec![
            series("denied", Color::Denied, points(timeline, |bin| bin.offered)),
            series(
                "admitted",
                Color::Admitted,
                points(timeline, |bin| bin.admitted),
            ),
        ],
        ..Panel::default()
    });
    let start = timelines
        .first()
        .map_or(0, |(_, timeline)| timeline.start_us());
    Chart {
        title: "Requests over time".to_owned(),
        x: AxisKind::Seconds,
        x_label: format!("since {} UTC", utc_seconds(start)),
        panels: panels.collect(),
    }
}

fn series(name: &str, color: Color, points: Vec<(f64, f64)>) -> Series {
    Series {
        name: name.to_owned(),
        shape: SeriesShape::Steps,
        color,
        points,
    }
}

fn points(timeline: &Timeline, value: fn(&tidegate_insight::Bin) -> u64) -> Vec<(f64, f64)> {
    let width = timeline.width_us() as f64 / 1e6;
    let bins = timeline.bins().iter().enumerate();
    let mut points: Vec<(f64, f64)> = bins
        .map(|(index, bin)| (index as f64 * width, value(bin) as f64))
        .collect();
    points.push((timeline.bins().len() as f64 * width, 0.0));
    points
}

fn curve_chart(curve: &Curve) -> Chart {
    let share = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    let line = |name: &str, color: Color, value: &dyn Fn(usize) -> f64| Series {
        name: name.to_owned(),
        shape: SeriesShape::Line,
        color,
        points: (0..curve.points.len())
            .map(|index| (curve.points[index].limit as f64, value(index)))
            .collect(),
    };
    let point = |index: usize| &curve.points[index];
    let keys = |index: usize| share(point(index).limited_keys, point(index).keys);
    let requests = |index: usize| share(point(index).denied, point(index).requests);
    Chart {
        title: "Effect of larger and smaller limits".to_owned(),
        x: AxisKind::Logarithmic,
        x_label: "limit".to_owned(),
        panels: vec![Panel {
            title: "share in per cent".to_owned(),
            series: vec![
                line("requests denied", Color::Denied, &requests),
                line("keys limited", Color::Admitted, &keys),
            ],
            marks: curve
                .knee
                .map(|knee| point(knee).limit as f64)
                .into_iter()
                .collect(),
            y_max: Some(100.0),
            ..Panel::default()
        }],
    }
}

fn hours_chart(hours: &[HourFigures]) -> Chart {
    let start = hours.first().map_or(0, |hour| hour.start_us);
    let offset = |hour: &HourFigures| (hour.start_us - start) as f64 / 1e6;
    let all = |value: fn(&HourFigures) -> u64| {
        let mut points: Vec<(f64, f64)> = hours
            .iter()
            .map(|hour| (offset(hour), value(hour) as f64))
            .collect();
        points.extend(hours.last().map(|hour| (offset(hour) + 3_600.0, 0.0)));
        points
    };
    Chart {
        title: "The recommended limit by hour".to_owned(),
        x: AxisKind::Seconds,
        x_label: format!("since {} UTC", utc_seconds(start)),
        panels: vec![Panel {
            title: "requests per hour".to_owned(),
            series: vec![
                series("denied", Color::Denied, all(|hour| hour.requests)),
                series(
                    "admitted",
                    Color::Admitted,
                    all(|hour| hour.requests - hour.denied),
                ),
            ],
            ..Panel::default()
        }],
    }
}

pub(super) fn page(results: &Results<'_>, timelines: &Chart) -> String {
    let mut more = format!("<pre>{}</pre>\n", escaped_lines(&table::rendered(results)));
    if !results.top.is_empty() {
        more.push_str("<h2>Keys</h2>\n");
        write_keys(&mut more, results);
    }
    let curve = results.curve.as_ref().map(curve_chart);
    let hours = results
        .found
        .as_ref()
        .map(|found| hours_chart(&found.hours));
    let mut charts = Vec::new();
    if !timelines.panels.is_empty() {
        charts.push((None, timelines));
    }
    charts.extend(curve.iter().map(|chart| (None, chart)));
    charts.extend(hours.iter().map(|chart| (None, chart)));
    plot_file::page("Tidegate replay", &charts, &more)
}

fn escaped_lines(text: &str) -> String {
    text.lines().map(escaped).collect::<Vec<_>>().join("\n")
}

fn write_keys(page: &mut String, results: &Results<'_>) {
    page.push_str("<div class=\"scroll\"><table>\n<tr><th>Key</th><th>Requests</th>");
    for policy in &results.report.policies {
        let _ = write!(page, "<th>Denied by {}</th>", escaped(&policy.policy));
    }
    page.push_str("<th>First denied</th><th>Irregularity</th></tr>\n");
    for key in &results.top {
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{}</td>",
            escaped(&key.key),
            count(key.requests)
        );
        for denials in &key.denials {
            let _ = write!(page, "<td>{}</td>", count(denials.count));
        }
        let denied = key.denials.iter().filter(|denials| denials.count > 0);
        let first = denied.map(|denials| denials.first_us).min();
        let first = first.map_or_else(|| "–".to_owned(), utc_seconds);
        let irregularity = key
            .irregularity
            .map_or_else(|| "–".to_owned(), |v| format!("{v:.2}"));
        let _ = writeln!(page, "<td>{first}</td><td>{irregularity}</td></tr>");
    }
    page.push_str("</table></div>\n");
}
