//! Eviction: which entry a full table drops.
//!
//! A new key evicts one of the entries near its home line, or in other places that its fingerprint
//! selects. The order, from the first to go to the last:
//!
//! 1. Entries that have expired.
//! 2. Entries of a group above its share, or of the new key's own group if that is above. An entry
//!    of another group goes only if some hundreds of candidates contain no such entry.
//! 3. Among those, by denials and age (see [`CLASSES`]). An entry that was used once or twice goes
//!    before one that keeps being denied. An entry not used while the table was filled once goes
//!    before one that was.
//! 4. Among equals, the entry that resets soonest.

use super::cache_line::{CacheLine, LockedLine, Slot};
use super::fingerprint::{Fingerprint, Group};
use super::table::Table;
use crate::hardware;
use crate::sync::Ordering;

/// Tables with at most this many lines search all of them.
pub(super) const SMALL: usize = 16;
/// In a larger table: the number of lines searched from the home line on, and in each other place.
pub(super) const NEAR: usize = 4;
const FAR: usize = 8;
/// The number of other places tried until one has an entry that is cheap to drop, and until one has
/// any that may be dropped.
const CHEAP_TRIES: u64 = 4;
const MAX_TRIES: u64 = 24;

/// The order of eviction by denials (0 to 3) and age (0 to 3 full sweeps since the last request).
///
/// First come the unused entries, of age 2 and 3, those without a denial before those that were
/// denied. Then come the recently used ones, and among these last the repeatedly denied.
pub(super) const CLASSES: Classes = [[10, 8, 1, 0], [11, 9, 3, 2], [13, 12, 5, 4], [15, 14, 7, 6]];
/// The same for records. They may be replaced several times during one sweep of the table, so an
/// age of 1 is already old.
pub(super) const RECORD_CLASSES: Classes =
    [[5, 2, 1, 0], [7, 6, 4, 3], [11, 10, 9, 8], [15, 14, 13, 12]];
/// Indexed by denials and age.
type Classes = [[u8; 4]; 4];
/// The last class of entries that are dropped without searching further places.
const CHEAP: u8 = 1;

/// The position of an entry in the order of eviction. The smallest is evicted first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    is_live: bool,
    is_protected: bool,
    class: u8,
    expires_at: u64,
    pub(super) at: usize,
    is_denied: bool,
}

impl Rank {
    pub(super) fn is_cheap(self) -> bool {
        !self.is_live || (!self.is_protected && self.class <= CHEAP)
    }
}

/// The new entry that another one is evicted for.
#[derive(Clone, Copy)]
pub(super) struct Newcomer<'a> {
    pub(super) fingerprint: Fingerprint,
    /// Entries of the same request, which are not evicted for one another.
    pub(super) spared: &'a [Fingerprint],
    pub(super) now: u64,
}

