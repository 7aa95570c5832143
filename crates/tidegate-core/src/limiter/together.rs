//! One request that several keys must all meet, each under its own limiter.

use smallvec::SmallVec;

use super::{Guard, Limiter};
use crate::algorithm::Claims;
use crate::cost::Cost;
use crate::decision::{Decision, Degraded};
use crate::key::Key;
use crate::store::{Admission, Store, StoreError};

/// One key, the limiter that holds for it, and what the request costs there.
pub(crate) struct Asked<'a, S: Store> {
    pub(crate) limiter: &'a Limiter<S>,
    pub(crate) key: Key<'a>,
    pub(crate) cost: Cost,
}

/// One answer a key; `None` for those that were not asked, because another was known to deny.
pub(crate) type Answers = SmallVec<[Option<Admission>; 1]>;

/// Decides on one request: if all limiters, which are of one store, allow it, all are taken from, else none. Claims are
/// returned if they are wanted or if there are several limiters.
pub(crate) async fn check_together<S: Store>(
    asked: &[Asked<'_, S>],
    wants_claims: bool,
) -> Result<Answers, StoreError> {
    let Some(first) = asked.first() else {
        return Ok(Answers::new());
    };
    // A denial of one hides how long others deny: only where all are known is there nothing to ask.
    let known: Option<SmallVec<[Decision; 1]>> = asked
        .iter()
        .map(|one| {
            if one.is_repeated_in(asked) {
                None
            } else {
                one.known()
            }
        })
        .collect();
    if let Some(known) = known {
        return Ok(known
            .into_iter()
            .map(|decision| Some((decision, Claims::new())))
            .collect());
    }
    if let ([one], false) = (asked, wants_claims) {
        let decision = one.limiter.shared.check(one.key, one.cost).await?;
        return Ok(SmallVec::from_buf([Some((decision, Claims::new()))]));
    }
    let requests: SmallVec<[_; 2]> = asked
        .iter()
        .map(|one| (&one.limiter.shared.plan, one.key, one.cost))
        .collect();
    let asked_at = first.limiter.shared.guard.as_ref().map(Guard::now);
    let store = first.limiter.store();
    let admitted = match requests[..] {
        [(plan, key, cost)] => store
            .admit_one(plan, key, cost)
            .await
            .map(|admission| vec![Some(admission)]),
        _ => store.admit(&requests).await,
    };
    match admitted {
        Err(error) => stand_in(asked, error),
        Ok(admissions) => {
            let is_denied = admissions
                .iter()
                .flatten()
                .any(|(decision, _)| decision.is_denied());
            let take = |(one, admission): (&Asked<'_, S>, Option<Admission>)| {
                let (decision, claims) = admission?;
                let decision = match (&one.limiter.shared.guard, asked_at) {
                    // A key that would have allowed what another denied was not taken from and is not counted.
                    (Some(guard), Some(at)) if decision.is_denied() || !is_denied => {
                        // A repeated one was denied for the summed cost, which says nothing of its own.
                        let cost = if one.is_repeated_in(asked) {
                            None
                        } else {
                            Some(one.cost)
                        };
                        guard.take(one.key, cost, at, decision)
                    }
                    _ => decision,
                };
                Some((decision, claims))
            };
            Ok(asked.iter().zip(admissions).map(take).collect())
        }
    }
}

/// Each limiter's own failure policy answers; what was taken locally is given back where one denies.
fn stand_in<S: Store>(asked: &[Asked<'_, S>], error: StoreError) -> Result<Answers, StoreError> {
    let mut answers = Answers::new();
    for one in asked {
        let Some(guard) = &one.limiter.shared.guard else {
            return Err(error);
        };
        answers.push(Some(guard.stand_in_admit(one.key, one.cost, &error)));
    }
    if answers
        .iter()
        .flatten()
        .any(|(decision, _)| decision.is_denied())
    {
        for (one, answer) in asked.iter().zip(&mut answers) {
            one.give_back_locally(answer, error.reason());
        }
    }
    Ok(answers)
}

impl<S: Store> Asked<'_, S> {
    /// The answer, if the store need not be asked.
    fn known(&self) -> Option<Decision> {
        self.limiter
            .shared
            .guard
            .as_ref()?
            .known(self.key, self.cost)
    }

    /// Returns true if the same policy and key are named again: they count as one request of the summed cost.
    fn is_repeated_in(&self, asked: &[Self]) -> bool {
        let is_same = |other: &&Self| {
            other.key == self.key && other.limiter.shared.namespace == self.limiter.shared.namespace
        };
        asked.iter().filter(is_same).nth(1).is_some()
    }

    fn give_back_locally(&self, answer: &mut Option<Admission>, reason: Degraded) {
        if let (Some((decision, claims)), Some(guard)) = (answer, &self.limiter.shared.guard)
            && decision.is_allowed()
        {
            *decision = guard.stand_in_refund(self.key, self.cost, reason);
            claims.clear();
        }
    }
}
