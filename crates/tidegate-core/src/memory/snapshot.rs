//! What a store keeps, written down and read again: so that a restart forgets nobody.
//!
//! A header (magic, version, whether short keys are fingerprinted by AES, the secret), the entries, an end mark with their
//! number, and a checksum over all of it. Numbers are little-endian. The file has the secret in it: it is for its owner only.

use std::hash::Hasher;
use std::io::{self, Write};

use siphasher::sip128::{Hasher128, SipHasher13};

use super::fingerprint::{Fingerprint, Secret};
use super::line::{AMOUNT_BITS, Kind, Slot};
use super::packed::counter_shifted;
use super::table::Entry;
use super::{MemoryStore, MemoryStoreBuilder, MemoryStoreError};
use crate::algorithm::{BucketState, CounterState, LogState, StepState, WindowState};
use crate::record::Record;

const MAGIC: &[u8; 8] = b"tidegate";
const VERSION: u32 = 1;
/// Stands where the kind of an entry would.
const END: u8 = 0xff;
/// Beside the kind: an entry that is being denied.
const MARKED: u8 = 0x80;
const CHECKSUM_BYTES: usize = 16;

/// What two clocks differ by that were never set, in nanoseconds.
const LEAST_SHIFT: u64 = 1_000_000_000;

/// Why a snapshot was not taken over. Nothing of it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// Not a snapshot, or a damaged one.
    #[error("this is no snapshot, or a damaged one ({0})")]
    Damaged(&'static str),
    /// Of another version of Tidegate.
    #[error("this snapshot is of version {0}, and version {VERSION} is what can be read")]
    Version(u32),
    /// Written on a processor of another kind: the same keys have other fingerprints here.
    #[error("this snapshot was written on a processor of another kind, where keys have other fingerprints")]
    OtherProcessor,
    /// The store to take it over could not be made.
    #[error(transparent)]
    Memory(#[from] MemoryStoreError),
}

impl MemoryStore {
    /// Writes down all that it keeps, for [`MemoryStoreBuilder::restore`], and answers how many keys that were. Checks go on
    /// meanwhile: each key is written as it is at some time in between. What is written has the store's secret in it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_snapshot(&self, to: impl Write) -> io::Result<u64> {
        self.write_snapshot_at(to, self.table.clock().wall_is_ahead_by())
    }

    fn write_snapshot_at(&self, to: impl Write, wall_is_ahead_by: i64) -> io::Result<u64> {
        let mut out = Summed { to, sum: SipHasher13::new() };
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&[u8::from(self.fingerprinter.has_cipher())])?;
        self.secret.0.iter().try_for_each(|half| out.number(*half))?;
        // Who reads this goes by the wall clock.
        out.number(wall_is_ahead_by.cast_unsigned())?;
        let mut count = 0;
        for line in 0..self.table.lines.len() {
            for entry in self.table.entries(line) {
                write_entry(&mut out, &entry)?;
                count += 1;
            }
        }
        out.write_all(&[END])?;
        out.number(count)?;
        let sum = out.sum.finish128().as_bytes();
        out.to.write_all(&sum)?;
        out.to.flush()?;
        Ok(count)
    }
}

impl MemoryStoreBuilder {
    /// Makes a store that goes on where another was when it wrote this down. What has expired since is left out.
    ///
    /// # Errors
    /// If it is not a whole snapshot, or the store cannot be made. Then nothing was taken over.
    pub fn restore(self, snapshot: &[u8]) -> Result<MemoryStore, RestoreError> {
        let entries = snapshot.len().checked_sub(CHECKSUM_BYTES).ok_or(RestoreError::Damaged("it is too short"))?;
        let (content, checksum) = snapshot.split_at(entries);
        let mut reader = Reader(content);
        if reader.array::<8>()? != *MAGIC {
            return Err(RestoreError::Damaged("it does not begin like one"));
        }
        let version = u32::from_le_bytes(reader.array()?);
        if version != VERSION {
            return Err(RestoreError::Version(version));
        }
        let mut sum = SipHasher13::new();
        sum.write(content);
        if sum.finish128().as_bytes() != *checksum {
            return Err(RestoreError::Damaged("its checksum is wrong"));
        }
        let has_cipher = reader.byte()? != 0;
        let store = self.build_with(Secret([reader.number()?, reader.number()?]))?;
        if store.fingerprinter.has_cipher() != has_cipher {
            return Err(RestoreError::OtherProcessor);
        }
        let now = store.table.clock().now().as_nanos();
        let shift = Some(reader.number()?.cast_signed()).filter(|by_ns| by_ns.unsigned_abs() >= LEAST_SHIFT);
        let mut count = 0;
        while let Some(mut entry) = reader.entry()? {
            if let Some(by_ns) = shift {
                entry.shift(by_ns);
            }
            store.table.restore(entry, now);
            count += 1;
        }
        if reader.number()? != count || !reader.0.is_empty() {
            return Err(RestoreError::Damaged("entries are missing"));
        }
        Ok(store)
    }
}

