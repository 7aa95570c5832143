//! Rate limit headers of a response, and how they are added to it. This is their only home.
//!
//! [`rate_limit_headers`] has the fields of every [`HeaderFormat`],
//! [`Denial::headers`](crate::Denial::headers) those of a denied request. Frameworks only convert
//! [`Header`]s to their own type, by the rule in [`Merge`].

use std::cell::Cell;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;
use tidegate_core::{Clock, Limit, LimitFigures, PolicyDecision, PolicyLabel, Verdict};

use crate::header_format::{HeaderFormat, ResetFormat};
use crate::rounding::{retry_after_seconds, seconds};

/// A response header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The name, in lower case.
    pub name: &'static str,
    /// The value: visible ASCII and spaces.
    pub value: Bytes,
    /// The treatment of a response that already has the header.
    pub merge: Merge,
}

/// The treatment of a header that a response already has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// Add another line. Several lines are one list, so the values of an inner layer stay.
    Append,
    /// Replace the existing value.
    Replace,
    /// Keep the existing value, which the application has set.
    Keep,
}

impl Header {
    #[inline]
    pub(crate) fn new(name: &'static str, value: impl Into<Bytes>) -> Self {
        let merge = match name {
            "ratelimit" | "ratelimit-policy" | "access-control-expose-headers" => Merge::Append,
            "cache-control" | "retry-after" => Merge::Keep,
            _ => Merge::Replace,
        };
        Self {
            name,
            value: value.into(),
            merge,
        }
    }
}

/// The headers of one response.
pub type Headers = SmallVec<[Header; 2]>;

/// Adds headers to those of a response.
#[cfg(feature = "http")]
pub fn add_headers(map: &mut http::HeaderMap, headers: impl IntoIterator<Item = Header>) {
    use http::header::{Entry, HeaderName, HeaderValue};
    const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
    const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
    for Header { name, value, merge } in headers {
        let Ok(value) = HeaderValue::from_maybe_shared(value) else {
            continue;
        };
        // The most common names need no lookup.
        let name = match name {
            "ratelimit" => RATELIMIT,
            "ratelimit-policy" => RATELIMIT_POLICY,
            other => HeaderName::from_static(other),
        };
        match merge {
            Merge::Append => drop(map.append(name, value)),
            Merge::Replace => drop(map.insert(name, value)),
            Merge::Keep => {
                if let Entry::Vacant(vacant) = map.entry(name) {
                    vacant.insert(value);
                }
            }
        }
    }
}

/// The last value of the policy header, which is the same for every response of a policy.
#[derive(Debug, Default)]
pub struct PolicyHeaderCache(ArcSwapOption<CachedPolicies>);

#[derive(Debug)]
struct CachedPolicies {
    /// The labels of the reported policies.
    labels: SmallVec<[Arc<PolicyLabel>; 2]>,
    format: HeaderFormat,
    text: Bytes,
}

impl PolicyHeaderCache {
    /// Returns the limits of all enforced policies.
    fn policies(&self, verdict: &Verdict, format: HeaderFormat) -> Bytes {
        // A policy may have been in shadow mode the last time, or be from now on.
        let reported = || verdict.decisions().iter().filter(|one| is_reported(one));
        let last = self.0.load();
        if let Some(last) = last.as_deref()
            && last.format == format
            && last.labels.len() == reported().count()
            && reported()
                .zip(&last.labels)
                .all(|(decision, label)| std::ptr::eq(&**label, decision.label()))
        {
            return last.text.clone();
        }
        // Boxed first: `Bytes` shares a boxed slice without spare capacity as it is.
        let text = Bytes::from(
            policies(verdict, format)
                .into_boxed_str()
                .into_boxed_bytes(),
        );
        self.0.store(Some(Arc::new(CachedPolicies {
            labels: reported().map(PolicyDecision::shared_label).collect(),
            format,
            text: text.clone(),
        })));
        text
    }
}

