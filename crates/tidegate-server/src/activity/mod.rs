//! The activity of clients, for the dashboard: a bounded sketch of busy and denied keys, and a
//! recorder of checks.
//!
//! Every protocol reports its decisions to [`Activity::observe`]. Under load only a sample is
//! looked at (`sampler`), so that a check costs little more. `summary` turns everything into
//! the JSON of the dashboard once a second.

mod key_rates;
mod recorder;
mod sampler;
mod sketch;
mod summary;

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate::{Clock, Cost, Limit, Policy, PolicyOutcome, Subject, Verdict};
use tokio_util::sync::CancellationToken;

use crate::config::RecordConfig;
use crate::error::ServeError;
use crate::server::Server;
pub(crate) use recorder::RecorderStats;
use recorder::{Recorded, Recorder};
use sketch::{Seen, Sketch};
pub(crate) use summary::Summary;
use summary::Ticker;

/// The number of sketches. Each thread uses one, so that threads rarely wait for each other.
const STRIPES: usize = 16;
/// The interval of summaries.
const EVERY: Duration = Duration::from_secs(1);
/// The length of a key that is kept. Longer ones are cut.
const MAX_KEY: usize = 256;

/// The limits that decided a request.
#[derive(Clone, Copy)]
pub(crate) enum Label<'a> {
    /// A named policy.
    Policy(&'a str),
    /// Limits that came with the request.
    Inline(&'a Policy),
    /// The bucket of a Redis command.
    Bucket,
    /// A rule for descriptors, or of another service.
    Rule(&'a str),
}

impl Label<'_> {
    fn text(&self) -> String {
        match self {
            Self::Policy(name) | Self::Rule(name) => (*name).to_owned(),
            Self::Inline(policy) => format!("({policy})"),
            Self::Bucket => "(throttle)".to_owned(),
        }
    }

    fn hash(&self, hasher: &mut impl Hasher) {
        match self {
            Self::Policy(name) => (0_u8, name).hash(hasher),
            Self::Inline(policy) => (1_u8, policy.limits()).hash(hasher),
            Self::Bucket => 2_u8.hash(hasher),
            Self::Rule(name) => (3_u8, name).hash(hasher),
        }
    }
}

/// One decision.
#[derive(Clone, Copy)]
pub(crate) struct Observed<'a> {
    pub(crate) label: Label<'a>,
    pub(crate) tenant: Option<&'a str>,
    pub(crate) key: &'a [u8],
    pub(crate) cost: Cost,
    pub(crate) is_denied: bool,
    /// The wait of a denied request; `None` if it is never allowed.
    pub(crate) retry_after: Option<Duration>,
    /// The limit that denied the request, or is nearest.
    pub(crate) limit: Option<&'a Limit>,
}

/// The activity of a server.
pub(crate) struct Activity {
    stripes: Box<[Stripe]>,
    hasher: RandomState,
    /// Grows ten times a second, see `sampler`.
    epoch: AtomicU32,
    recorder: Option<Arc<Recorder>>,
    latest: ArcSwap<Summary>,
    is_enabled: bool,
}

#[repr(align(128))]
#[derive(Default)]
struct Stripe(Mutex<Sketch>);

impl Activity {
    /// Creates the activity, and opens the file of the recorder.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written.
    pub(crate) fn new(is_enabled: bool, record: &RecordConfig) -> Result<Self, ServeError> {
        let recorder = record.file.is_some().then(|| Recorder::open(record));
        Ok(Self {
            stripes: (0..STRIPES).map(|_| Stripe::default()).collect(),
            hasher: RandomState::new(),
            epoch: AtomicU32::new(0),
            recorder: recorder.transpose()?,
            latest: ArcSwap::from_pointee(Summary::default()),
            is_enabled,
        })
    }

    /// Looks at a decision, or skips it.
    #[inline]
    pub(crate) fn observe(&self, clock: &Clock, observed: &Observed<'_>) {
        self.observe_each(clock, std::iter::once(*observed));
    }