fn write_entry(out: &mut Summed<impl Write>, entry: &Entry) -> io::Result<()> {
    let Entry { fingerprint, slot, record, is_marked } = entry;
    let mark = if *is_marked { MARKED } else { 0 };
    out.write_all(&[slot.kind as u8 | mark])?;
    out.number(fingerprint.low)?;
    out.number(fingerprint.high)?;
    out.number(slot.time)?;
    match record {
        None => out.number(slot.amount),
        Some(record) => {
            let states = record.as_states();
            out.number(states.len() as u64)?;
            states.iter().try_for_each(|state| write_state(out, state))
        }
    }
}

fn write_state(out: &mut Summed<impl Write>, state: &StepState) -> io::Result<()> {
    match state {
        StepState::Fresh => out.write_all(&[0]),
        StepState::Bucket(state) => {
            out.write_all(&[1, state.mark])?;
            out.number(state.free_at)?;
            out.number(state.part)
        }
        StepState::Window(state) => {
            out.write_all(&[2])?;
            out.number(state.end)?;
            out.number(state.count)
        }
        StepState::Counter(state) => {
            out.write_all(&[3])?;
            out.number(state.end)?;
            out.number(state.current)?;
            out.number(state.previous)
        }
        StepState::Log(state) => {
            let (base, entries) = state.parts();
            out.write_all(&[4])?;
            out.number(base)?;
            out.number(entries.len() as u64)?;
            for (at, total) in entries {
                out.number(at)?;
                out.number(total)?;
            }
            Ok(())
        }
    }
}

impl Entry {
    /// Moves it to another clock.
    fn shift(&mut self, by_ns: i64) {
        self.slot.time = match self.slot.kind {
            Kind::Counter => counter_shifted(self.slot.time, by_ns),
            _ => self.slot.time.saturating_add_signed(by_ns),
        };
        if let Some(record) = &mut self.record {
            *record = Record::of_states(record.as_states().iter().map(|state| shifted(state, by_ns)));
        }
    }
}

fn shifted(state: &StepState, by_ns: i64) -> StepState {
    let later = |time: u64| time.saturating_add_signed(by_ns);
    match state {
        StepState::Fresh => StepState::Fresh,
        StepState::Bucket(state) => StepState::Bucket(BucketState { free_at: later(state.free_at), ..*state }),
        StepState::Window(state) => StepState::Window(WindowState { end: later(state.end), ..*state }),
        StepState::Counter(state) => StepState::Counter(CounterState { end: later(state.end), ..*state }),
        StepState::Log(state) => {
            let (base, entries) = state.parts();
            StepState::Log(LogState::of_parts(base, entries.map(|(at, total)| (later(at), total))))
        }
    }
}

/// Sums up what is written.
struct Summed<W> {
    to: W,
    sum: SipHasher13,
}

