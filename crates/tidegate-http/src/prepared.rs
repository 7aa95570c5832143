//! What is asked about a request, made ready.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate_core::{CheckError, Cost, Gate, Name, Receipt, Store, Subject, Verdict};

use crate::key::KeyBytes;

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

    /// The answer at once, where the store is in this process.
    #[must_use]
    pub fn ask_at_once<S: Store>(&self, gate: &Gate<S>) -> Option<Result<(Verdict, Receipt<S>), CheckError>> {
        gate.admit_at_once(&self.subjects())
    }

    /// The answer.
    ///
    /// # Errors
    /// If a policy is not in the gate's book.
    pub async fn ask<S: Store>(&self, gate: &Gate<S>) -> Result<(Verdict, Receipt<S>), CheckError> {
        gate.admit(&self.subjects()).await
    }
}
