//! Checks that return a receipt.

use std::future::IntoFuture;

use smallvec::SmallVec;

use super::multi_key::check_all;
use super::request::Check;
use super::{CheckError, CheckFuture, Limiter, LimiterRequest};
use crate::blocking;
use crate::cost::Cost;
use crate::decision::Decision;
use crate::gate::{Receipt, ReceiptEntry};
use crate::key::Key;
use crate::memory::MemoryStore;
use crate::store::{Admission, Store};
use crate::subject::KeyBytes;

/// One request that returns a receipt. Nothing happens until `.now()` (in memory), `.await` or
/// `.blocking()`.
#[must_use = "nothing is checked until `.now()`, `.await` or `.blocking()`"]
#[derive(Debug)]
pub struct CheckWithReceipt<'a, S: Store> {
    pub(super) check: Check<'a, S>,
}

impl<S: Store> CheckWithReceipt<'_, S> {
    async fn answer(self) -> Result<(Decision, Receipt<S>), CheckError> {
        let Check {
            limiter, key, cost, ..
        } = self.check;
        let key = limiter.shared.key(&key)?;
        let (admission, receipt) = limiter.admit_with_receipt(Key::new(&key)?, cost?).await?;
        Ok((admission.decision, receipt))
    }

    /// Runs the check, blocking the current thread. For programs without an async runtime.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is empty, if the cost is invalid, or if the current thread runs
    /// async tasks. Nothing is taken then.
    pub fn blocking(self) -> Result<(Decision, Receipt<S>), CheckError> {
        self.check.limiter.store().block_on(self.answer())?
    }
}

impl<S: Store> Limiter<S> {
    /// Decides a request on an encoded key. The receipt is empty if the request was denied.
    pub(super) async fn admit_with_receipt(
        &self,
        key: Key<'_>,
        cost: Cost,
    ) -> Result<(Admission, Receipt<S>), CheckError> {
        let asked = LimiterRequest {
            limiter: self,
            key,
            cost,
        };
        let answer = check_all(std::slice::from_ref(&asked), true)
            .await?
            .pop()
            .flatten();
        let Some(mut admission) = answer else {
            let look = self.shared.check(key, Cost::ZERO).await?;
            return Ok((Admission::look(look), Receipt::new(SmallVec::new())));
        };
        self.shared.count_in_memory(&admission.decision, cost);
        let claims = std::mem::take(&mut admission.claims);
        let mut taken = SmallVec::new();
        if !claims.is_empty() {
            taken.push(ReceiptEntry {
                limiter: self.clone(),
                key: KeyBytes::from_slice(key.as_bytes()),
                cost,
                claims,
                degraded: admission.decision.degraded(),
                policy: None,
                counters: None,
            });
        }
        Ok((admission, Receipt::new(taken)))
    }
}

impl CheckWithReceipt<'_, MemoryStore> {
    /// Runs the check.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is empty or the cost is invalid. Nothing is taken then.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::Limiter;
    ///
    /// let limiter = Limiter::memory("fixed_window 5/day".parse()?);
    /// let (decision, receipt) = limiter.check("user:42").cost(5).with_receipt().now()?;
    /// assert!(decision.is_allowed());
    /// assert_eq!(receipt.settle_now(2)?[0].remaining(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn now(self) -> Result<(Decision, Receipt<MemoryStore>), CheckError> {
        blocking::ready(self.answer())
    }
}

impl<'a, S: Store> IntoFuture for CheckWithReceipt<'a, S> {
    type Output = Result<(Decision, Receipt<S>), CheckError>;
    type IntoFuture = CheckFuture<'a, (Decision, Receipt<S>)>;

    fn into_future(self) -> Self::IntoFuture {
        CheckFuture::asked(self.answer())
    }
}
