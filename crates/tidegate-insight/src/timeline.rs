//! Counts over time in a bounded number of bins. The bins grow with the time that they cover.

/// The number of bins at which neighbours are merged.
const MAX_BINS: usize = 480;
/// The first width of a bin: a millisecond.
const FIRST_WIDTH_US: u64 = 1_000;

/// The counts of one bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    /// Requests that arrived.
    pub offered: u64,
    /// Requests that were allowed.
    pub admitted: u64,
    /// The least `remaining` of a decision, or `None` without a request.
    pub least_remaining: Option<u64>,
}

/// Requests over time.
///
/// # Examples
///
/// ```
/// use tidegate_insight::Timeline;
///
/// let mut timeline = Timeline::default();
/// for second in 0..3_600 {
///     timeline.add(second * 1_000_000, second % 2 == 0, 5);
/// }
/// assert!(timeline.bins().len() <= 480);
/// let offered: u64 = timeline.bins().iter().map(|bin| bin.offered).sum();
/// assert_eq!(offered, 3_600);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    start_us: Option<u64>,
    width_us: u64,
    bins: Vec<Bin>,
}

impl Timeline {
    /// Counts a request. Times before the first one count as the first.
    pub fn add(&mut self, at_us: u64, is_allowed: bool, remaining: u64) {
        let bin = self.bin(at_us);
        bin.offered += 1;
        bin.admitted += u64::from(is_allowed);
        self.sample(at_us, remaining);
    }

    /// Notes the remaining units at a time without a request.
    pub fn sample(&mut self, at_us: u64, remaining: u64) {
        let bin = self.bin(at_us);
        bin.least_remaining = Some(bin.least_remaining.map_or(remaining, |r| r.min(remaining)));
    }

    fn bin(&mut self, at_us: u64) -> &mut Bin {
        let start = *self.start_us.get_or_insert(at_us);
        self.width_us = self.width_us.max(FIRST_WIDTH_US);
        let offset = at_us.saturating_sub(start);
        while offset / self.width_us >= MAX_BINS as u64 {
            self.merge();
        }
        let index = (offset / self.width_us) as usize;
        if index >= self.bins.len() {
            self.bins.resize(index + 1, Bin::default());
        }
        &mut self.bins[index]
    }

    /// Doubles the width of the bins.
    fn merge(&mut self) {
        self.width_us *= 2;
        let merged = self.bins.chunks(2).map(|pair| {
            pair.iter().fold(Bin::default(), |sum, bin| Bin {
                offered: sum.offered + bin.offered,
                admitted: sum.admitted + bin.admitted,
                least_remaining: match (sum.least_remaining, bin.least_remaining) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                },
            })
        });
        self.bins = merged.collect();
    }

    /// Returns the time of the first request in microseconds since 1970.
    #[must_use]
    pub fn start_us(&self) -> u64 {
        self.start_us.unwrap_or(0)
    }

    /// Returns the width of a bin in microseconds.
    #[must_use]
    pub const fn width_us(&self) -> u64 {
        self.width_us
    }

    /// Returns the bins in order.
    #[must_use]
    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }
}
