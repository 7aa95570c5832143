//! Busy and denied keys in bounded memory: a space-saving sketch with decay.
//!
//! A new key replaces one of the least busy of a few random entries and inherits its count, so a
//! flood of keys cannot push out a busy one. Counts halve in half a minute.

use std::collections::HashMap;
use std::time::Duration;

use tidegate::{Limit, Timestamp};

use super::{Observed, kept_key, kept_text};

/// The number of keys in one sketch.
const ENTRIES: usize = 512;
/// The number of entries among which the least busy is replaced.
const CHOICES: usize = 8;
/// The part of a count that remains after a second: half after 30.
const KEPT: f64 = 0.977_16;
/// Entries below this count are removed.
const LEAST: f64 = 0.01;

/// The time without a denial after which a new one starts again.
const PAUSE: Duration = Duration::from_secs(30);

/// Returns the rate per second of a decayed count that began this many seconds ago.
pub(super) fn per_second(count: f64, seconds: f64) -> f64 {
    let sum = (1.0 - KEPT.powf(seconds.max(1.0))) / (1.0 - KEPT);
    count / sum
}

/// A decision with its identity and weight.
pub(super) struct Seen<'a> {
    pub(super) id: u64,
    pub(super) now: Timestamp,
    pub(super) weight: f64,
    pub(super) observed: &'a Observed<'a>,
}

/// A key and its decayed counts.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) id: u64,
    pub(super) policy: Box<str>,
    pub(super) tenant: Option<Box<str>>,
    pub(super) key: Box<[u8]>,
    pub(super) key_bytes: usize,
    /// The time of the first request.
    pub(super) begun: Timestamp,
    pub(super) requests: f64,
    /// The count of the replaced entry, which may belong to other keys.
    pub(super) error: f64,
    pub(super) denied: f64,
    pub(super) denial: Option<Denial>,
    /// Requests after a denial: before the time of the retry, and after it.
    pub(super) hammered: f64,
    pub(super) obeyed: f64,
}

/// The last denials of a key, without a longer pause.
#[derive(Clone, Debug)]
pub(super) struct Denial {
    pub(super) limit: Option<Limit>,
    pub(super) since: Timestamp,
    pub(super) last: Timestamp,
    /// False if a later request was allowed.
    pub(super) is_active: bool,
    /// The time at which the request is allowed; `None` if it never is.
    pub(super) free_at: Option<Timestamp>,
}

#[derive(Default)]
pub(super) struct Sketch {
    entries: Vec<Entry>,
    places: HashMap<u64, usize>,
    random: u32,
    totals: Totals,
}

/// The decayed counts of all keys.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) requests: f64,
    pub(super) denied: f64,
}

/// The entries of all sketches, each key once.
#[derive(Default)]
pub(super) struct Merged {
    pub(super) entries: Vec<Entry>,
    pub(super) totals: Totals,
}

impl Sketch {
    pub(super) fn add(&mut self, seen: &Seen<'_>) {
        let is_denied = seen.observed.is_denied;
        self.totals.requests += seen.weight;
        self.totals.denied += if is_denied { seen.weight } else { 0.0 };
        let place = match self.places.get(&seen.id) {
            Some(place) => *place,
            None => self.place_for(seen),
        };
        if let Some(entry) = self.entries.get_mut(place) {
            entry.add(seen);
        }
    }

    /// Returns the place of a new entry, instead of one of the least busy if there is no room.
    fn place_for(&mut self, seen: &Seen<'_>) -> usize {
        let mut entry = Entry::new(seen);
        if self.entries.len() < ENTRIES {
            self.entries.push(entry);
            self.places.insert(seen.id, self.entries.len() - 1);
            return self.entries.len() - 1;
        }
        let mut least = self.random_place();
        for _ in 1..CHOICES {
            let other = self.random_place();
            if self.entries[other].rank() < self.entries[least].rank() {
                least = other;
            }
        }
        entry.error = self.entries[least].requests;
        entry.requests = entry.error;
        self.places.remove(&self.entries[least].id);
        self.places.insert(seen.id, least);
        self.entries[least] = entry;
        least
    }

    fn random_place(&mut self) -> usize {
        // A linear congruential generator is random enough here.
        self.random = self
            .random
            .wrapping_mul(1_664_525)
            .wrapping_add(1_013_904_223);
        (self.random >> 8) as usize % self.entries.len().max(1)
    }

    /// Lets a second pass, and returns a copy.
    pub(super) fn tick(&mut self) -> Merged {
        self.totals.requests *= KEPT;
        self.totals.denied *= KEPT;
        for entry in &mut self.entries {
            entry.decay();
        }
        self.entries.retain(|entry| entry.requests >= LEAST);
        let places = self.entries.iter().enumerate();
        self.places = places.map(|(place, entry)| (entry.id, place)).collect();
        Merged {
            entries: self.entries.clone(),
            totals: self.totals,
        }
    }
}

impl Entry {
    fn new(seen: &Seen<'_>) -> Self {
        let observed = seen.observed;
        Self {
            id: seen.id,
            policy: kept_text(&observed.label.text()),
            tenant: observed.tenant.map(kept_text),
            key: kept_key(observed.key),
            key_bytes: observed.key.len(),
            begun: seen.now,
            requests: 0.0,
            error: 0.0,
            denied: 0.0,
            denial: None,
            hammered: 0.0,
            obeyed: 0.0,
        }
    }

    /// Denied keys stay longer than busy ones.
    fn rank(&self) -> f64 {
        self.requests + 4.0 * self.denied
    }

    fn decay(&mut self) {
        for count in [
            &mut self.requests,
            &mut self.error,
            &mut self.denied,
            &mut self.hammered,
            &mut self.obeyed,
        ] {
            *count *= KEPT;
        }
    }