/// Returns the headers that report limits and usage.
///
/// - With `reports_all`, every policy is reported, and otherwise only the one nearest to its limit.
/// - With `excess`, the request was rejected because its delay in a queue was too long by that time.
///   Nothing is left until then.
/// - If the failure policy answered, only the limits are reported.
#[must_use]
pub fn rate_limit_headers(
    verdict: &Verdict,
    format: HeaderFormat,
    reports_all: bool,
    excess: Option<Duration>,
    cache: &PolicyHeaderCache,
) -> Headers {
    let mut headers = Headers::new();
    if format == HeaderFormat::Off {
        return headers;
    }
    let policies = cache.policies(verdict, format);
    if policies.is_empty() {
        return headers;
    }
    if format == HeaderFormat::Draft11 {
        headers.push(Header::new("ratelimit-policy", policies));
        if let Some(usage) = usage(verdict, reports_all, excess) {
            headers.push(Header::new("ratelimit", usage));
        }
        return headers;
    }
    if matches!(format, HeaderFormat::Draft07 | HeaderFormat::Draft06) {
        headers.push(Header::new("ratelimit-policy", policies.clone()));
    }
    if let Some(nearest) = nearest_state(verdict, excess) {
        nearest.push_numbers(&mut headers, format, &policies);
    }
    headers
}

/// Returns the state of the limit nearest to its end, or `None` if the failure policy answered.
fn nearest_state(verdict: &Verdict, excess: Option<Duration>) -> Option<LimitState<'_>> {
    let nearest = match excess {
        Some(_) => verdict.longest_delayed(),
        None => verdict.nearest(),
    };
    let state = LimitState::new(nearest?)?;
    Some(LimitState { excess, ..state })
}

/// Returns the states of all limits, or of the nearest, as a structured list:
/// `"api";r=50;t=30, "login";r=2;t=5`. Returns `None` if the failure policy answered.
fn usage(verdict: &Verdict, reports_all: bool, excess: Option<Duration>) -> Option<Bytes> {
    if !reports_all || excess.is_some() {
        let nearest = nearest_state(verdict, excess)?;
        return Some(in_block(|text| nearest.write_item(text)));
    }
    let nearest = verdict.nearest()?.decision()?;
    if nearest.degraded().is_some() {
        return None;
    }
    Some(in_block(|text| {
        let mut is_first = true;
        for policy in verdict.decisions().iter().filter(|one| is_reported(one)) {
            LimitState::for_each(policy, |state| {
                if !std::mem::take(&mut is_first) {
                    text.extend_from_slice(b", ");
                }
                state.write_item(text);
            });
        }
    }))
}

/// Returns the headers that report limits and usage of a verdict, in the default format.
///
/// For a gate that is called by hand. Middleware adds them itself.
///
/// # Examples
///
/// ```
/// use tidegate::tower::verdict_headers;
/// use tidegate::{Gate, PolicySet, Rules};
///
/// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("5/minute".parse()?))?);
/// let verdict = gate.check("api", "user:42").now()?;
/// let headers = verdict_headers(&verdict);
/// assert_eq!((headers[1].name, &headers[1].value[..]), ("ratelimit", &b"\"api\";r=4;t=12"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn verdict_headers(verdict: &Verdict) -> Headers {
    let (format, cache) = (HeaderFormat::default(), PolicyHeaderCache::default());
    rate_limit_headers(verdict, format, true, None, &cache)
}

/// The size of the blocks that header values are cut from. A value that is kept keeps its block.
const BLOCK: usize = 1_024;

/// The rest of a block that a new value starts in. A longer value moves to a block of its own.
const ENOUGH: usize = 64;

/// Returns what `write` writes, cut from a block: one allocation for some dozen values.
fn in_block(write: impl FnOnce(&mut BytesMut)) -> Bytes {
    thread_local! {
        /// The rest of the last block.
        static REST: Cell<BytesMut> = Cell::default();
    }
    // The thread may be ending.
    let mut rest = REST.try_with(Cell::take).unwrap_or_default();
    if rest.capacity() < ENOUGH {
        rest = BytesMut::with_capacity(BLOCK);
    }
    write(&mut rest);
    let value = rest.split().freeze();
    let _ = REST.try_with(|place| place.set(rest));
    value
}

