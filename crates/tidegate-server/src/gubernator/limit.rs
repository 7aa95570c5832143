//! The limiter and the key of a request.

use std::time::Duration;

use tidegate::{AnyStore, KeyBuf, Limiter};
use tidegate_core::Store;

use super::calendar::{CalendarUnit, CalendarWindow};
use super::has;
use crate::inline;
use crate::proto::pb::gubernator::{Algorithm, Behavior, RateLimitReq};
use crate::server::ActiveConfig;

/// The largest limit, burst and number of hits.
const MAX_COUNT: i64 = 1_000_000_000;

/// The algorithm of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitKind {
    /// A window that opens with the first hit, or a calendar unit.
    Window,
    /// A bucket that refills evenly.
    Bucket,
}

/// The limit of a request.
pub(super) struct RequestLimit<'a> {
    pub(super) kind: LimitKind,
    /// `None` if the limit is 0.
    pub(super) limiter: Option<Limiter<AnyStore>>,
    pub(super) key: KeyBuf<'a>,
    pub(super) shown_limit: i64,
    /// The hits that fit at once.
    pub(super) capacity: u64,
    pub(super) period: Duration,
    pub(super) now_ns: u64,
    /// The end of a calendar month or year.
    pub(super) resets_at_ms: Option<u64>,
}

impl<'a> RequestLimit<'a> {
    pub(super) fn of(active: &ActiveConfig, request: &'a RateLimitReq) -> Result<Self, String> {
        if request.unique_key.is_empty() {
            return Err("field 'unique_key' cannot be empty".to_owned());
        }
        if request.name.is_empty() {
            return Err("field 'namespace' cannot be empty".to_owned());
        }
        for (field, value) in [
            ("limit", request.limit),
            ("burst", request.burst),
            ("hits", request.hits.saturating_abs()),
        ] {
            if value > MAX_COUNT {
                return Err(format!(
                    "field '{field}' is too large: expected at most {MAX_COUNT}"
                ));
            }
        }
        let kind = match Algorithm::try_from(request.algorithm) {
            Ok(Algorithm::TokenBucket) => LimitKind::Window,
            Ok(Algorithm::LeakyBucket) => LimitKind::Bucket,
            Err(_) => {
                return Err(format!(
                    "invalid rate limit algorithm '{}'",
                    request.algorithm
                ));
            }
        };
        let now_ns = active.gate.store().now().as_nanos();
        let window = Window::of(request, kind, now_ns)?;
        let burst = match kind {
            LimitKind::Bucket if request.burst > 0 => request.burst,
            _ => request.limit,
        };
        let limiter = match request.limit {
            ..=0 => None,
            limit => {
                let text = window.policy(kind, limit, burst);
                Some(inline::service_limiter(&active.gate, NAMESPACE, &text)?)
            }
        };
        let (name, unique) = (request.name.as_str(), request.unique_key.as_str());
        let start = window.calendar.as_ref().map(CalendarWindow::name);
        Ok(Self {
            kind,
            limiter,
            key: KeyBuf::from_parts([name, unique].into_iter().chain(start.as_deref())),
            shown_limit: request.limit,
            capacity: u64::try_from(burst).unwrap_or(0),
            period: Duration::from_millis(window.period_ms),
            now_ns,
            resets_at_ms: window.calendar.map(|calendar| calendar.ends_at_ms()),
        })
    }
}

/// The namespace of the counters. No named policy has it.
const NAMESPACE: &str = "gubernator~~v1";

/// The length of a request's limit.
struct Window {
    period_ms: u64,
    /// Set if windows end with the clock's unit rather than after the first hit.
    is_on_clock: bool,
    /// A month or a year, which have no fixed length.
    calendar: Option<CalendarWindow>,
}

impl Window {
    fn of(request: &RateLimitReq, kind: LimitKind, now_ns: u64) -> Result<Self, String> {
        if !has(request, Behavior::DurationIsGregorian) {
            let period_ms = u64::try_from(request.duration).unwrap_or(0);
            if period_ms == 0 {
                return Err(
                    "field 'duration' is invalid: expected 1 millisecond or more".to_owned(),
                );
            }
            return Ok(Self {
                period_ms,
                is_on_clock: false,
                calendar: None,
            });
        }
        let unit = CalendarUnit::of(request.duration)?;
        let calendar = match (unit.fixed_ms(), kind) {
            (Some(_), _) => None,
            (None, LimitKind::Window) => Some(CalendarWindow::at(unit, now_ns)?),
            (None, LimitKind::Bucket) => {
                return Err(
                    "DURATION_IS_GREGORIAN with LEAKY_BUCKET: expected minutes, hours or days"
                        .to_owned(),
                );
            }
        };
        Ok(Self {
            period_ms: unit.fixed_ms().unwrap_or_else(|| unit.longest_ms()),
            is_on_clock: calendar.is_none(),
            calendar,
        })
    }

    fn policy(&self, kind: LimitKind, limit: i64, burst: i64) -> String {
        let period = self.period_ms;
        match kind {
            LimitKind::Bucket => format!("token_bucket {limit}/{period} ms burst={burst}"),
            LimitKind::Window if self.is_on_clock => format!("fixed_window {limit}/{period} ms"),
            LimitKind::Window => format!("fixed_window {limit}/{period} ms anchor=first_hit"),
        }
    }
}
