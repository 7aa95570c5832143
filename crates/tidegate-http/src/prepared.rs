//! What is asked about a request, made ready.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate_core::{CheckError, Cost, Gate, Name, Receipt, Store, Subject, Verdict};

use crate::key::KeyBytes;

/// What a gate answers, and a receipt where one was wanted.
pub type Answer<S> = Result<(Verdict, Option<Receipt<S>>), CheckError>;

/// What is asked about a request.
#[derive(Debug)]
pub struct Prepared<'a> {
    pub(crate) subjects: SmallVec<[(Name, KeyBytes); 2]>,
    pub(crate) tier: Option<Cow<'a, str>>,
    pub(crate) tenant: Option<Cow<'a, str>>,
    pub(crate) cost: Cost,
}

impl Prepared<'_> {
    /// The same, without a hold on the request.
    #[must_use]
    pub fn into_owned(self) -> Prepared<'static> {
        let owned = |text: Option<Cow<'_, str>>| text.map(|text| Cow::Owned(text.into_owned()));
        Prepared { subjects: self.subjects, tier: owned(self.tier), tenant: owned(self.tenant), cost: self.cost }
    }

    fn subjects(&self) -> SmallVec<[Subject<'_>; 2]> {
        self.subjects
            .iter()
            .map(|(policy, key)| Subject {
                policy: policy.as_str(),
                key,
                tier: self.tier.as_deref(),
                tenant: self.tenant.as_deref(),
                cost: self.cost,
            })
            .collect()
    }

    /// The answer at once, where the store is in this process; with a receipt if one is wanted.
    #[must_use]
    pub fn ask_at_once<S: Store>(&self, gate: &Gate<S>, with_receipt: bool) -> Option<Answer<S>> {
        if with_receipt {
            let answer = gate.admit_at_once(&self.subjects())?;
            return Some(answer.map(|(verdict, receipt)| (verdict, Some(receipt))));
        }
        Some(gate.decide_at_once(&self.subjects())?.map(|verdict| (verdict, None)))
    }

    /// The answer; with a receipt if one is wanted.
    ///
    /// # Errors
    /// If a policy is not in the gate's book.
    pub async fn ask<S: Store>(&self, gate: &Gate<S>, with_receipt: bool) -> Answer<S> {
        if with_receipt {
            return gate.admit(&self.subjects()).await.map(|(verdict, receipt)| (verdict, Some(receipt)));
        }
        gate.decide(&self.subjects()).await.map(|verdict| (verdict, None))
    }
}
