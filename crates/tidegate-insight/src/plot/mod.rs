//! Charts: panels of lines and areas over a common axis, as SVG or PNG.
//!
//! `layout` turns a [`Chart`] into lines, boxes and text on a `Canvas`; `svg` and `png` draw
//! those. Floats are fine here: nothing decides.

mod layout;
mod png;
mod svg;
mod ticks;

pub use ticks::{seconds_label, short_number};

/// A chart: panels below each other, with one horizontal axis.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// The title above the panels.
    pub title: String,
    /// The horizontal axis.
    pub x: AxisKind,
    /// The label of the horizontal axis.
    pub x_label: String,
    /// The panels from top to bottom.
    pub panels: Vec<Panel>,
}

/// The values of a horizontal axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AxisKind {
    /// Seconds since the start.
    #[default]
    Seconds,
    /// Numbers, on a logarithmic scale.
    Logarithmic,
}

/// One panel of a [`Chart`].
#[derive(Clone, Debug, Default)]
pub struct Panel {
    /// The title above the panel.
    pub title: String,
    /// The label of the vertical axis.
    pub y_label: String,
    /// The series, the first at the back.
    pub series: Vec<Series>,
    /// Horizontal positions of vertical lines, such as the edges of windows or a knee.
    pub marks: Vec<f64>,
    /// The largest value of the vertical axis, if it is fixed.
    pub y_max: Option<f64>,
}

/// Points of one kind.
#[derive(Clone, Debug)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// The shape.
    pub shape: SeriesShape,
    /// The colour.
    pub color: Color,
    /// The points, sorted by their first number.
    pub points: Vec<(f64, f64)>,
}

/// The shape of a [`Series`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesShape {
    /// A line through the points.
    Line,
    /// A filled staircase: a point holds until the next one.
    Steps,
}

/// A colour by its role. Its value depends on the theme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Color {
    /// Requests that arrived.
    Offered,
    /// Requests that were allowed.
    Admitted,
    /// Requests that were denied.
    Denied,
    /// A figure beside the requests, such as the remaining tokens.
    Level,
}

impl Color {
    /// Returns the colour on a light and on a dark background.
    #[must_use]
    pub const fn values(self) -> ([u8; 3], [u8; 3]) {
        match self {
            Self::Offered => ([0xb8, 0xc0, 0xcc], [0x56, 0x60, 0x70]),
            Self::Admitted => ([0x1f, 0x6f, 0xb2], [0x5a, 0xb0, 0xf0]),
            Self::Denied => ([0xc2, 0x3b, 0x22], [0xf0, 0x80, 0x66]),
            Self::Level => ([0x2a, 0x80, 0x50], [0x66, 0xc8, 0x90]),
        }
    }

    const fn class(self) -> &'static str {
        match self {
            Self::Offered => "offered",
            Self::Admitted => "admitted",
            Self::Denied => "denied",
            Self::Level => "level",
        }
    }
}

impl Chart {
    /// Draws the chart as SVG. It follows the light or dark theme of the reader.
    #[must_use]
    pub fn to_svg(&self) -> String {
        svg::draw(self)
    }

    /// Draws the chart as a PNG image on a light background, at twice the size.
    ///
    /// # Errors
    ///
    /// Returns an error if the image is too large.
    pub fn to_png(&self) -> Result<Vec<u8>, String> {
        png::draw(self)
    }

    /// Returns the smallest and the largest horizontal value.
    #[must_use]
    pub fn x_range(&self) -> (f64, f64) {
        let series = self.panels.iter().flat_map(|panel| &panel.series);
        let xs = series.flat_map(|series| series.points.iter().map(|(x, _)| *x));
        let (low, high) = xs.fold((f64::MAX, f64::MIN), |(low, high), x| {
            (low.min(x), high.max(x))
        });
        match low < high {
            true => (low, high),
            false if low == high => (low, low + 1.0),
            false => (0.0, 1.0),
        }
    }
}

impl Panel {
    /// Returns the largest value of the vertical axis.
    #[must_use]
    pub fn y_top(&self) -> f64 {
        let ys = self.series.iter().flat_map(|series| series.points.iter());
        let highest = ys.map(|(_, y)| *y).fold(0.0, f64::max);
        self.y_max.unwrap_or(highest).max(f64::MIN_POSITIVE)
    }
}

/// The parts of a drawing whose colour depends on the theme.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ink {
    Text,
    Faint,
    Grid,
    Mark,
    Series(Color),
}

/// The position of a text relative to its point.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Anchor {
    Start,
    Middle,
    End,
}

/// A surface to draw on. Coordinates are pixels from the top left.
trait Canvas {
    fn line(&mut self, ink: Ink, from: (f64, f64), to: (f64, f64));
    fn polyline(&mut self, ink: Ink, points: &[(f64, f64)]);
    fn area(&mut self, ink: Ink, points: &[(f64, f64)]);
    fn swatch(&mut self, ink: Ink, at: (f64, f64), size: f64);
    fn text(&mut self, ink: Ink, at: (f64, f64), anchor: Anchor, is_title: bool, text: &str);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        Chart {
            title: "a < b & \"c\"".to_owned(),
            x: AxisKind::Seconds,
            x_label: "time".to_owned(),
            panels: vec![Panel {
                title: "requests per second".to_owned(),
                y_label: "1/s".to_owned(),
                series: vec![Series {
                    name: "offered".to_owned(),
                    shape: SeriesShape::Steps,
                    color: Color::Offered,
                    points: vec![(0.0, 1.0), (60.0, 5.0), (120.0, 0.0)],
                }],
                marks: vec![60.0],
                y_max: None,
            }],
        }
    }

    #[test]
    fn svg_is_escaped_and_well_formed() {
        let svg = chart().to_svg();
        assert!(svg.contains("a &lt; b &amp; &quot;c&quot;"), "{svg}");
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("prefers-color-scheme: dark"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn png_has_the_signature_and_empty_charts_are_drawn() {
        let png = chart().to_png().unwrap();
        assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
        assert!(Chart::default().to_svg().contains("<svg"));
        assert!(Chart::default().to_png().is_ok());
    }
}
