//! Charts as PNG, on a light background, with a bitmap font.

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};
use tiny_skia::{
    Color as Rgba, FillRule, LineCap, Paint, PathBuilder, Pixmap, PremultipliedColorU8, Rect,
    Stroke, StrokeDash, Transform,
};

use super::layout::{self, WIDTH};
use super::{Anchor, Canvas, Chart, Ink};

/// Pixels per unit of the layout.
const SCALE: f32 = 2.0;

struct Png {
    pixels: Pixmap,
}

pub(super) fn draw(chart: &Chart) -> Result<Vec<u8>, String> {
    let (width, height) = (
        (WIDTH as f32 * SCALE) as u32,
        (layout::height(chart) as f32 * SCALE) as u32,
    );
    let pixels = Pixmap::new(width, height).ok_or("the image is too large")?;
    let mut png = Png { pixels };
    png.pixels.fill(Rgba::WHITE);
    layout::draw(chart, &mut png);
    png.pixels.encode_png().map_err(|error| error.to_string())
}

fn rgb(ink: Ink) -> [u8; 3] {
    match ink {
        Ink::Text => [0x1c, 0x23, 0x30],
        Ink::Faint | Ink::Mark => [0x66, 0x70, 0x85],
        Ink::Grid => [0xe9, 0xed, 0xf2],
        Ink::Series(color) => color.values().0,
    }
}

fn paint(ink: Ink) -> Paint<'static> {
    let [r, g, b] = rgb(ink);
    let mut paint = Paint::default();
    paint.set_color_rgba8(r, g, b, 255);
    paint
}

fn path(points: &[(f64, f64)]) -> Option<tiny_skia::Path> {
    let mut builder = PathBuilder::new();
    let scaled = points
        .iter()
        .map(|(x, y)| (*x as f32 * SCALE, *y as f32 * SCALE));
    for (index, (x, y)) in scaled.enumerate() {
        match index {
            0 => builder.move_to(x, y),
            _ => builder.line_to(x, y),
        }
    }
    builder.finish()
}

impl Png {
    fn stroke(&mut self, ink: Ink, points: &[(f64, f64)], width: f32) {
        let dash = (ink == Ink::Mark).then(|| StrokeDash::new(vec![6.0, 6.0], 0.0));
        let stroke = Stroke {
            width: width * SCALE,
            line_cap: LineCap::Round,
            dash: dash.flatten(),
            ..Stroke::default()
        };
        if let Some(path) = path(points) {
            let transform = Transform::identity();
            self.pixels
                .stroke_path(&path, &paint(ink), &stroke, transform, None);
        }
    }

    /// Blends a pixel of a glyph over the background.
    fn blend(&mut self, x: i64, y: i64, [r, g, b]: [u8; 3], opacity: u8) {
        let (width, height) = (
            i64::from(self.pixels.width()),
            i64::from(self.pixels.height()),
        );
        if opacity == 0 || !(0..width).contains(&x) || !(0..height).contains(&y) {
            return;
        }
        let pixel = &mut self.pixels.pixels_mut()[(y * width + x) as usize];
        let mix = |over: u8, under: u8| {
            let (over, under, opacity) = (u32::from(over), u32::from(under), u32::from(opacity));
            ((over * opacity + under * (255 - opacity)) / 255) as u8
        };
        let mixed = PremultipliedColorU8::from_rgba(
            mix(r, pixel.red()),
            mix(g, pixel.green()),
            mix(b, pixel.blue()),
            255,
        );
        *pixel = mixed.unwrap_or(*pixel);
    }
}

impl Canvas for Png {
    fn line(&mut self, ink: Ink, from: (f64, f64), to: (f64, f64)) {
        self.stroke(ink, &[from, to], 1.0);
    }

    fn polyline(&mut self, ink: Ink, points: &[(f64, f64)]) {
        self.stroke(ink, points, 1.8);
    }

    fn area(&mut self, ink: Ink, points: &[(f64, f64)]) {
        if let Some(path) = path(points) {
            let transform = Transform::identity();
            self.pixels
                .fill_path(&path, &paint(ink), FillRule::Winding, transform, None);
        }
    }

    fn swatch(&mut self, ink: Ink, (x, y): (f64, f64), size: f64) {
        let (x, y, size) = (x as f32 * SCALE, y as f32 * SCALE, size as f32 * SCALE);
        if let Some(rect) = Rect::from_xywh(x, y, size, size) {
            self.pixels
                .fill_rect(rect, &paint(ink), Transform::identity(), None);
        }
    }

    fn text(&mut self, ink: Ink, (x, y): (f64, f64), anchor: Anchor, is_title: bool, text: &str) {
        let (weight, size) = match is_title {
            true => (FontWeight::Bold, RasterHeight::Size32),
            false => (FontWeight::Regular, RasterHeight::Size24),
        };
        let advance = get_raster_width(weight, size) as i64;
        let width = advance * text.chars().count() as i64;
        let mut left = (x as f32 * SCALE) as i64
            - match anchor {
                Anchor::Start => 0,
                Anchor::Middle => width / 2,
                Anchor::End => width,
            };
        let top = (y as f32 * SCALE) as i64 - size.val() as i64 * 4 / 5;
        for character in text.chars() {
            // A character that the font lacks is drawn as a question mark.
            let glyph =
                get_raster(character, weight, size).or_else(|| get_raster('?', weight, size));
            let rows = glyph
                .iter()
                .flat_map(|glyph| glyph.raster().iter().enumerate());
            for (row, opacities) in rows {
                for (column, opacity) in opacities.iter().enumerate() {
                    let at = (left + column as i64, top + row as i64);
                    self.blend(at.0, at.1, rgb(ink), *opacity);
                }
            }
            left += advance;
        }
    }
}
