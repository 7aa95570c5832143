//! The results of a simulation for people: a table, a chart, a chart in the terminal.

use std::fmt::Write as _;
use std::time::Duration;

use comfy_table::{Cell, CellAlignment, Table, presets};
use tidegate_insight::Timeline;
use tidegate_insight::plot::{AxisKind, Chart, Color, Panel, Series, SeriesShape};

use super::{Lane, SimulateOptions};
use crate::plot_file::{self, PlotTarget};

/// Returns the summary of one policy by key, or a table with a line for each policy.
pub(super) fn summary(lanes: &[Lane], options: &SimulateOptions) -> String {
    if let [lane] = lanes
        && options.traffic.is_empty()
    {
        return lane.summary.rendered(lane.simulation.limiter.policy());
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let period = lanes.iter().map(|lane| lane.most.period()).max();
    let most = format!("most in {}", shown(period.unwrap_or_default()));
    table.set_header([
        "policy",
        "requests",
        "allowed",
        "denied",
        "",
        &most,
        "longest retry-after",
    ]);
    for lane in lanes {
        let (requests, allowed) = lane.summary.totals();
        let denied = requests - allowed;
        let wait = match lane.summary.longest_wait() {
            Duration::ZERO => "-".to_owned(),
            wait => shown(wait),
        };
        let figures = [
            requests.to_string(),
            allowed.to_string(),
            denied.to_string(),
            tidegate_insight::text::per_cent(denied, requests),
            lane.most.most().to_string(),
            wait,
        ];
        let cells = figures.map(|text| Cell::new(text).set_alignment(CellAlignment::Right));
        let policy = Cell::new(lane.simulation.limiter.policy());
        table.add_row(std::iter::once(policy).chain(cells));
    }
    let mut text = String::new();
    for line in table.lines() {
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Returns a chart for the terminal.
pub(super) fn terminal(lanes: &[Lane]) -> String {
    format!("\n{}", plot_file::for_terminal(&chart(lanes)))
}

/// Writes the chart to a file, or prints it.
pub(super) fn plot(lanes: &[Lane], target: &PlotTarget) -> anyhow::Result<()> {
    let chart = chart(lanes);
    let title = "Tidegate simulation";
    target.write(&chart, || plot_file::page(title, &[(None, &chart)], ""))
}

/// Returns a chart with two panels for each policy: requests, and remaining units.
fn chart(lanes: &[Lane]) -> Chart {
    let panels = lanes.iter().flat_map(|lane| {
        let policy = lane.simulation.limiter.policy().to_string();
        let capacities = lane.simulation.limiter.policy().limits().iter();
        let capacity = capacities.map(|limit| limit.capacity()).min().unwrap_or(1);
        panels(&lane.timeline, &policy, capacity)
    });
    Chart {
        title: "Requests offered and admitted over time".to_owned(),
        x: AxisKind::Seconds,
        x_label: "time".to_owned(),
        panels: panels.collect(),
    }
}

fn panels(timeline: &Timeline, policy: &str, capacity: u64) -> [Panel; 2] {
    let bins = timeline.bins();
    let width = timeline.width_us() as f64 / 1e6;
    let count = |value: fn(&tidegate_insight::Bin) -> u64| {
        let points = bins.iter().enumerate();
        let mut points: Vec<(f64, f64)> = points
            .map(|(index, bin)| (index as f64 * width, value(bin) as f64))
            .collect();
        points.push((bins.len() as f64 * width, 0.0));
        points
    };
    let remaining = bins
        .iter()
        .enumerate()
        .filter_map(|(index, bin)| Some((index as f64 * width, bin.least_remaining? as f64)));
    let interval = shown(Duration::from_micros(timeline.width_us()));
    [
        Panel {
            title: format!("{policy}: requests per {interval}"),
            series: vec![
                Series {
                    name: "offered".to_owned(),
                    shape: SeriesShape::Steps,
                    color: Color::Offered,
                    points: count(|bin| bin.offered),
                },
                Series {
                    name: "admitted".to_owned(),
                    shape: SeriesShape::Steps,
                    color: Color::Admitted,
                    points: count(|bin| bin.admitted),
                },
            ],
            ..Panel::default()
        },
        Panel {
            title: format!("{policy}: units left, of the client with the least"),
            series: vec![Series {
                name: "left".to_owned(),
                shape: SeriesShape::Line,
                color: Color::Level,
                points: remaining.collect(),
            }],
            y_max: Some(capacity as f64),
            ..Panel::default()
        },
    ]
}

fn shown(duration: Duration) -> String {
    tidegate_insight::text::duration(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}