impl<W: Write> Summed<W> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.write(bytes);
        self.to.write_all(bytes)
    }

    fn number(&mut self, number: u64) -> io::Result<()> {
        self.write_all(&number.to_le_bytes())
    }
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], RestoreError> {
        let (head, rest) = self.0.split_first_chunk().ok_or(RestoreError::Damaged("it ends too early"))?;
        self.0 = rest;
        Ok(*head)
    }

    fn byte(&mut self) -> Result<u8, RestoreError> {
        self.array().map(|[byte]| byte)
    }

    fn number(&mut self) -> Result<u64, RestoreError> {
        self.array().map(u64::from_le_bytes)
    }

    /// The next entry; `None` at the end.
    fn entry(&mut self) -> Result<Option<Entry>, RestoreError> {
        let first = self.byte()?;
        if first == END {
            return Ok(None);
        }
        let kind = match first & !MARKED {
            1 => Kind::Plain,
            2 => Kind::Counter,
            3 => Kind::Record,
            _ => return Err(RestoreError::Damaged("an entry is of no known kind")),
        };
        let fingerprint = Fingerprint { low: self.number()?, high: self.number()? };
        let time = self.number()?;
        let amount = self.number()?;
        let record = match kind {
            // What was read is the number of its states.
            Kind::Record => Some(self.record(amount)?),
            _ if amount >> AMOUNT_BITS != 0 => return Err(RestoreError::Damaged("an amount is too large")),
            _ => None,
        };
        let slot = Slot { kind, time, amount: if record.is_some() { 0 } else { amount } };
        Ok(Some(Entry { fingerprint, slot, record, is_marked: first & MARKED != 0 }))
    }

    fn record(&mut self, states: u64) -> Result<Record, RestoreError> {
        let states: Vec<StepState> = (0..states).map(|_| self.state()).collect::<Result<_, _>>()?;
        Ok(Record::of_states(states))
    }

    fn state(&mut self) -> Result<StepState, RestoreError> {
        Ok(match self.byte()? {
            0 => StepState::Fresh,
            1 => {
                let mark = self.byte()?;
                StepState::Bucket(BucketState { free_at: self.number()?, part: self.number()?, mark })
            }
            2 => StepState::Window(WindowState { end: self.number()?, count: self.number()? }),
            3 => StepState::Counter(CounterState {
                end: self.number()?,
                current: self.number()?,
                previous: self.number()?,
            }),
            4 => {
                let (base, count) = (self.number()?, self.number()?);
                let entries = (0..count).map(|_| Ok((self.number()?, self.number()?)));
                let entries: Vec<(u64, u64)> = entries.collect::<Result<_, RestoreError>>()?;
                StepState::Log(LogState::of_parts(base, entries))
            }
            _ => return Err(RestoreError::Damaged("a state is of no known kind")),
        })
    }
}

#[cfg(all(test, not(tidegate_loom)))]
#[allow(clippy::unwrap_used)] // Clippy knows tests by `cfg(test)` alone.
mod tests {
    use super::*;
    use crate::{Cost, Key, ManualClock, Policy, Timestamp};

    const POLICIES: [&str; 9] = [
        "token_bucket 7/second burst=40",
        "gcra 100/minute",
        "leaky_bucket 30/minute",
        "fixed_window 50/hour",
        "fixed_window 50/hour anchor=first_hit",
        "sliding_window_counter 60/minute",
        "sliding_window_log 20/minute",
        "sliding_window_counter 9000000/minute",
        "10/second burst=30; sliding_window_log 25/minute; fixed_window 100/day",
    ];

    fn builder(clock: &ManualClock) -> MemoryStoreBuilder {
        MemoryStore::builder().max_keys(10_000).clock(clock.clone())
    }

    fn start() -> ManualClock {
        ManualClock::at(Timestamp::from_micros(1_700_000_000_123_457).unwrap())
    }