fn is_reported(decision: &PolicyDecision) -> bool {
    !decision.is_shadow() && decision.label().policy().is_some()
}

/// Returns the limits of all enforced policies as a list.
fn policies(verdict: &Verdict, format: HeaderFormat) -> String {
    let mut text = String::with_capacity(32);
    for decision in verdict.decisions().iter().filter(|one| is_reported(one)) {
        let Some(policy) = decision.label().policy() else {
            continue;
        };
        for (index, limit) in policy.limits().iter().enumerate() {
            if !text.is_empty() {
                text.push_str(", ");
            }
            // Writing to a string cannot fail.
            let _ = write_limit(&mut text, decision, index, limit, format);
        }
    }
    text
}

fn write_limit(
    text: &mut String,
    decision: &PolicyDecision,
    index: usize,
    limit: &Limit,
    format: HeaderFormat,
) -> std::fmt::Result {
    let capacity = limit.capacity();
    match format {
        HeaderFormat::Draft11 => {
            write_name(text, decision, index)?;
            write!(text, ";q={capacity}")?;
        }
        _ => write!(text, "{capacity}")?,
    }
    if let Some(window) = window(limit) {
        write!(text, ";w={window}")?;
    }
    if format == HeaderFormat::Envoy {
        text.push_str(";name=");
        write_name(text, decision, index)?;
    }
    Ok(())
}

/// Writes a policy's name, and the number of the limit if there are several.
fn write_name(text: &mut String, decision: &PolicyDecision, index: usize) -> std::fmt::Result {
    let name = decision.label().name();
    match decision
        .label()
        .policy()
        .map(|policy| policy.limits().len())
    {
        // A name contains no slash, so no other policy has this name.
        Some(2..) => write!(text, "\"{name}/{}\"", index + 1),
        _ => write!(text, "\"{name}\""),
    }
}

/// Returns the window in whole seconds. For a bucket it is the refill time, so that capacity per
/// window never exceeds the rate.
fn window(limit: &Limit) -> Option<u64> {
    if limit.algorithm().is_bucket() {
        let nanos = u128::from(limit.capacity()) * limit.period().as_nanos();
        return u64::try_from(nanos.div_ceil(u128::from(limit.limit()) * 1_000_000_000)).ok();
    }
    (limit.period().subsec_nanos() == 0).then(|| limit.period().as_secs())
}

/// The usage of a limit.
struct LimitState<'a> {
    policy: &'a PolicyDecision,
    limit: &'a Limit,
    index: usize,
    figures: LimitFigures,
    is_only_limit: bool,
    /// Set for a request that was rejected because its delay was too long, see
    /// [`rate_limit_headers`].
    excess: Option<Duration>,
}

impl<'a> LimitState<'a> {
    /// Returns the state of the limit that a decision names, or `None` if the failure policy
    /// answered.
    fn new(policy: &'a PolicyDecision) -> Option<Self> {
        let decision = policy.decision()?;
        Self::of_limit(policy, decision.limit_index(), decision.into())
    }

    /// Visits the states of all limits of a policy, if their figures are known, and otherwise that
    /// of the limit that its decision names.
    fn for_each(policy: &'a PolicyDecision, mut visit: impl FnMut(Self)) {
        let mut is_known = false;
        for (index, figures) in policy.limits().iter().enumerate() {
            if let Some(state) = Self::of_limit(policy, index, *figures) {
                is_known = true;
                visit(state);
            }
        }
        if !is_known && let Some(state) = Self::new(policy) {
            visit(state);
        }
    }

    fn of_limit(policy: &'a PolicyDecision, index: usize, figures: LimitFigures) -> Option<Self> {
        policy
            .decision()
            .filter(|decision| decision.degraded().is_none())?;
        let limits = policy.label().policy()?.limits();
        Some(Self {
            policy,
            limit: limits.get(index)?,
            index,
            figures,
            is_only_limit: limits.len() == 1,
            excess: None,
        })
    }

