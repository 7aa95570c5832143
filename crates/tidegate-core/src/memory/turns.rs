//! Whose turn it is: requests that several keys must all meet come one after the other where they share a key.

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::fingerprint::Fingerprint;

/// So many turns are taken at once; keys that share a number wait for each other without need.
const STRIPES: usize = 64;

pub(super) struct Turns([Mutex<()>; STRIPES]);

impl Default for Turns {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::new(())))
    }
}

/// The turns of several keys, until it is dropped.
pub(super) struct Turn<'a>(#[allow(dead_code)] SmallVec<[MutexGuard<'a, ()>; 4]>);

impl Turns {
    /// Waits for the turns of all these keys: from the lowest number up, so nobody waits in a circle.
    pub(super) fn take(&self, keys: impl Iterator<Item = Fingerprint>) -> Turn<'_> {
        let wanted = keys.fold(0_u64, |wanted, key| wanted | 1 << (key.high % STRIPES as u64));
        let turns = (0..STRIPES).zip(&self.0).filter(|(number, _)| wanted >> number & 1 == 1);
        Turn(turns.map(|(_, turn)| turn.lock()).collect())
    }
}
