//! Charts as SVG.

use std::fmt::Write as _;

use super::layout::{self, WIDTH};
use super::{Anchor, Canvas, Chart, Color, Ink};
use crate::text::escaped;

struct Svg {
    text: String,
}

pub(super) fn draw(chart: &Chart) -> String {
    let mut svg = Svg {
        text: String::new(),
    };
    layout::draw(chart, &mut svg);
    let height = layout::height(chart);
    let title = escaped(&chart.title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         role=\"img\" aria-label=\"{title}\" font-family=\"ui-sans-serif, system-ui, sans-serif\" \
         font-size=\"12\">\n<style>\n{}</style>\n<rect class=\"paper\" width=\"{WIDTH}\" \
         height=\"{height}\" rx=\"6\"/>\n{}</svg>\n",
        style(),
        svg.text
    )
}

/// Returns the style sheet for both themes.
fn style() -> String {
    let themes = [false, true].map(|is_dark| {
        let [paper, text, faint, grid] = if is_dark {
            ["#14181f", "#e8ebf0", "#98a2b0", "#262d38"]
        } else {
            ["#ffffff", "#1c2330", "#667085", "#e9edf2"]
        };
        let mut css = format!(
            ".paper{{fill:{paper}}} .text{{fill:{text}}} .faint{{fill:{faint};stroke:{faint}}} \
             text.faint{{stroke:none}} .grid{{stroke:{grid}}} .mark{{stroke:{faint};stroke-dasharray:3 3}}\n"
        );
        for color in [Color::Offered, Color::Admitted, Color::Denied, Color::Level] {
            let (light, dark) = color.values();
            let [r, g, b] = if is_dark { dark } else { light };
            let class = color.class();
            let _ = writeln!(
                css,
                ".{class}{{fill:#{r:02x}{g:02x}{b:02x}}} \
                 polyline.{class}{{stroke:#{r:02x}{g:02x}{b:02x};fill:none;stroke-width:1.8}}"
            );
        }
        css
    });
    let [light, dark] = themes;
    format!("{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n")
}

fn class(ink: Ink) -> &'static str {
    match ink {
        Ink::Text => "text",
        Ink::Faint => "faint",
        Ink::Grid => "grid",
        Ink::Mark => "mark",
        Ink::Series(color) => color.class(),
    }
}

fn coordinates(points: &[(f64, f64)]) -> String {
    let pairs = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}"));
    pairs.collect::<Vec<_>>().join(" ")
}

impl Canvas for Svg {
    fn line(&mut self, ink: Ink, from: (f64, f64), to: (f64, f64)) {
        let (class, (x1, y1), (x2, y2)) = (class(ink), from, to);
        let _ = writeln!(
            self.text,
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        );
    }

    fn polyline(&mut self, ink: Ink, points: &[(f64, f64)]) {
        let (class, points) = (class(ink), coordinates(points));
        let _ = writeln!(
            self.text,
            "<polyline class=\"{class}\" points=\"{points}\"/>"
        );
    }

    fn area(&mut self, ink: Ink, points: &[(f64, f64)]) {
        let (class, points) = (class(ink), coordinates(points));
        let _ = writeln!(
            self.text,
            "<polygon class=\"{class}\" points=\"{points}\"/>"
        );
    }

    fn swatch(&mut self, ink: Ink, (x, y): (f64, f64), size: f64) {
        let class = class(ink);
        let _ = writeln!(
            self.text,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{size}\" height=\"{size}\" rx=\"2\"/>"
        );
    }

    fn text(&mut self, ink: Ink, (x, y): (f64, f64), anchor: Anchor, is_title: bool, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let size = if is_title {
            " font-size=\"15\" font-weight=\"600\""
        } else {
            ""
        };
        let (class, text) = (class(ink), escaped(text));
        let _ = writeln!(
            self.text,
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{size}>{text}</text>"
        );
    }
}