    /// Writes `"api";r=50;t=30`. This runs for every response, so it avoids `format!`.
    fn write_item(&self, text: &mut BytesMut) {
        let mut digits = itoa::Buffer::new();
        text.extend_from_slice(b"\"");
        text.extend_from_slice(self.policy.label().name().as_str().as_bytes());
        if !self.is_only_limit {
            text.extend_from_slice(b"/");
            text.extend_from_slice(digits.format(self.index + 1).as_bytes());
        }
        text.extend_from_slice(b"\";r=");
        text.extend_from_slice(digits.format(self.remaining()).as_bytes());
        if let Some(more) = self.more_after() {
            text.extend_from_slice(b";t=");
            text.extend_from_slice(digits.format(more).as_bytes());
        }
    }

    /// Adds the headers of the formats with separate numbers.
    fn push_numbers(&self, headers: &mut Headers, format: HeaderFormat, policies: &Bytes) {
        let (limit, remaining) = (self.figures.limit(), self.remaining());
        let reset = self
            .more_after()
            .unwrap_or_else(|| seconds(self.figures.reset_after()));
        let mut push = |name, value: String| headers.push(Header::new(name, value));
        match format {
            HeaderFormat::Draft07 => {
                let value = format!("limit={limit}, remaining={remaining}, reset={reset}");
                push("ratelimit", value);
            }
            HeaderFormat::Draft06 => {
                push("ratelimit-limit", limit.to_string());
                push("ratelimit-remaining", remaining.to_string());
                push("ratelimit-reset", reset.to_string());
            }
            HeaderFormat::Envoy => {
                let policies = String::from_utf8_lossy(policies);
                push("x-ratelimit-limit", format!("{limit}, {policies}"));
                push("x-ratelimit-remaining", remaining.to_string());
                push("x-ratelimit-reset", reset.to_string());
            }
            HeaderFormat::Legacy(reset_format) => {
                push("x-ratelimit-limit", limit.to_string());
                push("x-ratelimit-remaining", remaining.to_string());
                push(
                    "x-ratelimit-reset",
                    (reset + base(reset_format)).to_string(),
                );
            }
            HeaderFormat::Draft11 | HeaderFormat::Off => {}
        }
    }

    /// Returns the seconds until more is available.
    ///
    /// - After a denial: until this request is allowed.
    /// - In a window: until the window ends.
    /// - In a bucket: until it has one more unit.
    ///
    /// Returns `None` for a policy of several limits: only the longest reset is known, and it may
    /// belong to another limit.
    fn more_after(&self) -> Option<u64> {
        if let Some(excess) = self.excess {
            return Some(retry_after_seconds(excess));
        }
        if !self.figures.is_allowed() {
            return self.figures.retry_after().map(retry_after_seconds);
        }
        if !self.limit.algorithm().is_bucket() {
            return Some(seconds(self.figures.reset_after()));
        }
        let missing = self
            .limit
            .capacity()
            .saturating_sub(self.figures.remaining());
        let (missing, period) = (missing.saturating_sub(1), self.limit.period().as_nanos());
        let reset_after = self.figures.reset_after().as_nanos();
        let narrow = || {
            let [period, reset_after] = [period, reset_after].map(u64::try_from);
            let later = missing.checked_mul(period.ok()?)? / self.limit.limit();
            Some(
                reset_after
                    .ok()?
                    .saturating_sub(later)
                    .div_ceil(1_000_000_000),
            )
        };
        narrow().or_else(|| {
            // The same in 128 bits, which takes several times as long.
            let later = u128::from(missing) * period / u128::from(self.limit.limit());
            let wait = reset_after.saturating_sub(later);
            u64::try_from(wait.div_ceil(1_000_000_000)).ok()
        })
    }

    fn remaining(&self) -> u64 {
        if self.excess.is_some() {
            0
        } else {
            self.figures.remaining()
        }
    }
}

/// Returns the time that the seconds of a reset are counted from.
fn base(format: ResetFormat) -> u64 {
    match format {
        ResetFormat::Epoch => Clock::system().now().as_nanos() / 1_000_000_000,
        ResetFormat::Delta => 0,
    }
}