    fn written(store: &MemoryStore) -> Vec<u8> {
        let mut bytes = Vec::new();
        store.write_snapshot(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_is_restored_decides_as_what_was_written() {
        let clock = start();
        let store = builder(&clock).build().unwrap();
        let policies: Vec<Policy> = POLICIES.iter().map(|text| text.parse().unwrap()).collect();
        let mut random = fastrand::Rng::with_seed(7);
        let keys: Vec<String> = (0..40).map(|number| format!("a key of some length:{number}")).collect();
        let mut steps = |stores: &[&MemoryStore], count: usize| {
            for _ in 0..count {
                clock.advance(std::time::Duration::from_micros(random.u64(0..400_000)));
                let (policy, key) = (random.choice(&policies).unwrap(), random.choice(&keys).unwrap());
                let cost = Cost::from_thousandths(random.u64(0..3_000)).unwrap();
                let key = Key::new(key.as_bytes()).unwrap();
                let answers: Vec<_> =
                    stores.iter().map(|store| store.check(&store.plan(policy, "api"), key, cost)).collect();
                assert!(answers.windows(2).all(|two| two[0] == two[1]), "{policy} {answers:?}");
            }
        };
        steps(&[&store], 3_000);
        let restored = builder(&clock).restore(&written(&store)).unwrap();
        restored.table.assert_sound();
        assert!(restored.stats().keys > 100 && restored.stats().keys <= store.stats().keys);
        steps(&[&store, &restored], 3_000);
    }

    /// The wall clock was set, or the machine slept, while the first process ran on: the second begins with the wall's.
    #[test]
    fn a_wall_clock_that_was_set_lets_nobody_off() {
        for ahead_s in [-7_200_i64, -1, 0, 1, 3_600] {
            let clock = start();
            let store = builder(&clock).build().unwrap();
            // Windows of the clock begin elsewhere then.
            let policies = POLICIES.iter().filter(|text| !matches!(**text, "fixed_window 50/hour"));
            let policies: Vec<Policy> =
                policies.filter(|text| !text.contains("/day")).map(|text| text.parse().unwrap()).collect();
            let key = Key::new(b"key").unwrap();
            let cost = Cost::try_from(7).unwrap();
            for policy in &policies {
                store.check(&store.plan(policy, ""), key, cost);
            }
            let mut bytes = Vec::new();
            store.write_snapshot_at(&mut bytes, ahead_s * 1_000_000_000).unwrap();
            let wall = ManualClock::at(Timestamp::from_nanos(
                clock.now().as_nanos().saturating_add_signed(ahead_s * 1_000_000_000),
            ));
            let restored = builder(&wall).restore(&bytes).unwrap();
            for policy in &policies {
                let look = |store: &MemoryStore| store.check(&store.plan(policy, ""), key, Cost::ZERO);
                assert_eq!(look(&restored).remaining(), look(&store).remaining(), "{policy} {ahead_s}");
            }
        }
    }

    #[test]
    fn what_has_expired_is_left_out() {
        let clock = start();
        let store = builder(&clock).build().unwrap();
        let plan = store.plan(&"1/second".parse().unwrap(), "");
        store.check(&plan, Key::new(b"k").unwrap(), Cost::ONE);
        let bytes = written(&store);
        clock.advance(std::time::Duration::from_secs(5));
        assert_eq!(builder(&clock).restore(&bytes).unwrap().stats().keys, 0);
    }

    #[test]
    fn a_smaller_store_keeps_what_it_has_room_for() {
        let clock = start();
        let store = builder(&clock).build().unwrap();
        let plan = store.plan(&"sliding_window_log 5/hour".parse().unwrap(), "");
        for number in 0..1_000 {
            store.check(&plan, Key::new(format!("{number}").as_bytes()).unwrap(), Cost::ONE);
        }
        let small = builder(&clock).max_keys(100).restore(&written(&store)).unwrap();
        small.table.assert_sound();
        assert_eq!(small.stats().keys, 100);
    }

    #[test]
    fn every_damage_is_noticed() {
        let clock = start();
        let store = builder(&clock).build().unwrap();
        for (number, policy) in POLICIES.iter().enumerate() {
            let plan = store.plan(&policy.parse().unwrap(), "");
            store.check(&plan, Key::new(format!("{number}").as_bytes()).unwrap(), Cost::ONE);
        }
        let good = written(&store);
        assert!(builder(&clock).restore(&good).is_ok());
        for end in 0..good.len() {
            assert!(builder(&clock).restore(&good[..end]).is_err(), "cut at {end}");
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            assert!(builder(&clock).restore(&bad).is_err(), "a bit of byte {at}");
        }
        assert!(builder(&clock).restore(&[&good[..], b"x"].concat()).is_err());
    }
}
