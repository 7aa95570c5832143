//! What is asked about a request, made ready.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate_core::{CheckError, Cost, Receipt, Store, Subject, Verdict};

use crate::framework::Framework;
use crate::key::KeyBytes;
use crate::limits::Limits;

/// What a gate answers, and a receipt where one was wanted.
pub type Answer<S> = Result<(Verdict, Option<Receipt<S>>), CheckError>;

/// What has become of asking about a request.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // On its way from one function to the next.
pub enum About<'a, S: Store> {
    /// It goes on unasked.
    Nothing,
    /// The gate, in this process, has answered.
    Answered(Answer<S>),
    /// The gate is to be asked, which takes time.
    ToAsk(Prepared<'a>),
}

/// What is asked about a request.
#[derive(Debug)]
pub struct Prepared<'a> {
    /// One for each limit, in their order.
    pub(crate) keys: SmallVec<[KeyBytes; 1]>,
    pub(crate) tier: Option<Cow<'a, str>>,
    pub(crate) tenant: Option<Cow<'a, str>>,
    pub(crate) cost: Cost,
}

impl Prepared<'_> {
    /// The same, without a hold on the request.
    #[must_use]
    pub fn into_owned(self) -> Prepared<'static> {
        let owned = |text: Option<Cow<'_, str>>| text.map(|text| Cow::Owned(text.into_owned()));
        Prepared {
            keys: self.keys,
            tier: owned(self.tier),
            tenant: owned(self.tenant),
            cost: self.cost,
        }
    }

    fn subjects<'a, F: Framework, S: Store>(
        &'a self,
        limits: &'a Limits<F, S>,
    ) -> SmallVec<[Subject<'a>; 1]> {
        let subject = |(policy, key): (&'a str, &'a KeyBytes)| Subject {
            policy,
            key,
            tier: self.tier.as_deref(),
            tenant: self.tenant.as_deref(),
            cost: self.cost,
        };
        limits.policies().zip(&self.keys).map(subject).collect()
    }

    /// The answer at once, where the store is in this process.
    #[must_use]
    pub fn ask_at_once<F: Framework, S: Store>(&self, limits: &Limits<F, S>) -> Option<Answer<S>> {
        limits.ask_at_once(&self.subjects(limits))
    }

    /// The answer.
    ///
    /// # Errors
    /// If a policy is not in the gate's book.
    pub async fn ask<F: Framework, S: Store>(&self, limits: &Limits<F, S>) -> Answer<S> {
        let subjects = self.subjects(limits);
        if limits.wants_receipt() {
            return limits
                .gate()
                .admit(&subjects)
                .await
                .map(|(verdict, receipt)| (verdict, Some(receipt)));
        }
        limits
            .gate()
            .decide(&subjects)
            .await
            .map(|verdict| (verdict, None))
    }
}
