//! One request that several keys must all meet, each under its own limiter.

use smallvec::SmallVec;

use super::{Guard, Limiter};
use crate::cost::Cost;
use crate::decision::{Decision, Degraded};
use crate::key::Key;
use crate::store::{Store, StoreError};

/// One key, what it is held to, and what the request costs there.
pub(crate) struct Asked<'a, S: Store> {
    pub(crate) limiter: &'a Limiter<S>,
    pub(crate) key: Key<'a>,
    pub(crate) cost: Cost,
}

/// One answer a key; `None` for those that were not asked, because another was known to deny.
pub(crate) type Answers = SmallVec<[Option<Decision>; 1]>;

/// Decides on one request: if all limiters, which are of one store, allow it, all are taken from, else none.
pub(crate) async fn check_together<S: Store>(asked: &[Asked<'_, S>]) -> Result<Answers, StoreError> {
    let known: Answers = asked.iter().map(Asked::known).collect();
    if known.iter().any(Option::is_some) {
        return Ok(known);
    }
    let [first, .., _] = asked else {
        let mut answers = Answers::new();
        for one in asked {
            answers.push(Some(one.limiter.shared.check(one.key, one.cost).await?));
        }
        return Ok(answers);
    };
    let requests: SmallVec<[_; 2]> = asked.iter().map(|one| (&one.limiter.shared.plan, one.key, one.cost)).collect();
    let asked_at = first.limiter.shared.guard.as_ref().map(Guard::now);
    match first.limiter.store().check_together(&requests).await {
        Err(error) => stand_in(asked, error),
        Ok(decisions) => {
            let is_denied = decisions.iter().flatten().any(Decision::is_denied);
            let take = |(one, decision): (&Asked<'_, S>, Option<Decision>)| {
                let decision = decision?;
                Some(match (&one.limiter.shared.guard, asked_at) {
                    // What would have been allowed, but another denied, was not taken and is not counted.
                    (Some(guard), Some(at)) if decision.is_denied() || !is_denied => {
                        guard.take(one.key, one.cost, at, Ok(decision))
                    }
                    _ => decision,
                })
            };
            Ok(asked.iter().zip(decisions).map(take).collect())
        }
    }
}

/// Each limiter's own failure policy answers; what was taken locally is given back where one denies.
fn stand_in<S: Store>(asked: &[Asked<'_, S>], error: StoreError) -> Result<Answers, StoreError> {
    let reason = error.reason();
    let mut answers = Answers::new();
    for one in asked {
        let Some(guard) = &one.limiter.shared.guard else { return Err(error) };
        answers.push(Some(guard.stand_in(one.key, one.cost, reason)));
    }
    if answers.iter().flatten().any(Decision::is_denied) {
        for (one, answer) in asked.iter().zip(&mut answers) {
            one.give_back_locally(answer, reason);
        }
    }
    Ok(answers)
}

impl<S: Store> Asked<'_, S> {
    /// The answer, if the store need not be asked.
    fn known(&self) -> Option<Decision> {
        self.limiter.shared.guard.as_ref()?.known(self.key, self.cost)
    }

    fn give_back_locally(&self, answer: &mut Option<Decision>, reason: Degraded) {
        if let (Some(decision), Some(guard)) = (answer, &self.limiter.shared.guard)
            && decision.is_allowed()
        {
            *decision = guard.stand_in_refund(self.key, self.cost, reason);
        }
    }
}
