//! Eviction: which entry a full table drops.
//!
//! A new key evicts one of the entries near its home or in other places that its fingerprint chooses. The order, from the
//! first to go to the last:
//!
//! 1. Entries that have expired.
//! 2. Entries of a group that has more than its share, or of the new key's own group if that has. An entry of another
//!    group goes only if some hundreds of candidates hold no such entry.
//! 3. Among those, by denials and age (see [`CLASSES`]): an entry that was asked for once or twice goes before an entry that
//!    keeps being denied, and one that has not been asked for while the table was filled anew goes before one that has.
//! 4. Among equals, the entry that resets soonest.

use super::fingerprint::{Fingerprint, Group};
use super::line::{Guard, Line, Slot};
use super::table::Table;
use crate::hardware;
use crate::sync::Ordering;

/// Tables with at most so many lines look for the entry to evict in all of them.
pub(super) const SMALL: usize = 16;
/// In a larger one: lines from the home of a new key on that are looked through, and lines in each other place.
pub(super) const NEAR: usize = 4;
const FAR: usize = 8;
/// Other places that are tried until one has an entry that is cheap to drop, and until one has any that may be dropped.
const CHEAP_TRIES: u64 = 4;
const MAX_TRIES: u64 = 24;

/// The order of eviction by denials (0 to 3) and age (0 to 3 full sweeps since the last request).
///
/// First come the quiet entries, of age 2 and 3, those without a denial before those that were denied. Then come those that
/// were asked for a short time ago, and of these last the ones that were denied again and again.
pub(super) const CLASSES: Classes = [[10, 8, 1, 0], [11, 9, 3, 2], [13, 12, 5, 4], [15, 14, 7, 6]];
/// The same for records, which may be replaced several times while the sweeps pass the table once: an age of 1 is old then.
pub(super) const RECORD_CLASSES: Classes =
    [[5, 2, 1, 0], [7, 6, 4, 3], [11, 10, 9, 8], [15, 14, 13, 12]];
/// By denials and age.
type Classes = [[u8; 4]; 4];
/// The last class of entries that are dropped without looking in further places.
const CHEAP: u8 = 1;

/// The place of an entry in the order of eviction: the least is evicted first.
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
    /// Evicts an entry, in `near` or elsewhere. The entry that takes its place is counted for it.
    #[cold]
    pub(super) fn make_room(&self, near: &mut [Guard<'_>], newcomer: Newcomer<'_>) {
        let spread = newcomer.fingerprint.high;
        // On their way while those near are looked at.
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
        let mut far: Option<Guard<'_>> = None;
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
            // Nothing but entries of the same request, or chance. One key too many.
            (None, _) => {
                self.counts.keys.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.groups.add(newcomer.fingerprint.group());
    }

    /// Every slot within reach is taken, which chance brings about in one of a hundred tables of a hundred million keys.
    #[cold]
    pub(super) fn drop_near(&self, near: &mut [Guard<'_>], newcomer: Newcomer<'_>) {
        let ranks = near
            .iter()
            .enumerate()
            .filter_map(|(index, line)| Some((self.least(line, newcomer)?, index)));
        if let Some((rank, index)) = ranks.min() {
            self.evict(&mut near[index], rank);
            self.counts.keys.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Drops the entry; the total of keys is left to the caller.
    fn evict(&self, line: &mut Guard<'_>, rank: Rank) {
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

    /// Locks are taken going up, and these may be below those that are held: a line that another thread holds is left out.
    fn least_at(&self, spread: u64, newcomer: Newcomer<'_>) -> Option<(Rank, Guard<'_>)> {
        let lines = self.lines_at(spread).filter_map(Line::try_lock);
        lines
            .filter_map(|line| Some((self.least(&line, newcomer)?, line)))
            .min_by_key(|(rank, _)| *rank)
    }

    fn lines_at(&self, spread: u64) -> impl Iterator<Item = &Line> {
        let places = self.homes.saturating_sub(FAR as u64).max(1);
        let first = ((u128::from(spread) * u128::from(places)) >> 64) as usize;
        self.lines[first..].iter().take(FAR)
    }

    /// The entry of a line that is evicted first.
    fn least(&self, line: &Guard<'_>, newcomer: Newcomer<'_>) -> Option<Rank> {
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

/// Steps that spread evenly over all places.
const WEYL: u64 = 0x9e37_79b9_7f4a_7c15;

/// Ranks an entry.
pub(super) fn rank(
    line: &Guard<'_>,
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
