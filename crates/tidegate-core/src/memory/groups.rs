//! Groups of entries: each named policy is a group, and all limits without a name are one group.
//!
//! Each group has a share of the table, so that new keys of one group do not evict the entries of
//! another.

use parking_lot::Mutex;

use super::fingerprint::Group;
use crate::sync::{AtomicU64, Ordering};

/// The number of groups, which fits in one byte.
pub(super) const GROUPS: usize = 256;

pub(super) struct Groups {
    /// The names of policies. The group of a name is its index plus 1; group 0 is for limits
    /// without a name.
    names: Mutex<Vec<Box<str>>>,
    keys: Box<[AtomicU64]>,
    /// The number of groups with at least one key.
    in_use: AtomicU64,
}

impl Groups {
    pub(super) fn new() -> Self {
        Self {
            names: Mutex::new(Vec::new()),
            keys: (0..GROUPS).map(|_| AtomicU64::new(0)).collect(),
            in_use: AtomicU64::new(0),
        }
    }

    /// Returns the group of a namespace. The tiers and candidates of a policy, whose names continue
    /// with a `~`, are in the policy's group.
    ///
    /// There is room for 255 names. Later ones share the groups of earlier ones.
    pub(super) fn of_namespace(&self, namespace: &str) -> Group {
        let name = namespace.split('~').next().unwrap_or_default();
        if name.is_empty() {
            return Group(0);
        }
        let mut names = self.names.lock();
        let place = match names.iter().position(|known| **known == *name) {
            Some(place) => place,
            None if names.len() < GROUPS - 1 => {
                names.push(name.into());
                names.len() - 1
            }
            None => {
                name.bytes().fold(0_usize, |sum, byte| {
                    sum * 31 % (GROUPS - 1) + usize::from(byte)
                }) % (GROUPS - 1)
            }
        };
        Group(place as u8 + 1)
    }

    /// Returns the names of policies, in the order of their groups from 1 on.
    pub(super) fn names(&self) -> Vec<Box<str>> {
        self.names.lock().clone()
    }

    /// Sets the names of policies from a snapshot.
    pub(super) fn set_names(&self, names: Vec<Box<str>>) {
        *self.names.lock() = names;
    }

    /// Counts one more key.
    pub(super) fn add(&self, group: Group) {
        if self.keys[usize::from(group.0)].fetch_add(1, Ordering::Relaxed) == 0 {
            self.in_use.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts one key less.
    pub(super) fn remove(&self, group: Group) {
        if self.keys[usize::from(group.0)].fetch_sub(1, Ordering::Relaxed) == 1 {
            self.in_use.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of keys of a group.
    pub(super) fn keys(&self, group: Group) -> u64 {
        self.keys[usize::from(group.0)].load(Ordering::Relaxed)
    }

    /// Returns each group's share of `all`, once `newcomer` has a key.
    pub(super) fn share(&self, all: u64, newcomer: Group) -> u64 {
        let in_use = self.in_use.load(Ordering::Relaxed) + u64::from(self.keys(newcomer) == 0);
        all / in_use.max(1)
    }
}
