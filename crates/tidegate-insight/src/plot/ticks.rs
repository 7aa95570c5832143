//! Ticks of axes, and their labels.

/// Returns about `wanted` round numbers from 0 to `top`.
pub(super) fn linear(top: f64, wanted: f64) -> Vec<f64> {
    let rough = top / wanted;
    let scale = 10_f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * scale);
    let step = steps
        .into_iter()
        .find(|step| *step >= rough)
        .unwrap_or(rough);
    multiples(step, 0.0, top)
}

/// Returns round times between two numbers of seconds.
pub(super) fn times(from: f64, to: f64, wanted: f64) -> Vec<f64> {
    const STEPS: [f64; 22] = [
        1.0,
        2.0,
        5.0,
        10.0,
        15.0,
        30.0,
        60.0,
        120.0,
        300.0,
        600.0,
        900.0,
        1_800.0,
        3_600.0,
        7_200.0,
        10_800.0,
        21_600.0,
        43_200.0,
        86_400.0,
        172_800.0,
        604_800.0,
        2_592_000.0,
        31_536_000.0,
    ];
    let rough = (to - from) / wanted;
    if rough < 1.0 {
        let shifted = linear(to - from, wanted);
        return shifted.into_iter().map(|tick| tick + from).collect();
    }
    let step = STEPS.into_iter().find(|step| *step >= rough);
    multiples(step.unwrap_or(rough), from, to)
}

/// Returns the powers of ten between two numbers.
pub(super) fn logarithmic(from: f64, to: f64) -> Vec<f64> {
    let first = from.max(f64::MIN_POSITIVE).log10().ceil() as i32;
    let last = to.max(f64::MIN_POSITIVE).log10().floor() as i32;
    (first..=last.min(first + 30))
        .map(|power| 10_f64.powi(power))
        .collect()
}

fn multiples(step: f64, from: f64, to: f64) -> Vec<f64> {
    if !(step > 0.0 && step.is_finite()) {
        return Vec::new();
    }
    let first = (from / step).ceil();
    let ticks = (0..100).map(|index| (first + f64::from(index)) * step);
    ticks
        .take_while(|tick| *tick <= to * (1.0 + 1e-9))
        .collect()
}

/// Formats a number in at most about four characters: `950`, `1.5k`, `2M`.
#[must_use]
pub fn short_number(number: f64) -> String {
    let (scaled, suffix) = match number.abs() {
        n if n >= 1e9 => (number / 1e9, "G"),
        n if n >= 1e6 => (number / 1e6, "M"),
        n if n >= 1e4 => (number / 1e3, "k"),
        _ => (number, ""),
    };
    let text = if scaled.fract().abs() < 1e-9 {
        format!("{scaled:.0}")
    } else if scaled.abs() < 1.0 {
        format!("{scaled:.3}").trim_end_matches('0').to_owned()
    } else {
        format!("{scaled:.1}").trim_end_matches(".0").to_owned()
    };
    text + suffix
}

/// Formats a time on an axis that is `range` seconds long: `250ms`, `1:30`, `2h`, `3d`.
#[must_use]
pub fn seconds_label(seconds: f64, range: f64) -> String {
    if range < 8.0 {
        return format!("{}s", short_number((seconds * 1e3).round() / 1e3));
    }
    let whole = seconds.round() as u64;
    let (days, hours, minutes, rest) = (whole / 86_400, whole / 3_600, whole / 60 % 60, whole % 60);
    match range {
        _ if range < 3_600.0 => format!("{}:{rest:02}", whole / 60),
        _ if range < 2.0 * 86_400.0 => format!("{hours}:{minutes:02} h"),
        _ if hours.is_multiple_of(24) => format!("{days} d"),
        _ => format!("{days} d {} h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(linear(100.0, 5.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(
            times(0.0, 300.0, 6.0),
            [0.0, 60.0, 120.0, 180.0, 240.0, 300.0]
        );
        assert_eq!(logarithmic(2.0, 1_500.0), [10.0, 100.0, 1_000.0]);
        assert_eq!(linear(0.0, 5.0), Vec::<f64>::new());
        assert_eq!(short_number(1_500_000.0), "1.5M");
        assert_eq!(
            (seconds_label(90.0, 300.0), seconds_label(86_400.0, 1e6)),
            ("1:30".into(), "1 d".into())
        );
    }
}
