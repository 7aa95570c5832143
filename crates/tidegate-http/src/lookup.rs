//! The check of one request: its keys, tier, tenant and cost.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate_core::{CheckError, Cost, MaybeReady, Receipt, Store, Subject, Verdict};

use crate::framework::Framework;
use crate::key::KeyBytes;
use crate::limit_rule::LimitRule;
use crate::limits::Limits;

/// The verdict of a gate, and a receipt if the limits need one. The receipt is boxed: results are
/// moved, and most have none.
pub type CheckResult<S> = Result<(Verdict, Option<Box<Receipt<S>>>), CheckError>;

/// The check of a request: skipped, decided in memory, or to be sent to the store.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Passed from one function to the next.
pub enum Lookup<'a, S: Store> {
    /// The request is not limited.
    Skipped,
    /// The gate has decided, in this process.
    Decided(CheckResult<S>),
    /// The store is remote: [`PreparedCheck::check`] asks it.
    Undecided(PreparedCheck<'a>),
}

/// A check that has not been made yet.
#[derive(Debug)]
pub struct PreparedCheck<'a> {
    /// One key for each limit, in the same order.
    pub(crate) keys: SmallVec<[PreparedKey; 2]>,
    pub(crate) tier: Option<Cow<'a, str>>,
    pub(crate) tenant: Option<Cow<'a, str>>,
}

/// The key of one limit, the policy that applies, and the cost of the request there.
#[derive(Debug)]
pub(crate) struct PreparedKey {
    pub(crate) bytes: KeyBytes,
    pub(crate) choice: usize,
    pub(crate) cost: Cost,
}

impl PreparedCheck<'_> {
    /// Returns a check that does not borrow from the request.
    #[must_use]
    pub fn into_owned(self) -> PreparedCheck<'static> {
        let owned = |text: Option<Cow<'_, str>>| text.map(|text| Cow::Owned(text.into_owned()));
        PreparedCheck {
            keys: self.keys,
            tier: owned(self.tier),
            tenant: owned(self.tenant),
        }
    }

    fn subjects<'a, F: Framework, S: Store>(
        &'a self,
        limits: &'a Limits<F, S>,
    ) -> SmallVec<[Subject<'a>; 2]> {
        let subject = |(rule, key): (&'a LimitRule<F>, &'a PreparedKey)| {
            let choice = rule.choices.get(key.choice)?;
            Some(Subject {
                policy: choice.policy.as_str(),
                key: key.bytes[..].into(),
                tier: self.tier.as_deref(),
                tenant: self.tenant.as_deref(),
                cost: key.cost,
            })
        };
        limits.rules().zip(&self.keys).filter_map(subject).collect()
    }

    /// Makes the check, if the store is in this process.
    pub(crate) fn check_now<F: Framework, S: Store>(
        &self,
        limits: &Limits<F, S>,
    ) -> Option<CheckResult<S>> {
        limits.decide_now(&self.subjects(limits))
    }

    /// Makes the check. In memory it is made before this returns.
    ///
    /// # Errors
    ///
    /// Returns an error if the gate does not have a policy.
    pub fn check<'a, F: Framework, S: Store>(
        &'a self,
        limits: &'a Limits<F, S>,
    ) -> MaybeReady<CheckResult<S>, impl Future<Output = CheckResult<S>> + 'a> {
        let is_remote = limits.gate().store().is_remote();
        MaybeReady::new(is_remote, async move {
            limits.decide(&self.subjects(limits)).await
        })
    }
}

impl<F: Framework, S: Store> Limits<F, S> {
    /// Asks the gate without a future, if the store is in this process.
    pub(crate) fn decide_now(&self, subjects: &[Subject<'_>]) -> Option<CheckResult<S>> {
        if self.wants_receipt() {
            return MaybeReady::new(self.gate().store().is_remote(), self.decide(subjects))
                .into_ready();
        }
        let verdict = self
            .gate()
            .decide_now(subjects, self.reports_every_limit())?;
        Some(verdict.map(|verdict| (verdict, None)))
    }

    /// Asks the gate, for a receipt if the limits may have to give something back.
    pub(crate) async fn decide(&self, subjects: &[Subject<'_>]) -> CheckResult<S> {
        if self.wants_receipt() {
            let (verdict, receipt) = self.gate().admit(subjects).await?;
            Ok((verdict, Some(Box::new(receipt))))
        } else if self.reports_every_limit() {
            Ok((self.gate().decide_with_limits(subjects).await?, None))
        } else {
            Ok((self.gate().decide(subjects).await?, None))
        }
    }
}
