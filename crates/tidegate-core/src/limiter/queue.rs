//! Queues of requests that wait for a key, first come first served.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::clock::Timestamp;
use crate::cost::Cost;

/// The waiting requests of a limiter, by key. A key without a waiting request takes no memory.
#[derive(Default)]
pub(super) struct KeyQueues(Mutex<HashMap<Box<[u8]>, KeyQueue>>);

#[derive(Default)]
struct KeyQueue {
    /// Oldest first. The first one may ask the store; the others have a waker once they were
    /// polled.
    waiters: VecDeque<Waiter>,
    next_number: u64,
    /// The time at which the next request of this cost is expected to be allowed, from the last
    /// admission.
    expected: Option<(Cost, Timestamp)>,
}

struct Waiter {
    number: u64,
    waker: Option<Waker>,
}

impl KeyQueue {
    /// Finds a place. Numbers ascend, so binary search does.
    fn index_of(&self, number: u64) -> Result<usize, usize> {
        self.waiters
            .binary_search_by_key(&number, |waiter| waiter.number)
    }
}

impl KeyQueues {
    /// Joins the queue of a key.
    pub(super) fn join(&self, key: &[u8]) -> QueuePlace<'_> {
        let mut queues = self.0.lock();
        let queue = queues.entry(key.into()).or_default();
        let number = queue.next_number;
        queue.next_number += 1;
        queue.waiters.push_back(Waiter {
            number,
            waker: None,
        });
        QueuePlace {
            queues: self,
            key: key.into(),
            number,
        }
    }

    /// Returns the number of keys with waiting requests.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

/// A place in the queue of a key. Dropping it leaves the queue.
pub(super) struct QueuePlace<'a> {
    queues: &'a KeyQueues,
    key: Box<[u8]>,
    number: u64,
}

impl QueuePlace<'_> {
    /// Waits until this place is the first.
    pub(super) fn turn(&self) -> Turn<'_> {
        Turn(self)
    }

    /// Returns the time at which a request of this cost is expected to be allowed, if it is known.
    pub(super) fn expected(&self, cost: Cost) -> Option<Timestamp> {
        let queues = self.queues.0.lock();
        let (expected_cost, at) = queues.get(&self.key)?.expected?;
        (expected_cost == cost).then_some(at)
    }

    /// Tells the next request when one of this cost is expected to be allowed.
    pub(super) fn expect(&self, cost: Cost, at: Option<Timestamp>) {
        if let Some(queue) = self.queues.0.lock().get_mut(&self.key) {
            queue.expected = at.map(|at| (cost, at));
        }
    }
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        let mut queues = self.queues.0.lock();
        let Some(queue) = queues.get_mut(&self.key) else {
            return;
        };
        if let Ok(index) = queue.index_of(self.number) {
            queue.waiters.remove(index);
        }
        let next = queue.waiters.front_mut();
        let waker = next.and_then(|waiter| waiter.waker.take());
        if queue.waiters.is_empty() {
            queues.remove(&self.key);
        }
        drop(queues);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Waits for the turn of a place.
pub(super) struct Turn<'a>(&'a QueuePlace<'a>);

impl Future for Turn<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let place = self.0;
        let mut queues = place.queues.0.lock();
        let Some(queue) = queues.get_mut(&place.key) else {
            return Poll::Ready(());
        };
        match queue.index_of(place.number) {
            Ok(index) if index > 0 => {
                if let Some(waiter) = queue.waiters.get_mut(index) {
                    waiter.waker = Some(context.waker().clone());
                }
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_queue_is_removed() {
        let queues = KeyQueues::default();
        let first = queues.join(b"a");
        let second = queues.join(b"a");
        let other = queues.join(b"b");
        assert_eq!(queues.len(), 2);
        drop((second, first));
        assert_eq!(queues.len(), 1);
        drop(other);
        assert_eq!(queues.len(), 0);
    }
}
