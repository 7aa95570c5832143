//! Who has to go when the table is full.

use super::line::{Guard, Line, Slot};
use super::probe::Probe;
use super::table::Table;
use crate::hardware;
use crate::sync::Ordering;

/// How many lines a table has at the most in which the entry that carries least is looked for in all of them.
pub(super) const SMALL: usize = 16;
/// In a larger one: how many lines from the home of a new key on are looked through, how many in another place, and how
/// many such places are tried.
const NEAR: usize = 4;
const FAR: usize = 8;
const FAR_TRIES: u32 = 4;

impl Table {
    /// Drops an entry that carries little; the one that takes its place is counted for it.
    ///
    /// Of those near the home and of those in some other place the one that carries least. The other place matters: where
    /// keys happen to stand dense their oldest is older, so that places even out, and no flood digs a hole anywhere.
    #[cold]
    pub(super) fn make_room<'a>(&'a self, probe: &mut Probe<'a>, spread: u64, now: u64) {
        // On their way while those near are looked at.
        self.lines_at(spread).for_each(hardware::prefetch);
        let near = if self.homes == 1 { SMALL } else { NEAR };
        while probe.lines.len() < near && probe.lock_next() {}
        let near = probe.least(now);
        let far = self.least_far_away(spread, now);
        match (near, far) {
            (Some((near, index)), far) if far.as_ref().is_none_or(|(far, _)| near <= *far) => {
                self.evict(&mut probe.lines[index], near);
            }
            (_, Some((far, mut line))) => self.evict(&mut line, far),
            // A full table with nothing in any of these places: chance does not bring that about. One key too many.
            _ => drop(self.counts.keys.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Every slot within reach is taken, which chance brings about in one of a hundred tables of a hundred million keys.
    #[cold]
    pub(super) fn drop_near(&self, probe: &mut Probe<'_>, now: u64) {
        if let Some((rank, index)) = probe.least(now) {
            self.evict(&mut probe.lines[index], rank);
            self.counts.keys.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn evict(&self, line: &mut Guard<'_>, rank: Rank) {
        self.release(line, rank.at);
        let count = if rank.is_expired { &self.counts.expiries } else { &self.counts.evictions };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// The entry that carries least in a place that `spread` chooses, and its line: in the first of a few such places that
    /// has one which is not being denied, if any has.
    fn least_far_away(&self, spread: u64, now: u64) -> Option<(Rank, Guard<'_>)> {
        let places = (0..FAR_TRIES).filter_map(|again| self.least_at(spread.rotate_left(16 * again), now));
        let mut least = None;
        for found in places {
            let is_denied = found.0.is_denied;
            least = Some(found);
            if !is_denied {
                break;
            }
        }
        least
    }

    /// Locks are taken going up, and these may be below those that are held: nobody waits for them, and a line that another
    /// holds is left out.
    fn least_at(&self, spread: u64, now: u64) -> Option<(Rank, Guard<'_>)> {
        let lines = self.lines_at(spread).filter_map(Line::try_lock);
        lines.filter_map(|line| Some((least(&line, now)?, line))).min_by_key(|(rank, _)| *rank)
    }

    fn lines_at(&self, spread: u64) -> impl Iterator<Item = &Line> {
        let places = self.homes.saturating_sub(FAR as u64).max(1);
        let first = ((u128::from(spread) * u128::from(places)) >> 64) as usize;
        self.lines[first..].iter().take(FAR)
    }
}

/// What an entry carries: one that has expired nothing, one that is being denied most, others the more the later they
/// reset.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub(super) is_denied: bool,
    pub(super) expires_at: u64,
    pub(super) is_expired: bool,
    pub(super) at: usize,
}

/// The entry of a line that carries least.
pub(super) fn least(line: &Guard<'_>, now: u64) -> Option<Rank> {
    let rank = |(at, slot): (usize, Slot)| {
        let is_expired = slot.is_expired(now);
        Rank { is_denied: !is_expired && line.is_marked(at), expires_at: slot.expires_at(), is_expired, at }
    };
    line.slots().map(rank).min()
}
