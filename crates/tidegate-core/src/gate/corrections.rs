//! Peeks and corrections by key: stored receipts, charges, refunds and resets.

use smallvec::SmallVec;

use super::Gate;
use super::decide::count;
use super::lookup::Lookup;
use super::verdict::Verdict;
use crate::denied::Usage;
use crate::key::Key;
use crate::limiter::CheckError;
use crate::store::Store;
use crate::subject::{Subject, encoded};

impl<S: Store> Gate<S> {
    /// Decides a request under one policy and stores a receipt for it.
    ///
    /// [`settle`](Self::settle) corrects the request once, in any process that shares the store.
    /// `id` must be new and hard to guess. Returns `true` if a receipt was stored: not if the
    /// request was denied, or decided by the failure policy.
    ///
    /// # Errors
    ///
    /// Returns an error if the policy does not exist or the key is empty. Nothing is taken then.
    pub async fn decide_with_receipt(
        &self,
        subject: &Subject<'_>,
        id: &str,
    ) -> Result<(Verdict, bool), CheckError> {
        let policies = self.shared.policies.load();
        let lookup = Lookup::new(&policies, subject)?;
        let Some(limiter) = lookup.rule.limiter() else {
            return Ok((self.decide(std::slice::from_ref(subject)).await?, false));
        };
        let key = Key::new(&lookup.key)?;
        let (admission, is_stored) = limiter
            .admit_with_stored_receipt(key, lookup.cost, id)
            .await?;
        let candidate = match lookup.candidate_limiter() {
            None => None,
            Some(candidate) if is_stored => {
                let admitted = candidate.admit_with_stored_receipt(key, lookup.cost, id);
                Some(admitted.await?.0.decision)
            }
            // Without a receipt the candidate cannot be settled.
            Some(candidate) => Some(candidate.check(&lookup.key[..]).cost(lookup.cost).await?),
        };
        let verdict = Verdict {
            decisions: SmallVec::from_buf([lookup.policy_decision(
                Some(admission.decision),
                admission.limits,
                candidate,
            )]),
        };
        count(std::slice::from_ref(&lookup), &verdict);
        Ok((verdict, is_stored))
    }

    /// Corrects a request to its actual cost, by the id of its receipt, once.
    ///
    /// Returns the decision of a request of cost 0 made right after, or `None` if the receipt is
    /// unknown, has expired or was settled before.
    ///
    /// # Errors
    ///
    /// Returns an error if the policy does not exist, the key is empty, or the store could not
    /// answer. In the last case the receipt may be lost, and the cost stays taken.
    pub async fn settle(
        &self,
        subject: &Subject<'_>,
        id: &str,
    ) -> Result<Option<Usage>, CheckError> {
        let policies = self.shared.policies.load();
        let lookup = Lookup::new(&policies, subject)?;
        let key = Key::new(&lookup.key)?;
        let Some(limiter) = lookup.rule.limiter() else {
            return Ok(None);
        };
        let Some(settled) = limiter.settle_stored_receipt(key, id, lookup.cost).await? else {
            return Ok(None);
        };
        let (charged, taken) = settled;
        let counters = lookup.policy.counters();
        counters.count_settlement(&charged, lookup.cost > taken);
        if let Some(candidate) = lookup.candidate_limiter() {
            // The candidate is only counted, so its failure is not an error.
            let _ = candidate.settle_stored_receipt(key, id, lookup.cost).await;
        }
        Ok(Some(Usage(charged.decision)))
    }

    pub(super) async fn peek_subject(&self, subject: &Subject<'_>) -> Result<Verdict, CheckError> {
        let policies = self.shared.policies.load();
        let lookup = Lookup::new(&policies, subject)?;
        let (mut decision, mut limits) = (None, Vec::new());
        if let Some(limiter) = lookup.rule.limiter() {
            let peeked = limiter
                .peek_encoded(Key::new(&lookup.key)?, lookup.cost)
                .await?;
            (decision, limits) = (Some(peeked.decision), peeked.limits);
        }
        Ok(Verdict {
            decisions: SmallVec::from_buf([lookup.policy_decision(decision, limits, None)]),
        })
    }

    pub(super) async fn charge_subject(
        &self,
        subject: &Subject<'_>,
    ) -> Result<Option<Usage>, CheckError> {
        let policies = self.shared.policies.load();
        let lookup = Lookup::new(&policies, subject)?;
        let key = Key::new(&lookup.key)?;
        if let Some(candidate) = lookup.candidate_limiter() {
            // The candidate is only counted, so its failure is not an error.
            let _ = candidate.charge_encoded(key, lookup.cost).await;
        }
        let Some(limiter) = lookup.rule.limiter() else {
            return Ok(None);
        };
        let charged = limiter.charge_encoded(key, lookup.cost).await?;
        lookup.policy.counters().count_charge(&charged);
        Ok(Some(Usage(charged.decision)))
    }

    pub(super) async fn refund_subject(
        &self,
        subject: &Subject<'_>,
    ) -> Result<Option<Usage>, CheckError> {
        let policies = self.shared.policies.load();
        let lookup = Lookup::new(&policies, subject)?;
        if let Some(candidate) = lookup.candidate_limiter() {
            candidate.refund(&lookup.key[..], lookup.cost).await?;
        }
        match lookup.rule.limiter() {
            Some(limiter) => {
                let usage = limiter.refund(&lookup.key[..], lookup.cost).await?;
                lookup.policy.counters().count_refund();
                Ok(Some(usage))
            }
            None => Ok(None),
        }
    }

    pub(super) async fn reset_subject(&self, subject: &Subject<'_>) -> Result<bool, CheckError> {
        let policies = self.shared.policies.load();
        let key = encoded(subject.tenant, &subject.key)?;
        let mut was_used = false;
        for limiter in policies.policy(subject.policy)?.limiters(&key) {
            was_used |= limiter.reset(&key[..]).await?;
        }
        Ok(was_used)
    }
}
