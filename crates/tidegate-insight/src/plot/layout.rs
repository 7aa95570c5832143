//! The layout of a chart: where panels, axes, lines and texts are.

use super::ticks;
use super::{Anchor, AxisKind, Canvas, Chart, Ink, Panel, SeriesShape};

pub(super) const WIDTH: f64 = 860.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 34.0;
const TITLE: f64 = 34.0;
const PANEL_TITLE: f64 = 30.0;
const PANEL: f64 = 130.0;
const AXIS: f64 = 42.0;
/// The width of a character in a legend, about.
const CHARACTER: f64 = 7.2;

/// Returns the height of a chart.
pub(super) fn height(chart: &Chart) -> f64 {
    TITLE + chart.panels.len() as f64 * (PANEL_TITLE + PANEL) + AXIS
}

/// Maps values to pixels in one panel.
struct Scale {
    kind: AxisKind,
    from: f64,
    to: f64,
    top: f64,
    y_top: f64,
}

impl Scale {
    fn x(&self, value: f64) -> f64 {
        let position = match self.kind {
            AxisKind::Seconds => (value - self.from) / (self.to - self.from),
            AxisKind::Logarithmic => {
                let log = |value: f64| value.max(f64::MIN_POSITIVE).log10();
                (log(value) - log(self.from)) / (log(self.to) - log(self.from)).max(1e-9)
            }
        };
        LEFT + position.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        self.top + PANEL * (1.0 - (value / self.y_top).clamp(0.0, 1.0))
    }
}

pub(super) fn draw(chart: &Chart, canvas: &mut impl Canvas) {
    canvas.text(Ink::Text, (LEFT, 22.0), Anchor::Start, true, &chart.title);
    let (from, to) = chart.x_range();
    let mut top = TITLE;
    for (index, panel) in chart.panels.iter().enumerate() {
        top += PANEL_TITLE;
        let scale = Scale {
            kind: chart.x,
            from,
            to,
            top,
            y_top: panel.y_top() * if panel.y_max.is_some() { 1.0 } else { 1.08 },
        };
        let is_last = index + 1 == chart.panels.len();
        draw_panel(panel, &scale, canvas);
        draw_x_axis(chart, &scale, is_last, canvas);
        top += PANEL;
    }
}

fn draw_panel(panel: &Panel, scale: &Scale, canvas: &mut impl Canvas) {
    let title_y = scale.top - 10.0;
    canvas.text(
        Ink::Text,
        (LEFT, title_y),
        Anchor::Start,
        false,
        &panel.title,
    );
    draw_legend(panel, title_y, canvas);
    for tick in ticks::linear(scale.y_top, 4.0) {
        let y = scale.y(tick);
        canvas.line(Ink::Grid, (LEFT, y), (WIDTH - RIGHT, y));
        let label = ticks::short_number(tick);
        canvas.text(
            Ink::Faint,
            (LEFT - 8.0, y + 4.0),
            Anchor::End,
            false,
            &label,
        );
    }
    for series in &panel.series {
        let ink = Ink::Series(series.color);
        match series.shape {
            SeriesShape::Line => {
                let points = series
                    .points
                    .iter()
                    .map(|(x, y)| (scale.x(*x), scale.y(*y)));
                canvas.polyline(ink, &points.collect::<Vec<_>>());
            }
            SeriesShape::Steps => canvas.area(ink, &staircase(&series.points, scale)),
        }
    }
    for mark in &panel.marks {
        let x = scale.x(*mark);
        canvas.line(Ink::Mark, (x, scale.top), (x, scale.top + PANEL));
    }
}

/// Returns the outline of a staircase, from the base line and back to it.
fn staircase(points: &[(f64, f64)], scale: &Scale) -> Vec<(f64, f64)> {
    let mut outline = Vec::with_capacity(2 * points.len() + 2);
    let base = scale.y(0.0);
    let mut last = base;
    for (x, y) in points {
        let (x, y) = (scale.x(*x), scale.y(*y));
        outline.extend([(x, last), (x, y)]);
        last = y;
    }
    if let Some((x, _)) = outline.last().copied() {
        outline.push((x, base));
    }
    outline
}

fn draw_legend(panel: &Panel, y: f64, canvas: &mut impl Canvas) {
    let mut x = WIDTH - RIGHT;
    for series in panel.series.iter().rev() {
        x -= CHARACTER * series.name.chars().count() as f64;
        canvas.text(Ink::Faint, (x, y), Anchor::Start, false, &series.name);
        x -= 16.0;
        canvas.swatch(Ink::Series(series.color), (x, y - 9.0), 10.0);
        x -= 16.0;
    }
}

fn draw_x_axis(chart: &Chart, scale: &Scale, has_labels: bool, canvas: &mut impl Canvas) {
    let bottom = scale.top + PANEL;
    canvas.line(Ink::Faint, (LEFT, bottom), (WIDTH - RIGHT, bottom));
    if !has_labels {
        return;
    }
    let ticks = match chart.x {
        AxisKind::Seconds => ticks::times(scale.from, scale.to, 8.0),
        AxisKind::Logarithmic => ticks::logarithmic(scale.from, scale.to),
    };
    for tick in ticks {
        let x = scale.x(tick);
        canvas.line(Ink::Faint, (x, bottom), (x, bottom + 4.0));
        let label = match chart.x {
            AxisKind::Seconds => ticks::seconds_label(tick, scale.to - scale.from),
            AxisKind::Logarithmic => ticks::short_number(tick),
        };
        canvas.text(
            Ink::Faint,
            (x, bottom + 18.0),
            Anchor::Middle,
            false,
            &label,
        );
    }
    let label_at = (WIDTH - RIGHT, bottom + 36.0);
    canvas.text(Ink::Faint, label_at, Anchor::End, false, &chart.x_label);
}
