//! A line of the table: four slots with their fingerprints and one lock, in two adjacent cache
//! lines.
//!
//! The lock is one bit of the line's header, so a check costs one cache miss. Everything it
//! protects is atomics with relaxed ordering, ordered by the lock's acquire and release. There is
//! no `unsafe`, and loom can check it.

use super::fingerprint::Fingerprint;
use crate::sync::{AtomicU16, AtomicU32, AtomicU64, Ordering, spin_loop, yield_now};

/// The number of slots in a line.
pub(super) const SLOTS: usize = 4;

/// The number of bits in a slot's amount.
pub(super) const AMOUNT_BITS: u32 = 48;

// The header from its lowest bit: the lock, the overflow flag, two bits of kind and two of denials
// per slot, a byte of tag per slot from bit 18 on, two bits of age per slot, and a count of visits
// in the topmost bits, where it wraps by itself.
const LOCKED: u64 = 1;
/// Set if an entry whose home is this line or an earlier one may be in a later line.
const OVERFLOWED: u64 = 1 << 1;
const KINDS_AT: u32 = 2;
const DENIALS_AT: u32 = 10;
const TAGS_AT: u32 = 18;
const AGES_AT: u32 = 50;
const VISITS_AT: u32 = 58;
const LOW_BITS_OF_BYTES: u32 = 0x0101_0101;
/// The lowest bit of each of four two-bit fields.
const LOW_BITS_OF_PAIRS: u64 = 0b0101_0101;

/// The bits of each slot in the header. Looked up, since shifting by a variable takes longer.
const KIND_MASKS: [u64; SLOTS] = pairs_at(KINDS_AT, 3);
const PLAIN_KINDS: [u64; SLOTS] = pairs_at(KINDS_AT, Kind::Plain as u64);
const COUNTER_KINDS: [u64; SLOTS] = pairs_at(KINDS_AT, Kind::Counter as u64);
const AGE_MASKS: [u64; SLOTS] = pairs_at(AGES_AT, 3);
const DENIAL_MASKS: [u64; SLOTS] = pairs_at(DENIALS_AT, 3);
const ONE_DENIAL: [u64; SLOTS] = pairs_at(DENIALS_AT, 1);

/// Returns `pair` in the two-bit field of each slot.
const fn pairs_at(start: u32, pair: u64) -> [u64; SLOTS] {
    let start = pair << start;
    [start, start << 2, start << 4, start << 6]
}

#[repr(C, align(128))]
#[cfg_attr(not(tidegate_loom), derive(bytemuck::Zeroable))]
pub(super) struct CacheLine {
    header: AtomicU64,
    low: [AtomicU64; SLOTS],
    high: [AtomicU64; SLOTS],
    time: [AtomicU64; SLOTS],
    amount_low: [AtomicU32; SLOTS],
    amount_high: [AtomicU16; SLOTS],
}

/// The meaning of a slot's time and amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Empty,
    /// A bucket or a window, which equals a fresh one once `time` has passed.
    Plain,
    /// A packed sliding_window_counter.
    Counter,
    /// A record in the arena, with the number `amount`. It equals a fresh one once `time` has
    /// passed.
    Record,
}

/// The content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) kind: Kind,
    pub(super) time: u64,
    /// At most [`AMOUNT_BITS`] bits.
    pub(super) amount: u64,
}

impl Slot {
    /// Returns the time from which on the slot may be deleted.
    pub(super) fn expires_at(self) -> u64 {
        match self.kind {
            Kind::Empty => 0,
            Kind::Plain | Kind::Record => self.time,
            Kind::Counter => super::packed::counter_expires_at(self.time),
        }
    }

    pub(super) fn is_expired(self, now: u64) -> bool {
        self.expires_at() < now
    }
}

