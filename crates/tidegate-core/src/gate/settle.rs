//! Corrections by key: stored receipts, refunds and resets.

use smallvec::SmallVec;

use super::Gate;
use super::decide::count;
use super::lookup::Lookup;
use super::verdict::Verdict;
use crate::decision::Decision;
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
        subject: Subject<'_>,
        id: &str,
    ) -> Result<(Verdict, bool), CheckError> {
        let policies = self.shared.policies.load();
        let lookup = Lookup::new(&policies, &subject)?;
        let Some(limiter) = lookup.rule.limiter() else {
            return Ok((self.decide(&[subject]).await?, false));
        };
        let key = Key::new(&lookup.key)?;
        let (decision, is_stored) = limiter
            .admit_with_stored_receipt(key, lookup.cost, id)
            .await?;
        let candidate = match lookup.candidate_limiter() {
            None => None,
            Some(candidate) if is_stored => {
                let admitted = candidate.admit_with_stored_receipt(key, lookup.cost, id);
                Some(admitted.await?.0)
            }
            // Without a receipt the candidate cannot be settled.
            Some(candidate) => Some(candidate.check(&lookup.key[..]).cost(lookup.cost).await?),
        };
        let verdict = Verdict {
            decisions: SmallVec::from_buf([lookup.policy_decision(Some(decision), candidate)]),
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
        subject: Subject<'_>,
        id: &str,
    ) -> Result<Option<Decision>, CheckError> {
        let policies = self.shared.policies.load();
        let lookup = Lookup::new(&policies, &subject)?;
        let key = Key::new(&lookup.key)?;
        let Some(limiter) = lookup.rule.limiter() else {
            return Ok(None);
        };
        let Some(settled) = limiter.settle_stored_receipt(key, id, lookup.cost).await? else {
            return Ok(None);
        };
        lookup.policy.counters().count_refund();
        if let Some(candidate) = lookup.candidate_limiter() {
            // The candidate is only counted, so its failure is not an error.
            let _ = candidate.settle_stored_receipt(key, id, lookup.cost).await;
        }
        Ok(Some(settled))
    }

    /// Gives back to a key the cost of a request that did not happen or cost less: at most what is
    /// counted.
    ///
    /// # Errors
    ///
    /// Returns an error if the policy does not exist, the key is empty, or the store could not
    /// answer. Nothing is given back then.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules, Subject};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("5/minute".parse()?))?);
    /// gate.check("api", "user:42").await?;
    /// let decision = gate.refund(Subject::new("api", "user:42")).await?;
    /// assert_eq!(decision.map(|decision| decision.remaining()), Some(5));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn refund(&self, subject: Subject<'_>) -> Result<Option<Decision>, CheckError> {
        let policies = self.shared.policies.load();
        let lookup = Lookup::new(&policies, &subject)?;
        if let Some(candidate) = lookup.candidate_limiter() {
            candidate.refund(&lookup.key[..], lookup.cost).await?;
        }
        match lookup.rule.limiter() {
            Some(limiter) => {
                lookup.policy.counters().count_refund();
                Ok(Some(limiter.refund(&lookup.key[..], lookup.cost).await?))
            }
            None => Ok(None),
        }
    }

    /// Deletes the usage of a key under a policy, in every tier.
    ///
    /// # Errors
    ///
    /// Returns an error if the policy does not exist, the key is empty, or the store could not
    /// answer.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("1/minute".parse()?))?);
    /// gate.check("api", "user:42").await?;
    /// gate.reset("api", b"user:42", None).await?;
    /// assert!(gate.check("api", "user:42").await?.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reset(
        &self,
        policy: &str,
        key: &[u8],
        tenant: Option<&str>,
    ) -> Result<(), CheckError> {
        let policies = self.shared.policies.load();
        let key = encoded(tenant, Key::new(key)?);
        for limiter in policies.policy(policy)?.limiters(&key) {
            limiter.reset(&key[..]).await?;
        }
        Ok(())
    }
}
