//! Calendar units: minutes, hours and days have a fixed length, months and years have not. All are
//! in UTC.

use time::{Date, Month, OffsetDateTime};

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// A unit of DURATION_IS_GREGORIAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CalendarUnit {
    Minute,
    Hour,
    Day,
    Month,
    Year,
}

impl CalendarUnit {
    /// Returns the unit that a duration stands for.
    pub(super) fn of(duration: i64) -> Result<Self, String> {
        Ok(match duration {
            0 => Self::Minute,
            1 => Self::Hour,
            2 => Self::Day,
            4 => Self::Month,
            5 => Self::Year,
            3 => return Err("`Duration = GregorianWeeks` not yet supported".to_owned()),
            _ => {
                return Err(
                    "behavior DURATION_IS_GREGORIAN is set; but `Duration` is not a valid gregorian interval"
                        .to_owned(),
                );
            }
        })
    }

    /// Returns the length of the unit, if it has one.
    pub(super) fn fixed_ms(self) -> Option<u64> {
        match self {
            Self::Minute => Some(MINUTE_MS),
            Self::Hour => Some(HOUR_MS),
            Self::Day => Some(DAY_MS),
            Self::Month | Self::Year => None,
        }
    }

    /// Returns a length that no unit of this kind exceeds.
    pub(super) fn longest_ms(self) -> u64 {
        match self {
            Self::Year => 366 * DAY_MS,
            _ => 31 * DAY_MS,
        }
    }
}

/// A calendar month or year.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CalendarWindow {
    unit: CalendarUnit,
    year: i32,
    month: Month,
}

impl CalendarWindow {
    /// Returns the window at a time.
    pub(super) fn at(unit: CalendarUnit, now_ns: u64) -> Result<Self, String> {
        let now = OffsetDateTime::from_unix_timestamp_nanos(now_ns.into())
            .map_err(|error| error.to_string())?;
        Ok(Self {
            unit,
            year: now.year(),
            month: now.month(),
        })
    }

    /// Returns a name that no other window has.
    pub(super) fn name(&self) -> String {
        match self.unit {
            CalendarUnit::Month => format!("{}-{:02}", self.year, u8::from(self.month)),
            _ => self.year.to_string(),
        }
    }

    /// Returns the end of the window in milliseconds since 1970.
    pub(super) fn ends_at_ms(&self) -> u64 {
        let (year, month) = match (self.unit, self.month) {
            (CalendarUnit::Month, Month::December) => (self.year + 1, Month::January),
            (CalendarUnit::Month, month) => (self.year, month.next()),
            _ => (self.year + 1, Month::January),
        };
        let end = Date::from_calendar_date(year, month, 1);
        let seconds = end.map_or(i64::MAX, |end| end.midnight().assume_utc().unix_timestamp());
        u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_and_years_end_with_the_calendar() {
        for (now_s, unit, name, ends_at_s) in [
            // 2024-02-29 12:00:00
            (1_709_208_000, CalendarUnit::Month, "2024-02", 1_709_251_200),
            (1_709_208_000, CalendarUnit::Year, "2024", 1_735_689_600),
            // 2026-12-31 23:59:59
            (1_798_761_599, CalendarUnit::Month, "2026-12", 1_798_761_600),
            (1_798_761_599, CalendarUnit::Year, "2026", 1_798_761_600),
            (0, CalendarUnit::Month, "1970-01", 2_678_400),
        ] {
            let window = CalendarWindow::at(unit, now_s * 1_000_000_000).unwrap();
            assert_eq!(window.name(), name);
            assert_eq!(window.ends_at_ms(), ends_at_s * 1_000, "{name}");
        }
    }
}
