//! Receipts that a server issued and that have not been settled.
//!
//! They are not part of snapshots. After a restart a receipt is unknown, and the cost of its
//! request stays taken.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;

use super::fingerprint::Fingerprint;
use crate::clock::Timestamp;

/// The maximum number of receipts, about 40 MB. Beyond it the oldest is dropped, and the cost of
/// its request stays taken.
const MAX_RECEIPTS: usize = 65_536;
/// The number of settled receipts that may remain in `order`, beyond the number of open ones.
const SLACK: usize = 1_024;

#[derive(Default)]
pub(super) struct Receipts(Mutex<OpenReceipts>);

#[derive(Default)]
struct OpenReceipts {
    by_id: HashMap<Id, StoredReceipt>,
    /// Oldest first. Settled receipts remain until they are the oldest, or the majority.
    order: VecDeque<Id>,
}

/// The fingerprint of the key, and the receipt's id.
type Id = ([u64; 2], Box<str>);

struct StoredReceipt {
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
            StoredReceipt {
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
        let stored = self.0.lock().by_id.remove(&id_of(fingerprint, id))?;
        (now < stored.until).then(|| stored.receipt.into_vec())
    }
}

impl OpenReceipts {
    /// Drops settled and expired receipts from the oldest on, and one more if there are too many.
    fn drop_old(&mut self, now: Timestamp) {
        if self.order.len() > 2 * self.by_id.len() + SLACK {
            self.order.retain(|id| self.by_id.contains_key(id));
        }
        while let Some(oldest) = self.order.front() {
            let is_over = self
                .by_id
                .get(oldest)
                .is_none_or(|stored| stored.until <= now);
            if !is_over && self.by_id.len() < MAX_RECEIPTS {
                return;
            }
            if let Some(oldest) = self.order.pop_front() {
                self.by_id.remove(&oldest);
            }
        }
    }
}