    /// Looks at the decisions of a pipeline, or skips some or all of them.
    #[inline]
    pub(crate) fn observe_each<'a>(
        &self,
        clock: &Clock,
        decisions: impl ExactSizeIterator<Item = Observed<'a>> + Clone,
    ) {
        if let Some(recorder) = &self.recorder {
            for observed in decisions.clone() {
                if recorder.takes(observed.key) && observed.cost > Cost::ZERO {
                    recorder.push(Recorded::new(clock.now(), &observed));
                }
            }
        }
        let epoch = self.epoch.load(Ordering::Relaxed);
        if !self.is_enabled || sampler::skips(epoch, decisions.len() as u32) {
            return;
        }
        for observed in decisions {
            if observed.cost > Cost::ZERO
                && let Some(weight) = sampler::weight(epoch)
            {
                self.look(clock, &observed, weight);
            }
        }
    }

    /// Adds a decision to the sketch of this thread.
    #[cold]
    fn look(&self, clock: &Clock, observed: &Observed<'_>, weight: u32) {
        let mut hasher = self.hasher.build_hasher();
        observed.label.hash(&mut hasher);
        (observed.tenant, observed.key).hash(&mut hasher);
        let seen = Seen {
            id: hasher.finish(),
            now: clock.now(),
            weight: f64::from(weight),
            observed,
        };
        let stripe = &self.stripes[sampler::thread_number() % STRIPES];
        stripe.0.lock().add(&seen);
    }

    /// Looks at the decisions of a request under named policies.
    pub(crate) fn verdict(&self, clock: &Clock, subjects: &[Subject<'_>], verdict: &Verdict) {
        if !self.is_enabled && self.recorder.is_none() {
            return;
        }
        for (subject, policy) in subjects.iter().zip(verdict.decisions()) {
            let PolicyOutcome::Limited(decision) = policy.outcome() else {
                continue;
            };
            self.observe(
                clock,
                &Observed {
                    label: Label::Policy(policy.label().name().as_str()),
                    tenant: subject.tenant,
                    key: subject.key.as_bytes(),
                    cost: subject.cost,
                    is_denied: decision.is_denied(),
                    retry_after: decision.retry_after(),
                    limit: policy.limit(),
                },
            );
        }
    }

    /// Returns the latest summary.
    pub(crate) fn latest(&self) -> Arc<Summary> {
        self.latest.load_full()
    }

    /// Returns the figures of the recorder, if there is one.
    pub(crate) fn recorder_stats(&self) -> Option<RecorderStats> {
        self.recorder.as_ref().map(|recorder| recorder.stats())
    }
}

/// Makes a summary every second, and advances the sampler, until the server ends.
pub(crate) async fn watch(server: Arc<Server>, ended: CancellationToken) {
    const TICKS: u32 = 10;
    let activity = &server.activity;
    let mut ticker = Ticker::new(&server);
    let mut ticks = tokio::time::interval(EVERY / TICKS);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = ended.cancelled() => break,
        }
        let epoch = activity.epoch.fetch_add(1, Ordering::Relaxed);
        // The first one comes after a second: a rate needs time.
        if epoch % TICKS == TICKS - 1 {
            let sketches = activity.stripes.iter().map(|stripe| stripe.0.lock().tick());
            let merged = sketch::merged(sketches);
            activity
                .latest
                .store(Arc::new(ticker.tick(&server, merged)));
        }
    }
    if let Some(recorder) = &activity.recorder {
        recorder.finish();
    }
}

/// Returns the part of a text that is kept.
fn kept_text(text: &str) -> Box<str> {
    let ends = text
        .char_indices()
        .map(|(start, character)| start + character.len_utf8());
    let end = ends.take_while(|end| *end <= MAX_KEY).last().unwrap_or(0);
    text[..end].into()
}

/// Returns the part of a key that is kept.
fn kept_key(key: &[u8]) -> Box<[u8]> {
    key[..key.len().min(MAX_KEY)].into()
}
