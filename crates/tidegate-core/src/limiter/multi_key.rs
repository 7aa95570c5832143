//! One request that several keys must allow, each under its own limiter.

use smallvec::SmallVec;

use super::batch::LimiterRequest;
use super::{Limiter, RemoteGuard};
use crate::clock::Timestamp;
use crate::decision::{Decision, Degraded};
use crate::maybe_ready::MaybeReady;
use crate::store::{Admission, Store, StoreError};

/// One admission per key; `None` for a key that was not asked because another one denied for
/// certain.
pub(crate) type Admissions = SmallVec<[Option<Admission>; 1]>;

/// One decision per key; `None` for a key that was not asked because another one denied for
/// certain.
type Decisions = Result<SmallVec<[Option<Decision>; 4]>, StoreError>;

impl<S: Store> Limiter<S> {
    /// Decides one request that several limiters must allow: either all are taken from, or none.
    /// All limiters must be on one store.
    ///
    /// If the request is denied, a limiter that would have allowed it has the decision of a request
    /// of cost 0.
    ///
    /// # Errors
    ///
    /// Returns an error if the store could not answer and there is no failure policy. A limiter
    /// created on a remote store always has one.
    #[doc(hidden)] // For Tidegate's own servers.
    pub fn check_together<'a>(
        requests: &'a [LimiterRequest<'a, S>],
    ) -> MaybeReady<Decisions, impl Future<Output = Decisions> + Send + 'a> {
        let first = requests.first();
        let is_remote = first.is_some_and(|first| first.limiter.store().is_remote());
        MaybeReady::new(is_remote, async move {
            let admissions = check_all(requests, false).await?;
            let decision = |admission: Option<Admission>| Some(admission?.decision);
            Ok(admissions.into_iter().map(decision).collect())
        })
    }
}

/// Takes from all limiters of a memory store in the common case: every one allows the request, and
/// each key is stored. Returns `None` in any other case; nothing is taken then.
pub(crate) fn check_allowed<S: Store>(
    asked: &[LimiterRequest<'_, S>],
) -> Option<SmallVec<[Decision; 4]>> {
    let requests: SmallVec<[_; 4]> = asked
        .iter()
        .map(|one| (&one.limiter.shared.plan, one.key, one.cost))
        .collect();
    asked.first()?.limiter.store().check_allowed(&requests)
}

/// Decides one request: either all limiters are taken from, or none. All must be on one store.
/// Claims are returned if they are wanted, or if there are several limiters.
pub(crate) async fn check_all<S: Store>(
    asked: &[LimiterRequest<'_, S>],
    wants_claims: bool,
) -> Result<Admissions, StoreError> {
    let Some(first) = asked.first() else {
        return Ok(Admissions::new());
    };
    if let Some(cached) = all_cached(asked) {
        return Ok(cached);
    }
    if let ([one], false) = (asked, wants_claims) {
        let decision = one.limiter.shared.check(one.key, one.cost).await?;
        return Ok(SmallVec::from_buf([Some(Admission::look(decision))]));
    }
    let requests: SmallVec<[_; 2]> = asked
        .iter()
        .map(|one| (&one.limiter.shared.plan, one.key, one.cost))
        .collect();
    let asked_at = first.limiter.shared.guard.as_ref().map(RemoteGuard::now);
    let store = first.limiter.store();
    let admitted = match requests[..] {
        [(plan, key, cost)] => store
            .admit_one(plan, key, cost)
            .await
            .map(|admission| vec![Some(admission)]),
        _ => store.admit(&requests).await,
    };
    match admitted {
        Err(error) => fall_back(asked, error),
        Ok(admissions) => Ok(recorded(asked, admissions, asked_at)),
    }
}

/// Returns the denials of all limiters if the deny cache has every one. A single cached denial would
/// hide how long the other limiters deny.
fn all_cached<S: Store>(asked: &[LimiterRequest<'_, S>]) -> Option<Admissions> {
    let cached = |one: &LimiterRequest<'_, S>| {
        let decision = (!one.is_repeated_in(asked)).then(|| one.cached())??;
        Some(Some(Admission::look(decision)))
    };
    asked.iter().map(cached).collect()
}

/// Counts the decisions of a remote store and caches its denials.
fn recorded<S: Store>(
    asked: &[LimiterRequest<'_, S>],
    admissions: Vec<Option<Admission>>,
    asked_at: Option<Timestamp>,
) -> Admissions {
    let is_denied = admissions
        .iter()
        .flatten()
        .any(|admission| admission.decision.is_denied());
    let record = |(one, admission): (&LimiterRequest<'_, S>, Option<Admission>)| {
        let mut admission = admission?;
        let decision = admission.decision;
        admission.decision = match (&one.limiter.shared.guard, asked_at) {
            // A key that would have allowed the request was not taken from, and is not counted.
            (Some(guard), Some(at)) if decision.is_denied() || !is_denied => {
                // A repeated key was denied for the summed cost, which says nothing about its own.
                let cost = (!one.is_repeated_in(asked)).then_some(one.cost);
                guard.take(one.key, cost, at, decision)
            }
            _ => decision,
        };
        Some(admission)
    };
    asked.iter().zip(admissions).map(record).collect()
}

/// Applies each limiter's failure policy. If one denies, costs taken locally are given back.
fn fall_back<S: Store>(
    asked: &[LimiterRequest<'_, S>],
    error: StoreError,
) -> Result<Admissions, StoreError> {
    let mut answers = Admissions::new();
    for one in asked {
        let Some(guard) = &one.limiter.shared.guard else {
            return Err(error);
        };
        answers.push(Some(guard.fall_back_admit(one.key, one.cost, &error)));
    }
    if answers
        .iter()
        .flatten()
        .any(|admission| admission.decision.is_denied())
    {
        for (one, answer) in asked.iter().zip(&mut answers) {
            one.give_back_locally(answer, error.reason());
        }
    }
    Ok(answers)
}

impl<S: Store> LimiterRequest<'_, S> {
    /// Returns the decision if the deny cache has it.
    fn cached(&self) -> Option<Decision> {
        self.limiter
            .shared
            .guard
            .as_ref()?
            .cached(self.key, self.cost)
    }

    /// Returns `true` if the same policy and key occur again. They count as one request of the
    /// summed cost.
    fn is_repeated_in(&self, asked: &[Self]) -> bool {
        let is_same = |other: &&Self| {
            other.key == self.key && other.limiter.shared.namespace == self.limiter.shared.namespace
        };
        asked.iter().filter(is_same).nth(1).is_some()
    }

    fn give_back_locally(&self, answer: &mut Option<Admission>, reason: Degraded) {
        if let (Some(admission), Some(guard)) = (answer, &self.limiter.shared.guard)
            && admission.decision.is_allowed()
        {
            let decision = guard.fall_back_refund(self.key, self.cost, reason);
            *admission = Admission::look(decision);
        }
    }
}
