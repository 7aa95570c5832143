//! Receipts that a server handed out and that were not settled yet.
//!
//! They are not in snapshots: after a restart a receipt is unknown, and what its request took stays taken.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;

use super::fingerprint::Fingerprint;
use crate::clock::Timestamp;

/// The most receipts at a time: some 40 MB. Beyond that the oldest is dropped, and what its request took stays taken.
const MOST: usize = 65_536;
/// Receipts that were taken and are still in order, beside as many as there are open ones.
const SLACK: usize = 1_024;

#[derive(Default)]
pub(super) struct Receipts(Mutex<Open>);

#[derive(Default)]
struct Open {
    by_id: HashMap<Id, Kept>,
    /// Oldest first. Receipts that were taken are still here until their turn comes or they are the most of it.
    order: VecDeque<Id>,
}

/// A receipt's entry, and its own name.
type Id = ([u64; 2], Box<str>);

struct Kept {
    receipt: Box<[u8]>,
    until: Timestamp,
}

fn id_of(fingerprint: Fingerprint, id: &str) -> Id {
    ([fingerprint.low, fingerprint.high], id.into())
}

impl Receipts {
    pub(super) fn keep(
        &self,
        fingerprint: Fingerprint,
        id: &str,
        receipt: &[u8],
        keep_for: Duration,
        now: Timestamp,
    ) {
        let id = id_of(fingerprint, id);
        let mut open = self.0.lock();
        open.drop_old(now);
        open.order.push_back(id.clone());
        open.by_id.insert(
            id,
            Kept {
                receipt: receipt.into(),
                until: now.saturating_add(keep_for),
            },
        );
    }

    pub(super) fn take(
        &self,
        fingerprint: Fingerprint,
        id: &str,
        now: Timestamp,
    ) -> Option<Vec<u8>> {
        let kept = self.0.lock().by_id.remove(&id_of(fingerprint, id))?;
        (now < kept.until).then(|| kept.receipt.into_vec())
    }
}

impl Open {
    /// Drops from the oldest on what was taken or has expired, and one more if there are too many.
    fn drop_old(&mut self, now: Timestamp) {
        if self.order.len() > 2 * self.by_id.len() + SLACK {
            self.order.retain(|id| self.by_id.contains_key(id));
        }
        while let Some(oldest) = self.order.front() {
            let is_over = self.by_id.get(oldest).is_none_or(|kept| kept.until <= now);
            if !is_over && self.by_id.len() < MOST {
                return;
            }
            if let Some(oldest) = self.order.pop_front() {
                self.by_id.remove(&oldest);
            }
        }
    }
}
