//! Batches of checks of one limiter.

use std::future::IntoFuture;

use super::{CheckError, CheckFuture, Limiter};
use crate::cost::{Cost, CostError};
use crate::decision::Decision;
use crate::key::{AsKey, EmptyKey, Key, KeyBuf};
use crate::memory::MemoryStore;
use crate::store::Store;
use crate::subject::EncodedKey;

/// A batch of requests. Nothing happens until `.now()` (in memory), `.await` or `.blocking()`.
#[must_use = "nothing is checked until `.now()`, `.await` or `.blocking()`"]
#[derive(Debug)]
pub struct CheckMany<'a, K, C, S: Store> {
    pub(super) limiter: &'a Limiter<S>,
    pub(super) requests: &'a [(K, C)],
}

/// Checks the key and the cost of one request of a batch.
#[inline]
fn keyed<K, C>((key, cost): &(K, C)) -> Result<(KeyBuf<'_>, Cost), CheckError>
where
    K: AsKey,
    C: Copy + TryInto<Cost, Error: Into<CostError>>,
{
    let key = key.as_key();
    if key.as_bytes().is_empty() {
        return Err(EmptyKey.into());
    }
    Ok((key, (*cost).try_into().map_err(Into::into)?))
}

impl<K, C> CheckMany<'_, K, C, MemoryStore>
where
    K: AsKey,
    C: Copy + TryInto<Cost, Error: Into<CostError>>,
{
    /// Runs the checks in order.
    ///
    /// # Errors
    ///
    /// Returns an error if a key is empty or a cost is invalid. Nothing is taken then, from any
    /// key.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("fixed_window 5/day".parse()?);
    /// let decisions = limiter.check_many(&[("user:1", 1), ("user:2", 3)]).now()?;
    /// assert_eq!(decisions[1].remaining(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn now(self) -> Result<Vec<Decision>, CheckError> {
        let mut decisions = Vec::with_capacity(self.requests.len());
        self.now_into(&mut decisions)?;
        Ok(decisions)
    }

    /// Runs the checks in order and appends the decisions to a vector, which can be reused.
    ///
    /// # Errors
    ///
    /// Returns an error if a key is empty or a cost is invalid. Nothing is taken then, from any
    /// key, and nothing is appended.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("fixed_window 5/day".parse()?);
    /// let mut decisions = Vec::new();
    /// // The vector is reused for every batch.
    /// limiter.check_many(&[("user:1", 1), ("user:2", 3)]).now_into(&mut decisions)?;
    /// assert_eq!(decisions.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn now_into(self, decisions: &mut Vec<Decision>) -> Result<(), CheckError> {
        let shared = &*self.limiter.shared;
        let mut is_any_owned = false;
        for request in self.requests {
            let (key, _) = keyed(request)?;
            is_any_owned |= !shared.is_plain(&key) || !key.is_borrowed();
        }
        let first = decisions.len();
        decisions.reserve(self.requests.len());
        if is_any_owned {
            let keys: Vec<(KeyBuf<'_>, Cost)> = self
                .requests
                .iter()
                .filter_map(|request| keyed(request).ok())
                .collect();
            let encoded: Vec<(EncodedKey<'_>, Cost)> = keys
                .iter()
                .filter_map(|(key, cost)| Some((shared.key(key).ok()?, *cost)))
                .collect();
            let requests = encoded
                .iter()
                .filter_map(|(key, cost)| Some((Key::new(key).ok()?, *cost)));
            shared.store.check_many(&shared.plan, requests, decisions);
        } else {
            let requests = self.requests.iter().filter_map(|request| {
                let (key, cost) = keyed(request).ok()?;
                Some((Key::new(key.into_borrowed()?).ok()?, cost))
            });
            shared.store.check_many(&shared.plan, requests, decisions);
        }
        let costs = self
            .requests
            .iter()
            .filter_map(|one| Some(keyed(one).ok()?.1));
        shared.count_many(decisions.get(first..).unwrap_or_default(), costs);
        Ok(())
    }
}

impl<'a, K, C, S: Store> CheckMany<'a, K, C, S>
where
    K: AsKey + Sync,
    C: Copy + TryInto<Cost, Error: Into<CostError>> + Sync,
{
    async fn answer(self) -> Result<Vec<Decision>, CheckError> {
        let shared = &*self.limiter.shared;
        let keys = self
            .requests
            .iter()
            .map(keyed)
            .collect::<Result<Vec<_>, CheckError>>()?;
        let encoded = keys
            .iter()
            .map(|(key, cost)| Ok((shared.key(key)?, *cost)))
            .collect::<Result<Vec<_>, CheckError>>()?;
        let requests = encoded
            .iter()
            .map(|(key, cost)| Ok((Key::new(key)?, *cost)))
            .collect::<Result<Vec<(Key<'_>, Cost)>, CheckError>>()?;
        Ok(shared.check_many(&requests).await?)
    }

    /// Runs the checks, blocking the current thread. For programs without an async runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if a key is empty, if a cost is invalid, or if the current thread runs
    /// async tasks. Nothing is taken then, from any key.
    pub fn blocking(self) -> Result<Vec<Decision>, CheckError> {
        self.limiter.store().block_on(self.answer())?
    }
}

impl<'a, K, C, S: Store> IntoFuture for CheckMany<'a, K, C, S>
where
    K: AsKey + Sync,
    C: Copy + TryInto<Cost, Error: Into<CostError>> + Sync,
{
    type Output = Result<Vec<Decision>, CheckError>;
    type IntoFuture = CheckFuture<'a, Vec<Decision>>;

    fn into_future(self) -> Self::IntoFuture {
        CheckFuture::asked(self.answer())
    }
}
