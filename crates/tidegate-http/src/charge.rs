//! What is charged after the fact.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Cost, CostError, MemoryStore, Receipt, Store};

/// What a request costs in the end, told by its handler: for what is known only afterwards, such as the tokens of an
/// answer. What was taken first beyond that is given back; where nothing is told it is kept.
///
/// The handler finds it among the request's extensions, where [`Limits::settle`](crate::Limits::settle) is on. Clones
/// share; it may be told while the answer is already on its way, until its body has ended.
#[derive(Clone, Debug)]
pub struct Charge(Arc<AtomicU64>);

/// Nothing has been told.
const UNTOLD: u64 = u64::MAX;

impl Default for Charge {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(UNTOLD)))
    }
}

impl Charge {
    /// The request costs so much in all.
    ///
    /// # Errors
    /// If the cost is not one. Then what was told before stands.
    pub fn set<C: TryInto<Cost, Error: Into<CostError>>>(&self, cost: C) -> Result<(), CostError> {
        let cost: Cost = cost.try_into().map_err(Into::into)?;
        self.0.store(cost.thousandths(), Ordering::Relaxed);
        Ok(())
    }

    /// The request costs so much more than was told so far.
    ///
    /// # Errors
    /// If the cost is not one. Then what was told before stands.
    pub fn add<C: TryInto<Cost, Error: Into<CostError>>>(&self, cost: C) -> Result<(), CostError> {
        let cost: Cost = cost.try_into().map_err(Into::into)?;
        let sum = |told: u64| {
            let told = if told == UNTOLD { 0 } else { told };
            Some(
                told.saturating_add(cost.thousandths())
                    .min(Cost::MAX.thousandths()),
            )
        };
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
        Ok(())
    }

    fn told(&self) -> Option<Cost> {
        let thousandths = self.0.load(Ordering::Relaxed);
        Cost::from_thousandths(thousandths)
            .ok()
            .filter(|_| thousandths != UNTOLD)
    }
}

/// How a cost is settled once the answer is there.
#[derive(Clone, Debug, Default)]
pub enum Settling {
    /// It is not: what was taken was right.
    #[default]
    Not,
    /// By what the handler has told.
    Told(Charge),
    /// By the bytes of the answer's body: so many cost one unit.
    Bytes(u64),
}

/// What a request has taken and may have to give back. Dropped before there is an answer, because the client has gone or
/// the handler panicked, it gives back all but what is known to have been spent.
pub struct Open<S: Store = MemoryStore> {
    receipt: Option<Receipt<S>>,
    settling: Settling,
    bytes: u64,
    is_answered: bool,
    /// Whether it is kept where there is no answer.
    is_kept: bool,
    /// Set while the request waits in a queue for its turn.
    is_waiting: bool,
}

impl<S: Store> Open<S> {
    /// What was taken by a request that waits for its answer.
    pub fn new(receipt: Receipt<S>, settling: Settling) -> Self {
        Self {
            receipt: Some(receipt),
            settling,
            bytes: 0,
            is_answered: false,
            is_kept: false,
            is_waiting: false,
        }
    }

    /// Gives all back.
    pub fn give_back(&mut self) {
        if let Some(receipt) = self.receipt.take() {
            receipt.give_back();
        }
    }

    /// It cost so much.
    pub fn settle(&mut self, cost: Cost) {
        if let Some(receipt) = self.receipt.take() {
            receipt.settle(cost);
        }
    }

    /// It is kept as it was taken.
    pub fn keep(&mut self) {
        self.receipt = None;
    }

    /// The request waits in a queue for its turn, or it is its turn. A request that goes away while it waits leaves its place
    /// empty: given back, the place would move the next request to the time of one that waits behind it.
    pub(crate) fn set_waiting(&mut self, is_waiting: bool) {
        self.is_waiting = is_waiting;
    }

    /// From now on it is kept where there is no answer, but for what is known to have been spent.
    pub(crate) fn count_if_aborted(&mut self) {
        self.is_kept = true;
    }

    /// There is an answer. What is settled by its body stays open.
    pub fn answered(&mut self) {
        self.is_answered = true;
        if matches!(self.settling, Settling::Not) {
            self.keep();
        }
    }

    pub(crate) fn settling(&self) -> &Settling {
        &self.settling
    }

    /// Whether there is still something to settle.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.receipt.is_some()
    }

    /// Some of the body has been sent.
    pub fn sent(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }

    /// What is known to have been spent; `None` where nobody has said.
    fn spent(&self) -> Option<Cost> {
        match &self.settling {
            Settling::Not => None,
            Settling::Told(charge) => charge.told(),
            Settling::Bytes(per_unit) => {
                let thousandths =
                    (u128::from(self.bytes) * 1_000).div_ceil(u128::from((*per_unit).max(1)));
                let thousandths = u64::try_from(thousandths)
                    .unwrap_or(u64::MAX)
                    .min(Cost::MAX.thousandths());
                Cost::from_thousandths(thousandths).ok()
            }
        }
    }
}

impl<S: Store> std::fmt::Debug for Open<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open")
            .field("settling", &self.settling)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl<S: Store> Drop for Open<S> {
    fn drop(&mut self) {
        let Some(receipt) = self.receipt.take().filter(|_| !self.is_waiting) else {
            return;
        };
        match self.spent() {
            Some(spent) => receipt.settle(spent),
            // Of an answer that somebody got, nothing is given back that nobody has spoken of.
            None if self.is_answered || self.is_kept => {}
            None => receipt.give_back(),
        }
    }
}
