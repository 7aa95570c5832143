//! Charts as files (SVG, PNG, HTML) and in the terminal.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Color as TerminalColor;
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis, Chart as TerminalChart, Dataset, GraphType, Widget};
use tidegate_insight::plot::{
    AxisKind, Chart, Color, Panel, SeriesShape, seconds_label, short_number,
};

/// The file to draw to.
pub(crate) enum PlotTarget {
    Terminal,
    Svg(PathBuf),
    Png(PathBuf),
    Html(PathBuf),
}

impl PlotTarget {
    /// Chooses the format by the extension; `-` is the terminal.
    pub(crate) fn of(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Terminal);
        }
        let owned = path.to_owned();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("svg") => Ok(Self::Svg(owned)),
            Some("png") => Ok(Self::Png(owned)),
            Some("html" | "htm") => Ok(Self::Html(owned)),
            _ => bail!(
                "--plot {}: expected FILE.svg, FILE.png, FILE.html or -",
                path.display()
            ),
        }
    }

    /// Writes a chart. `page` renders the HTML page.
    pub(crate) fn write(&self, chart: &Chart, page: impl FnOnce() -> String) -> anyhow::Result<()> {
        let (path, bytes) = match self {
            Self::Terminal => {
                let text = for_terminal(chart);
                let mut stdout = std::io::stdout().lock();
                return stdout.write_all(text.as_bytes()).context("standard output");
            }
            Self::Svg(path) => (path, chart.to_svg().into_bytes()),
            Self::Png(path) => (path, chart.to_png().map_err(anyhow::Error::msg)?),
            Self::Html(path) => (path, page().into_bytes()),
        };
        std::fs::write(path, bytes).with_context(|| path.display().to_string())
    }
}

/// Returns `true` if the terminal shows colours: it is one, and NO_COLOR is not set.
pub(crate) fn has_colors() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty())
}

/// Returns a self-contained page with charts, each below an optional heading, and more HTML.
pub(crate) fn page(title: &str, charts: &[(Option<&str>, &Chart)], more: &str) -> String {
    let title = tidegate_insight::text::escaped(title);
    let mut body = String::new();
    for (heading, chart) in charts {
        if let Some(heading) = heading {
            let _ = writeln!(
                body,
                "<h2>{}</h2>",
                tidegate_insight::text::escaped(heading)
            );
        }
        let _ = writeln!(body, "<figure>{}</figure>", chart.to_svg());
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta \
         name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n\
         {more}\n{body}</main>\n</body>\n</html>\n",
        include_str!("page.css")
    )
}

const WIDTH: u16 = 100;
const PANEL_HEIGHT: u16 = 12;

/// Draws the panels below each other with braille dots, in colours if the terminal shows them.
pub(crate) fn for_terminal(chart: &Chart) -> String {
    let mut text = String::new();
    for panel in &chart.panels {
        let _ = writeln!(text, "{}{}", panel.title, legend(panel));
        text.push_str(&panel_text(chart, panel));
        text.push('\n');
    }
    text
}

fn legend(panel: &Panel) -> String {
    let names = panel.series.iter().map(|series| series.name.as_str());
    match panel.series.len() {
        0 | 1 => String::new(),
        _ if has_colors() => {
            let colored = panel.series.iter().map(|series| {
                let code = ansi(color(series.color));
                format!("\x1b[{code}m{}\x1b[0m", series.name)
            });
            format!(" ({})", colored.collect::<Vec<_>>().join(", "))
        }
        _ => format!(" ({})", names.collect::<Vec<_>>().join(", ")),
    }
}

const fn color(color: Color) -> TerminalColor {
    match color {
        Color::Offered => TerminalColor::DarkGray,
        Color::Admitted => TerminalColor::Blue,
        Color::Denied => TerminalColor::Red,
        Color::Level => TerminalColor::Green,
    }
}

const fn ansi(color: TerminalColor) -> u8 {
    match color {
        TerminalColor::DarkGray => 90,
        TerminalColor::Blue => 34,
        TerminalColor::Red => 31,
        TerminalColor::Green => 32,
        _ => 39,
    }
}

fn panel_text(chart: &Chart, panel: &Panel) -> String {
    let (from, to) = chart.x_range();
    let top = panel.y_top();
    let points: Vec<Vec<(f64, f64)>> = panel
        .series
        .iter()
        .map(|s| stairs(&s.points, s.shape))
        .collect();
    let datasets = panel.series.iter().zip(&points).map(|(series, points)| {
        Dataset::default()
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(color(series.color))
            .data(points)
    });
    let x_label = |x: f64| match chart.x {
        AxisKind::Seconds => seconds_label(x, to - from),
        AxisKind::Logarithmic => short_number(x),
    };
    let x = Axis::default()
        .bounds([from, to])
        .labels([from, f64::midpoint(from, to), to].map(|x| Line::from(x_label(x))));
    let y = Axis::default()
        .bounds([0.0, top])
        .labels([0.0, top / 2.0, top].map(|y| Line::from(short_number(y))));
    let widget = TerminalChart::new(datasets.collect())
        .x_axis(x)
        .y_axis(y)
        .hidden_legend_constraints((Constraint::Length(0), Constraint::Length(0)));
    let area = Rect::new(0, 0, WIDTH, PANEL_HEIGHT);
    let mut buffer = Buffer::empty(area);
    widget.render(area, &mut buffer);
    printed(&buffer)
}

/// Returns the points of a staircase, so that a line through them shows it.
fn stairs(points: &[(f64, f64)], shape: SeriesShape) -> Vec<(f64, f64)> {
    if shape == SeriesShape::Line {
        return points.to_vec();
    }
    let mut last = 0.0;
    let mut stairs = Vec::with_capacity(2 * points.len());
    for (x, y) in points {
        stairs.extend([(*x, last), (*x, *y)]);
        last = *y;
    }
    stairs
}

/// Prints the cells of a buffer, with their colours if the terminal shows them.
fn printed(buffer: &Buffer) -> String {
    let has_colors = has_colors();
    let mut text = String::new();
    for row in 0..buffer.area.height {
        let mut line = String::new();
        let mut current = TerminalColor::Reset;
        for column in 0..buffer.area.width {
            let cell = &buffer[(column, row)];
            if has_colors && cell.fg != current {
                current = cell.fg;
                let _ = write!(line, "\x1b[{}m", ansi(current));
            }
            line.push_str(cell.symbol());
        }
        if has_colors {
            line.push_str("\x1b[0m");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}