impl CacheLine {
    #[inline(always)]
    pub(super) fn lock(&self) -> LockedLine<'_> {
        self.lock_from(self.header.load(Ordering::Relaxed))
    }

    /// Locks the line, and returns the first slot with the tag of `fingerprint`.
    ///
    /// The entry is in that slot if it is in this line and no other entry has the same tag. The
    /// slot is computed from the header before the lock is taken, without a branch for each slot.
    #[inline(always)]
    pub(super) fn lock_and_guess(
        &self,
        fingerprint: Fingerprint,
    ) -> (LockedLine<'_>, Option<usize>) {
        let header = self.header.load(Ordering::Relaxed);
        let matches = tag_matches(header, fingerprint);
        match self.try_lock_from(header) {
            Some(guard) => (guard, first_slot(matches)),
            None => {
                let guard = self.lock_contended();
                let matches = tag_matches(guard.header, fingerprint);
                (guard, first_slot(matches))
            }
        }
    }

    /// Returns `true` if the entry of `fingerprint` is not here but may be in a later line. Takes
    /// no lock.
    #[inline]
    pub(super) fn may_be_beyond(&self, fingerprint: Fingerprint) -> bool {
        let header = self.header.load(Ordering::Relaxed);
        header & OVERFLOWED != 0 && tag_matches(header, fingerprint) == 0
    }

    /// Locks the line unless it is locked.
    #[inline(always)]
    pub(super) fn try_lock(&self) -> Option<LockedLine<'_>> {
        self.try_lock_from(self.header.load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn try_lock_from(&self, header: u64) -> Option<LockedLine<'_>> {
        if header & LOCKED != 0 {
            return None;
        }
        let locked = self.header.compare_exchange(
            header,
            header | LOCKED,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        // Created only on success: dropping a guard unlocks the line.
        locked.ok().map(|header| LockedLine { line: self, header })
    }

    #[inline(always)]
    fn lock_from(&self, header: u64) -> LockedLine<'_> {
        match self.try_lock_from(header) {
            Some(guard) => guard,
            None => self.lock_contended(),
        }
    }

    #[cold]
    fn lock_contended(&self) -> LockedLine<'_> {
        let mut tries = 0;
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            pause(&mut tries);
        }
    }

    #[cfg(tidegate_loom)]
    pub(super) fn new() -> Self {
        Self {
            header: AtomicU64::new(0),
            low: std::array::from_fn(|_| AtomicU64::new(0)),
            high: std::array::from_fn(|_| AtomicU64::new(0)),
            time: std::array::from_fn(|_| AtomicU64::new(0)),
            amount_low: std::array::from_fn(|_| AtomicU32::new(0)),
            amount_high: std::array::from_fn(|_| AtomicU16::new(0)),
        }
    }
}

/// Returns a bit for each slot with the tag of `fingerprint`, at bit 7 of its byte. Only the lowest
/// is reliable.
#[inline(always)]
fn tag_matches(header: u64, fingerprint: Fingerprint) -> u32 {
    let differences =
        (header >> TAGS_AT) as u32 ^ u32::from(fingerprint.tag).wrapping_mul(LOW_BITS_OF_BYTES);
    // The usual way to find zero bytes in a word.
    differences.wrapping_sub(LOW_BITS_OF_BYTES) & !differences & (LOW_BITS_OF_BYTES << 7)
}

#[inline(always)]
fn first_slot(matches: u32) -> Option<usize> {
    (matches != 0).then(|| (matches.trailing_zeros() as usize / 8) & (SLOTS - 1))
}

/// Waits for the thread that holds the lock, which takes some tens of nanoseconds unless it was
/// preempted.
#[cold]
fn pause(tries: &mut u32) {
    *tries += 1;
    match *tries {
        // Longer each time, so that the holder is not slowed down by reads of its line.
        1..=6 => (0..1 << *tries).for_each(|_| spin_loop()),
        #[cfg(not(tidegate_loom))]
        // Yielding does not help if the holder has a lower priority. Sleeping lets the system run
        // it.
        1_000.. => std::thread::sleep(std::time::Duration::from_micros(50)),
        _ => yield_now(),
    }
}

/// A locked line. The header is kept here and stored on drop, which unlocks.
pub(super) struct LockedLine<'a> {
    line: &'a CacheLine,
    header: u64,
}

impl Drop for LockedLine<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.line.header.store(self.header, Ordering::Release);
    }
}