    fn add(&mut self, seen: &Seen<'_>) {
        self.requests += seen.weight;
        if let Some(denial) = &mut self.denial {
            match denial.free_at {
                _ if !denial.is_active => {}
                Some(free_at) if seen.now >= free_at => self.obeyed += seen.weight,
                _ => self.hammered += seen.weight,
            }
            denial.is_active &= seen.observed.is_denied;
        }
        if !seen.observed.is_denied {
            return;
        }
        self.denied += seen.weight;
        let recent = self.denial.as_ref();
        let recent = recent.filter(|denial| seen.now.saturating_since(denial.last) < PAUSE);
        let since = recent.map_or(seen.now, |denial| denial.since);
        let wait = seen.observed.retry_after;
        self.denial = Some(Denial {
            limit: seen.observed.limit.copied(),
            since,
            last: seen.now,
            is_active: true,
            free_at: wait.map(|wait| seen.now.saturating_add(wait)),
        });
    }

    fn merge(&mut self, other: Self) {
        self.begun = self.begun.min(other.begun);
        self.requests += other.requests;
        self.error += other.error;
        self.denied += other.denied;
        self.hammered += other.hammered;
        self.obeyed += other.obeyed;
        self.denial = match (self.denial.take(), other.denial) {
            (Some(a), Some(b)) => {
                let since = a.since.min(b.since);
                let last = if a.last >= b.last { a } else { b };
                Some(Denial { since, ..last })
            }
            (a, b) => a.or(b),
        };
    }
}

/// Merges the sketches of all threads.
pub(super) fn merged(sketches: impl Iterator<Item = Merged>) -> Merged {
    let mut merged = Merged::default();
    let mut places: HashMap<u64, usize> = HashMap::new();
    for sketch in sketches {
        merged.totals.requests += sketch.totals.requests;
        merged.totals.denied += sketch.totals.denied;
        for entry in sketch.entries {
            match places.get(&entry.id) {
                Some(place) => merged.entries[*place].merge(entry),
                None => {
                    places.insert(entry.id, merged.entries.len());
                    merged.entries.push(entry);
                }
            }
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use tidegate::{Cost, Limiter, ManualClock, MemoryStore, Policy};

    use super::super::Label;
    use super::*;

    struct Clients {
        sketch: Sketch,
        limiter: Limiter,
        clock: ManualClock,
    }

    impl Clients {
        fn new(policy: &str) -> Self {
            let clock = ManualClock::at(Timestamp::from_nanos(1_700_000_000_000_000_000));
            let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
            let policy: Policy = policy.parse().unwrap();
            Self {
                sketch: Sketch::default(),
                limiter: Limiter::new(store, policy),
                clock,
            }
        }

        fn send(&mut self, id: u64) {
            let decision = self.limiter.check(id).now().unwrap();
            let key = id.to_string();
            let observed = Observed {
                label: Label::Policy("api"),
                tenant: None,
                key: key.as_bytes(),
                cost: Cost::ONE,
                is_denied: decision.is_denied(),
                retry_after: decision.retry_after(),
                limit: self.limiter.policy().limits().first(),
            };
            let seen = Seen {
                id,
                now: self.clock.now(),
                weight: 1.0,
                observed: &observed,
            };
            self.sketch.add(&seen);
        }

        fn entry(&mut self, id: u64) -> Option<Entry> {
            self.sketch
                .tick()
                .entries
                .into_iter()
                .find(|entry| entry.id == id)
        }
    }

    #[test]
    fn a_flood_of_keys_does_not_push_out_a_denied_one() {
        let mut clients = Clients::new("5/minute");
        for _ in 0..1_000 {
            clients.send(1);
        }
        for id in 100..200_000 {
            clients.send(id);
        }
        let entry = clients.entry(1).unwrap();
        assert!(entry.denied > 900.0, "{entry:?}");
        assert_eq!(clients.sketch.entries.len(), ENTRIES);
        let denial = entry.denial.unwrap();
        assert_eq!(denial.limit.unwrap().to_string(), "token_bucket 5/minute");
        assert_eq!(
            denial.free_at.unwrap().saturating_since(denial.last),
            Duration::from_secs(12)
        );
    }

    #[test]
    fn clients_that_wait_and_clients_that_hammer_are_told_apart() {
        let mut clients = Clients::new("1/second");
        for second in 0..10 {
            // One retries when it may, the other at once.
            clients.send(1);
            (0..5).for_each(|_| clients.send(2));
            if second == 0 {
                clients.send(1);
            }
            clients.clock.advance(Duration::from_secs(1));
        }
        let (obeying, hammering) = (clients.entry(1).unwrap(), clients.entry(2).unwrap());
        assert!(
            obeying.obeyed > 0.9 && obeying.hammered < 0.1,
            "{obeying:?}"
        );
        assert!(hammering.hammered > 3.0 * hammering.obeyed, "{hammering:?}");
        let is_active =
            |entry: &Entry| entry.denial.as_ref().is_some_and(|denial| denial.is_active);
        assert!(!is_active(&obeying) && is_active(&hammering));
        let since = hammering.denial.unwrap().since;
        assert!(clients.clock.now().saturating_since(since) >= Duration::from_secs(9));
    }

    #[test]
    fn counts_fade() {
        let mut clients = Clients::new("1000/second");
        (0..100).for_each(|_| clients.send(1));
        for _ in 0..29 {
            clients.sketch.tick();
        }
        let requests = clients.entry(1).unwrap().requests;
        assert!((49.0..51.0).contains(&requests), "{requests}");
        for _ in 0..600 {
            clients.sketch.tick();
        }
        assert!(clients.entry(1).is_none());
    }
}
