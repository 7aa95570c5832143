//! How a gate decides: all that is enforced together, all or nothing; what is in shadow beside it.

use futures_channel::oneshot;
use futures_util::future::{join, join_all};
use smallvec::SmallVec;

use super::compiled::{Compiled, Held, NamedPolicy, To};
use super::receipt::{Receipt, Taken, Unclaimed};
use super::verdict::{Effect, Ruling, Verdict};
use super::{Gate, tally::Tally};
use crate::cost::Cost;
use crate::decision::{Decision, Degraded};
use crate::key::Key;
use crate::limiter::{Answers, Asked, CheckError, Limiter, check_together};
use crate::store::{Store, StoreError};
use crate::subject::{Composed, KeyBytes, OwnedSubject, Subject, composed};

/// A subject, looked up.
struct Found<'a, S: Store> {
    policy: &'a NamedPolicy<S>,
    held: &'a std::sync::Arc<Held<S>>,
    candidate: Option<&'a std::sync::Arc<Held<S>>>,
    key: Composed<'a>,
    cost: Cost,
}

impl<S: Store> Gate<S> {
    /// Decides on one request that all these must meet, each under its policy: all or nothing. Policies in shadow, and
    /// candidates, are asked beside them and deny nothing.
    ///
    /// # Errors
    /// If there is no such policy or a key is empty. Then nothing is taken.
    pub async fn decide(&self, subjects: &[Subject<'_>]) -> Result<Verdict, CheckError> {
        let book = self.shared.book.load();
        rule(&find(&book, subjects)?).await
    }

    /// The same in the commonest case, of one policy that is enforced and nothing beside it, in this process; `None` in any
    /// other.
    pub(super) fn decide_one(&self, subjects: &[Subject<'_>]) -> Option<Result<Verdict, CheckError>> {
        let [subject] = subjects else { return None };
        let book = self.shared.book.load();
        let found = match Found::new(&book, subject) {
            Ok(found) if found.candidate.is_none() => found,
            Ok(_) => return None,
            Err(error) => return Some(Err(error)),
        };
        let limiter = found.enforced()?;
        let key = Key::new(&found.key).ok()?;
        let decision = match limiter.check_at_once(key, found.cost) {
            Ok(decision) => decision,
            Err(error) => return Some(Err(error.into())),
        };
        let ruling = found.ruling(Some(decision), None);
        // A look is no request.
        if found.cost > Cost::ZERO {
            found.policy.tally().ruling(&ruling, decision.is_denied());
        }
        Some(Ok(Verdict { rulings: SmallVec::from_buf([ruling]) }))
    }

    /// The same, with a receipt, by which what was taken can be given back. It is, if this future is dropped before it has
    /// answered.
    ///
    /// # Errors
    /// If there is no such policy or a key is empty. Then nothing is taken.
    pub async fn admit(&self, subjects: &[Subject<'_>]) -> Result<(Verdict, Receipt<S>), CheckError> {
        if !self.store().is_remote() {
            return self.admit_here(subjects).await;
        }
        let (send, receive) = oneshot::channel();
        let (gate, owned) = (self.clone(), subjects.iter().map(OwnedSubject::of).collect::<Vec<_>>());
        self.store().detach(async move {
            let subjects: Vec<Subject<'_>> = owned.iter().map(OwnedSubject::subject).collect();
            // Where nobody waits for it any more, it is dropped, and what was taken is given back.
            let _ = send.send(Unclaimed::of(gate.admit_here(&subjects).await));
        });
        match receive.await {
            Ok(unclaimed) => unclaimed.claimed(),
            Err(gone) => Err(StoreError::new(Degraded::Disconnected, gone).into()),
        }
    }

    async fn admit_here(&self, subjects: &[Subject<'_>]) -> Result<(Verdict, Receipt<S>), CheckError> {
        let book = self.shared.book.load();
        let found = find(&book, subjects)?;
        let verdict = rule(&found).await?;
        let receipt = Receipt::new(taken(found, &verdict));
        Ok((verdict, receipt))
    }

    /// Gives back to a key what a request took that did not happen after all, or cost less: never more than is counted.
    ///
    /// # Errors
    /// If there is no such policy or the key is empty. Then nothing is given back.
    pub async fn refund(&self, subject: Subject<'_>) -> Result<Option<Decision>, CheckError> {
        let book = self.shared.book.load();
        let found = Found::new(&book, &subject)?;
        if let Some(candidate) = found.candidate.and_then(|held| held.limiter()) {
            candidate.refund(&found.key[..], found.cost).await?;
        }
        match found.held.limiter() {
            Some(limiter) => {
                found.policy.tally().refund();
                Ok(Some(limiter.refund(&found.key[..], found.cost).await?))
            }
            None => Ok(None),
        }
    }

    /// Forgets what a key has used under a policy, in every tier.
    ///
    /// # Errors
    /// If there is no such policy, the key is empty, or the store could not answer.
    pub async fn reset(&self, policy: &str, key: &[u8], tenant: Option<&str>) -> Result<(), CheckError> {
        let book = self.shared.book.load();
        let key = composed(tenant, Key::new(key)?);
        for limiter in book.policy(policy)?.limiters(&key) {
            limiter.reset(&key[..]).await?;
        }
        Ok(())
    }
}

fn find<'a, S: Store>(
    book: &'a Compiled<S>,
    subjects: &[Subject<'a>],
) -> Result<SmallVec<[Found<'a, S>; 2]>, CheckError> {
    subjects.iter().map(|subject| Found::new(book, subject)).collect()
}

impl<'a, S: Store> Found<'a, S> {
    fn new(book: &'a Compiled<S>, subject: &Subject<'a>) -> Result<Self, CheckError> {
        let policy = book.policy(subject.policy)?;
        let key = composed(subject.tenant, Key::new(subject.key)?);
        let (held, is_exception) = policy.held(&key, subject.tier);
        let candidate = policy.candidate().filter(|_| !is_exception);
        Ok(Self { policy, held, candidate, key, cost: subject.cost })
    }

    /// The limiter that is enforced.
    fn enforced(&self) -> Option<&Limiter<S>> {
        self.held.limiter().filter(|_| !self.policy.is_shadow())
    }

    /// The limiter that is only counted.
    fn shadow(&self) -> Option<&Limiter<S>> {
        self.held.limiter().filter(|_| self.policy.is_shadow())
    }

    fn ask<'b>(&'b self, limiter: &'b Limiter<S>) -> Result<Asked<'b, S>, CheckError> {
        Ok(Asked { limiter, key: Key::new(&self.key)?, cost: self.cost })
    }

    fn ruling(&self, decision: Option<Decision>, candidate: Option<Decision>) -> Ruling {
        let effect = match (&self.held.to, decision) {
            (To::Limiter(_), Some(decision)) => Effect::Limited(decision),
            (To::Limiter(_), None) => Effect::NotAsked,
            (To::Nothing, _) => Effect::Unlimited,
            (To::Blocked, _) => Effect::Blocked,
        };
        let label = std::sync::Arc::clone(&self.held.label);
        Ruling { label, effect, is_shadow: self.policy.is_shadow(), candidate: candidate.map(Box::new) }
    }
}

impl<S: Store> Held<S> {
    fn limiter(&self) -> Option<&Limiter<S>> {
        match &self.to {
            To::Limiter(limiter) => Some(limiter),
            To::Nothing | To::Blocked => None,
        }
    }
}

type Asks<'a, S> = SmallVec<[Asked<'a, S>; 2]>;

async fn rule<S: Store>(found: &[Found<'_, S>]) -> Result<Verdict, CheckError> {
    // Who is blocked is not counted, nor is anybody else for it.
    let is_blocked = found.iter().any(|one| matches!(one.held.to, To::Blocked) && !one.policy.is_shadow());
    let (mut enforced, mut beside) = (Asks::new(), Asks::new());
    for one in found.iter().filter(|_| !is_blocked) {
        if let Some(limiter) = one.enforced() {
            enforced.push(one.ask(limiter)?);
        }
        for limiter in [one.shadow(), one.candidate.and_then(|held| held.limiter())].into_iter().flatten() {
            beside.push(one.ask(limiter)?);
        }
    }
    let (answers, beside) = ask(&enforced, &beside).await?;
    let (mut answers, mut beside) = (answers.into_iter(), beside.into_iter());
    let mut rulings = SmallVec::new();
    for one in found {
        let answer = one.enforced().filter(|_| !is_blocked).and_then(|_| answers.next().flatten());
        let shadow = one.shadow().filter(|_| !is_blocked).and_then(|_| beside.next().flatten());
        let candidate = one.candidate.filter(|_| !is_blocked).and_then(|_| beside.next().flatten());
        rulings.push(one.ruling(answer.or(shadow), candidate));
    }
    let verdict = Verdict { rulings };
    count(found, &verdict);
    Ok(verdict)
}

/// What is beside travels at the same time.
async fn ask<S: Store>(enforced: &[Asked<'_, S>], beside: &[Asked<'_, S>]) -> Result<(Answers, Answers), StoreError> {
    if beside.is_empty() {
        return Ok((check_together(enforced).await?, Answers::new()));
    }
    let alone = |one| check_together(std::slice::from_ref(one));
    let (answers, beside) = join(check_together(enforced), join_all(beside.iter().map(alone))).await;
    let beside: Result<SmallVec<[Answers; 2]>, StoreError> = beside.into_iter().collect();
    Ok((answers?, beside?.into_iter().flatten().collect()))
}

fn count<S: Store>(found: &[Found<'_, S>], verdict: &Verdict) {
    let is_denied = verdict.is_denied();
    // A look is no request.
    for (one, ruling) in found.iter().zip(&verdict.rulings).filter(|(one, _)| one.cost > Cost::ZERO) {
        Tally::ruling(one.policy.tally(), ruling, is_denied);
    }
}

/// What a request that goes on has taken, and what was taken beside it. Of answers without figures nothing was.
fn taken<S: Store>(found: SmallVec<[Found<'_, S>; 2]>, verdict: &Verdict) -> SmallVec<[Taken<S>; 2]> {
    let mut all = SmallVec::new();
    for (one, ruling) in found.into_iter().zip(&verdict.rulings) {
        let is_kept = verdict.is_allowed() || ruling.is_shadow;
        let held = ruling.decision().filter(|_| is_kept).zip(one.held.limiter());
        let candidate = ruling.candidate().zip(one.candidate.and_then(|held| held.limiter()));
        for (is_beside, pair) in [(ruling.is_shadow, held), (true, candidate)] {
            let Some((decision, limiter)) =
                pair.filter(|(decision, _)| decision.is_allowed() && decision.has_figures())
            else {
                continue;
            };
            all.push(Taken {
                limiter: limiter.clone(),
                key: KeyBytes::from_slice(&one.key),
                cost: one.cost,
                gone_at: limiter.store().now().saturating_add(decision.reset_after()),
                locally: decision.degraded(),
                tally: (!is_beside).then(|| std::sync::Arc::clone(one.policy.tally())),
            });
        }
    }
    all
}