impl LockedLine<'_> {
    /// Returns the slot of the entry of `fingerprint`.
    #[inline(always)]
    pub(super) fn find(&self, fingerprint: Fingerprint) -> Option<usize> {
        (0..SLOTS).find(|&at| self.is_at(at, fingerprint))
    }

    /// Returns the first slot with the tag of `fingerprint`.
    #[inline(always)]
    pub(super) fn guess(&self, fingerprint: Fingerprint) -> Option<usize> {
        first_slot(tag_matches(self.header, fingerprint))
    }

    /// Returns `true` if the entry of `fingerprint` is in this slot.
    ///
    /// An empty slot has the fingerprint 0, which a key has with a probability of 2^-128. Such a
    /// key would not be counted.
    #[inline(always)]
    pub(super) fn is_at(&self, at: usize, fingerprint: Fingerprint) -> bool {
        self.fingerprint(at) == fingerprint
    }

    /// Like [`is_at`](Self::is_at), for a slot whose tag is known to match.
    #[inline(always)]
    pub(super) fn is_at_tagged(&self, at: usize, fingerprint: Fingerprint) -> bool {
        let (low, high) = (
            self.line.low[at].load(Ordering::Relaxed),
            self.line.high[at].load(Ordering::Relaxed),
        );
        debug_assert_eq!(self.fingerprint(at).tag, fingerprint.tag);
        (low, high) == (fingerprint.low, fingerprint.high)
    }

    #[inline(always)]
    pub(super) fn fingerprint(&self, at: usize) -> Fingerprint {
        let low = self.line.low[at].load(Ordering::Relaxed);
        let high = self.line.high[at].load(Ordering::Relaxed);
        Fingerprint {
            low,
            high,
            tag: (self.header >> (TAGS_AT + 8 * at as u32)) as u8,
        }
    }

    #[inline(always)]
    fn kind(&self, at: usize) -> Kind {
        match (self.header >> (KINDS_AT + 2 * at as u32)) & 3 {
            0 => Kind::Empty,
            1 => Kind::Plain,
            2 => Kind::Counter,
            _ => Kind::Record,
        }
    }

    #[inline(always)]
    pub(super) fn slot(&self, at: usize) -> Slot {
        self.slot_as(at, self.kind(at))
    }

    #[inline(always)]
    fn slot_as(&self, at: usize, kind: Kind) -> Slot {
        let low = u64::from(self.line.amount_low[at].load(Ordering::Relaxed));
        let high = u64::from(self.line.amount_high[at].load(Ordering::Relaxed));
        Slot {
            kind,
            time: self.line.time[at].load(Ordering::Relaxed),
            amount: high << 32 | low,
        }
    }

    /// Returns a slot if it has this kind, which is `Plain` or `Counter`.
    #[inline(always)]
    pub(super) fn slot_of_kind(&self, at: usize, kind: Kind) -> Option<Slot> {
        let kinds = match kind {
            Kind::Counter => &COUNTER_KINDS,
            _ => &PLAIN_KINDS,
        };
        (self.header & KIND_MASKS[at] == kinds[at]).then(|| self.slot_as(at, kind))
    }

    /// Returns the occupied slots with their indexes.
    pub(super) fn slots(&self) -> impl Iterator<Item = (usize, Slot)> + '_ {
        (0..SLOTS)
            .map(|at| (at, self.slot(at)))
            .filter(|(_, slot)| slot.kind != Kind::Empty)
    }

    pub(super) fn vacancy(&self) -> Option<usize> {
        (0..SLOTS).find(|&at| self.kind(at) == Kind::Empty)
    }

    /// Returns the number of slots that are empty or have expired.
    pub(super) fn free_slots(&self, now: u64) -> usize {
        (0..SLOTS)
            .filter(|at| self.kind(*at) == Kind::Empty || self.slot(*at).is_expired(now))
            .count()
    }

    /// Writes the time and amount of a slot. Its fingerprint and kind stay.
    #[inline(always)]
    pub(super) fn write(&mut self, at: usize, slot: Slot) {
        self.write_time_and_amount(at, slot.time, slot.amount);
    }

    #[inline(always)]
    pub(super) fn write_time_and_amount(&mut self, at: usize, time: u64, amount: u64) {
        debug_assert!(amount >> AMOUNT_BITS == 0);
        self.line.time[at].store(time, Ordering::Relaxed);
        self.line.amount_low[at].store(amount as u32, Ordering::Relaxed);
        self.line.amount_high[at].store((amount >> 32) as u16, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(super) fn write_time(&mut self, at: usize, time: u64) {
        self.line.time[at].store(time, Ordering::Relaxed);
    }

    pub(super) fn set_kind(&mut self, at: usize, kind: Kind) {
        let kind_at = KINDS_AT + 2 * at as u32;
        self.header = self.header & !(3 << kind_at) | (kind as u64) << kind_at;
    }

    /// Puts an entry into a slot, with age 0 and up to 3 denials.
    pub(super) fn insert(&mut self, at: usize, fingerprint: Fingerprint, slot: Slot, denials: u8) {
        self.line.low[at].store(fingerprint.low, Ordering::Relaxed);
        self.line.high[at].store(fingerprint.high, Ordering::Relaxed);
        let tag_at = TAGS_AT + 8 * at as u32;
        self.header = self.header & !(0xff << tag_at) | u64::from(fingerprint.tag) << tag_at;
        self.set_kind(at, slot.kind);
        self.write(at, slot);
        self.set_denials(at, denials);
        self.touch(at);
    }

    pub(super) fn clear(&mut self, at: usize) {
        let nothing = Slot {
            kind: Kind::Empty,
            time: 0,
            amount: 0,
        };
        self.insert(
            at,
            Fingerprint {
                low: 0,
                high: 0,
                tag: 0,
            },
            nothing,
            0,
        );
    }

    /// Resets the age of the entry: it was used.
    #[inline(always)]
    pub(super) fn touch(&mut self, at: usize) {
        self.header &= !AGE_MASKS[at];
    }

    /// Returns the number of full sweeps since the entry was used, up to 3.
    pub(super) fn age(&self, at: usize) -> u8 {
        (self.header >> (AGES_AT + 2 * at as u32)) as u8 & 3
    }

    /// Adds one to the age of every entry, up to 3.
    pub(super) fn increment_ages(&mut self) {
        let ages = self.header >> AGES_AT;
        // A pair with both bits set stays as it is.
        let young = !(ages & ages >> 1) & LOW_BITS_OF_PAIRS;
        self.header += young << AGES_AT;
    }

    /// Returns the denied requests, less those admitted since, from 0 to 3.
    #[inline(always)]
    pub(super) fn denials(&self, at: usize) -> u8 {
        (self.header >> (DENIALS_AT + 2 * at as u32)) as u8 & 3
    }

    #[inline(always)]
    pub(super) fn set_denials(&mut self, at: usize, denials: u8) {
        let denials_at = DENIALS_AT + 2 * at as u32;
        self.header = self.header & !(3 << denials_at) | u64::from(denials.min(3)) << denials_at;
    }

    /// Records an admitted request. Has no branch, since the processor could not predict it.
    #[inline(always)]
    pub(super) fn admit(&mut self, at: usize) {
        self.touch(at);
        let is_denied = u64::from(self.header & DENIAL_MASKS[at] != 0);
        self.header -= ONE_DENIAL[at] * is_denied;
    }

    /// Records a denied request.
    #[inline(always)]
    pub(super) fn deny(&mut self, at: usize) {
        self.touch(at);
        let is_below = u64::from(self.header & DENIAL_MASKS[at] != DENIAL_MASKS[at]);
        self.header += ONE_DENIAL[at] * is_below;
    }

    #[inline(always)]
    pub(super) fn has_overflowed(&self) -> bool {
        self.header & OVERFLOWED != 0
    }

    pub(super) fn set_overflowed(&mut self, has_overflowed: bool) {
        self.header = self.header & !OVERFLOWED | if has_overflowed { OVERFLOWED } else { 0 };
    }

    /// Counts a visit. Returns `true` every 64th time.
    #[inline(always)]
    pub(super) fn visit(&mut self) -> bool {
        self.header = self.header.wrapping_add(1 << VISITS_AT);
        self.header >> VISITS_AT == 0
    }
}