impl Table {
    /// Evicts an entry, near the new key or elsewhere. The key count stays the same: the new entry
    /// takes the place of the evicted one.
    #[cold]
    pub(super) fn make_room(&self, near: &mut [LockedLine<'_>], newcomer: Newcomer<'_>) {
        let spread = newcomer.fingerprint.high;
        // Fetched while the nearby lines are searched.
        self.lines_at(spread).for_each(hardware::prefetch);
        let mut best: Option<Rank> = None;
        let mut near_index = 0;
        for (index, line) in near.iter().enumerate() {
            if let Some(rank) = self
                .least(line, newcomer)
                .filter(|rank| best.is_none_or(|best| *rank < best))
            {
                (best, near_index) = (Some(rank), index);
            }
        }
        let mut far: Option<LockedLine<'_>> = None;
        for again in 0..MAX_TRIES {
            let is_enough = best.is_some_and(|best| {
                best.is_cheap() || (again >= CHEAP_TRIES && !best.is_protected)
            });
            if is_enough && again > 0 {
                break;
            }
            if let Some((rank, line)) =
                self.least_at(spread.wrapping_add(again.wrapping_mul(WEYL)), newcomer)
                && best.is_none_or(|best| rank < best)
            {
                (best, far) = (Some(rank), Some(line));
            }
        }
        match (best, &mut far) {
            (Some(rank), Some(line)) => self.evict(line, rank),
            (Some(rank), None) => self.evict(&mut near[near_index], rank),
            // Only entries of the same request, or locked lines. One key too many is counted.
            (None, _) => {
                self.counts.keys.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.groups.add(newcomer.fingerprint.group());
    }

    /// Evicts an entry because every slot within reach is taken. That happens by chance in about
    /// one of a hundred tables of a hundred million keys.
    #[cold]
    pub(super) fn drop_near(&self, near: &mut [LockedLine<'_>], newcomer: Newcomer<'_>) {
        let ranks = near
            .iter()
            .enumerate()
            .filter_map(|(index, line)| Some((self.least(line, newcomer)?, index)));
        if let Some((rank, index)) = ranks.min() {
            self.evict(&mut near[index], rank);
            self.counts.keys.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Drops an entry. The caller updates the total number of keys.
    fn evict(&self, line: &mut LockedLine<'_>, rank: Rank) {
        self.groups.remove(line.fingerprint(rank.at).group());
        self.release(line, rank.at);
        self.count_eviction(rank);
    }

    pub(super) fn count_eviction(&self, rank: Rank) {
        let count = if rank.is_live {
            &self.counts.evictions
        } else {
            &self.counts.expiries
        };
        count.fetch_add(1, Ordering::Relaxed);
        if rank.is_live && rank.is_denied {
            self.counts.denied_evictions.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the entry to evict first at another place. Locks are only taken upwards, and these
    /// lines may be below those held, so a line that another thread holds is skipped.
    fn least_at(&self, spread: u64, newcomer: Newcomer<'_>) -> Option<(Rank, LockedLine<'_>)> {
        let lines = self.lines_at(spread).filter_map(CacheLine::try_lock);
        lines
            .filter_map(|line| Some((self.least(&line, newcomer)?, line)))
            .min_by_key(|(rank, _)| *rank)
    }

    fn lines_at(&self, spread: u64) -> impl Iterator<Item = &CacheLine> {
        let places = self.homes.saturating_sub(FAR as u64).max(1);
        let first = ((u128::from(spread) * u128::from(places)) >> 64) as usize;
        self.lines[first..].iter().take(FAR)
    }

    /// Returns the entry of a line that is evicted first.
    fn least(&self, line: &LockedLine<'_>, newcomer: Newcomer<'_>) -> Option<Rank> {
        let own = newcomer.fingerprint.group();
        let share = self.groups.share(self.max_keys(), own);
        let is_own_above = self.groups.keys(own) >= share;
        let may_go = |group: Group| {
            if is_own_above {
                group == own
            } else {
                self.groups.keys(group) > share
            }
        };
        line.slots()
            .filter(|(at, _)| !newcomer.spared.contains(&line.fingerprint(*at)))
            .map(|(at, slot)| {
                rank(
                    line,
                    at,
                    slot,
                    &CLASSES,
                    newcomer.now,
                    !may_go(line.fingerprint(at).group()),
                )
            })
            .min()
    }
}

/// The step of a Weyl sequence, which spreads evenly over all places.
const WEYL: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the rank of an entry.
pub(super) fn rank(
    line: &LockedLine<'_>,
    at: usize,
    slot: Slot,
    classes: &Classes,
    now: u64,
    is_protected: bool,
) -> Rank {
    let denials = line.denials(at);
    Rank {
        is_live: !slot.is_expired(now),
        is_protected,
        class: classes[usize::from(denials)][usize::from(line.age(at))],
        expires_at: slot.expires_at(),
        at,
        is_denied: denials > 0,
    }
}
