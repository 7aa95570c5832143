//! How a gate decides: all that is enforced together, all or nothing; what is in shadow beside it.

use futures_channel::oneshot;
use futures_util::future::{join, join_all};
use smallvec::SmallVec;

use super::compiled::{Compiled, Held, NamedPolicy, To};
use super::receipt::{Receipt, Taken, Unclaimed};
use super::verdict::{Effect, Ruling, Verdict};
use super::{Gate, tally::Tally};
use crate::algorithm::Claims;
use crate::cost::Cost;
use crate::decision::{Decision, Degraded};
use crate::key::Key;
use crate::limiter::{Answers, Asked, CheckError, Limiter, MOST_TOGETHER, check_together};
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
        Ok(rule(&find(&book, subjects)?, false).await?.0)
    }

    /// The same in the commonest case, of one policy that is enforced and nothing beside it, in this process; `None` in any
    /// other.
    pub(super) fn decide_one(
        &self,
        subjects: &[Subject<'_>],
    ) -> Option<Result<Verdict, CheckError>> {
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
        Some(Ok(Verdict {
            rulings: SmallVec::from_buf([ruling]),
        }))
    }

    /// The same, with a receipt, by which what was taken can be given back. It is, if this future is dropped before it has
    /// answered.
    ///
    /// # Errors
    /// If there is no such policy or a key is empty. Then nothing is taken.
    pub async fn admit(
        &self,
        subjects: &[Subject<'_>],
    ) -> Result<(Verdict, Receipt<S>), CheckError> {
        if !self.store().is_remote() {
            return self.admit_here(subjects).await;
        }
        let (send, receive) = oneshot::channel();
        let (gate, owned) = (
            self.clone(),
            subjects.iter().map(OwnedSubject::of).collect::<Vec<_>>(),
        );
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

    async fn admit_here(
        &self,
        subjects: &[Subject<'_>],
    ) -> Result<(Verdict, Receipt<S>), CheckError> {
        let book = self.shared.book.load();
        let found = find(&book, subjects)?;
        let (verdict, claims) = rule(&found, true).await?;
        let receipt = Receipt::new(taken(found, &verdict, claims));
        Ok((verdict, receipt))
    }

    /// Decides on one request under one policy, and keeps a receipt for it in the store, by which [`settle`](Self::settle)
    /// corrects it once, in any process that shares the store. Returns whether there is one: not for a request that was
    /// denied, or decided without the store. `id` must be new and hard to guess.
    ///
    /// # Errors
    /// If there is no such policy or the key is empty. Then nothing is taken.
    pub async fn decide_with_receipt(
        &self,
        subject: Subject<'_>,
        id: &str,
    ) -> Result<(Verdict, bool), CheckError> {
        let book = self.shared.book.load();
        let found = Found::new(&book, &subject)?;
        let Some(limiter) = found.held.limiter() else {
            return Ok((self.decide(&[subject]).await?, false));
        };
        let key = Key::new(&found.key)?;
        let (decision, is_kept) = limiter.admit_by_id(key, found.cost, id).await?;
        let mut beside = None;
        if let Some(candidate) = found.candidate.and_then(|held| held.limiter()) {
            beside = Some(match is_kept {
                true => candidate.admit_by_id(key, found.cost, id).await?.0,
                // There is no receipt to settle it by.
                false => candidate.check(&found.key[..]).cost(found.cost).await?,
            });
        }
        let verdict = Verdict {
            rulings: SmallVec::from_buf([found.ruling(Some(decision), beside)]),
        };
        count(std::slice::from_ref(&found), &verdict);
        Ok((verdict, is_kept))
    }

    /// Corrects a request to its actual cost, by the id of its receipt, once. Returns the decision of a request of cost 0
    /// made right after; `None` if the receipt is unknown, has expired or was settled.
    ///
    /// # Errors
    /// If there is no such policy, the key is empty, or the store could not answer. The receipt may be lost then, and what
    /// the request took stays taken.
    pub async fn settle(
        &self,
        subject: Subject<'_>,
        id: &str,
    ) -> Result<Option<Decision>, CheckError> {
        let book = self.shared.book.load();
        let found = Found::new(&book, &subject)?;
        let key = Key::new(&found.key)?;
        let Some(limiter) = found.held.limiter() else {
            return Ok(None);
        };
        let Some(settled) = limiter.settle_by_id(key, id, found.cost).await? else {
            return Ok(None);
        };
        found.policy.tally().refund();
        if let Some(candidate) = found.candidate.and_then(|held| held.limiter()) {
            // It is only counted: what fails there fails nothing.
            let _ = candidate.settle_by_id(key, id, found.cost).await;
        }
        Ok(Some(settled))
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
    pub async fn reset(
        &self,
        policy: &str,
        key: &[u8],
        tenant: Option<&str>,
    ) -> Result<(), CheckError> {
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
    if subjects.len() > MOST_TOGETHER {
        return Err(CheckError::TooManyPolicies {
            count: subjects.len(),
        });
    }
    let found: SmallVec<[Found<'a, S>; 2]> = subjects
        .iter()
        .map(|subject| Found::new(book, subject))
        .collect::<Result<_, _>>()?;
    for (index, one) in found.iter().enumerate() {
        if found[..index].iter().any(|other| one.contradicts(other)) {
            return Err(CheckError::TwoTiers {
                policy: one.policy.name().to_string(),
            });
        }
    }
    Ok(found)
}

impl<'a, S: Store> Found<'a, S> {
    fn new(book: &'a Compiled<S>, subject: &Subject<'a>) -> Result<Self, CheckError> {
        let policy = book.policy(subject.policy)?;
        let key = composed(subject.tenant, Key::new(subject.key)?);
        let (held, is_exception) = policy.held(&key, subject.tier);
        let candidate = policy.candidate().filter(|_| !is_exception);
        Ok(Self {
            policy,
            held,
            candidate,
            key,
            cost: subject.cost,
        })
    }

    /// Returns true if both count in one place under different limits. Their sum would be held to one of them only.
    fn contradicts(&self, other: &Self) -> bool {
        let (Some(one), Some(other_limiter)) = (self.enforced(), other.enforced()) else {
            return false;
        };
        one.namespace() == other_limiter.namespace()
            && one.policy() != other_limiter.policy()
            && self.key == other.key
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
        Ok(Asked {
            limiter,
            key: Key::new(&self.key)?,
            cost: self.cost,
        })
    }

    fn ruling(&self, decision: Option<Decision>, candidate: Option<Decision>) -> Ruling {
        let effect = match (&self.held.to, decision) {
            (To::Limiter(_), Some(decision)) => Effect::Limited(decision),
            (To::Limiter(_), None) => Effect::NotAsked,
            (To::Nothing, _) => Effect::Unlimited,
            (To::Blocked, _) => Effect::Blocked,
        };
        let label = std::sync::Arc::clone(&self.held.label);
        Ruling {
            label,
            effect,
            is_shadow: self.policy.is_shadow(),
            candidate: candidate.map(Box::new),
        }
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

/// Where a request is counted under one policy, and under its candidate.
#[derive(Default)]
struct Counted {
    held: Claims,
    candidate: Claims,
}

type AllCounted = SmallVec<[Counted; 2]>;

async fn rule<S: Store>(
    found: &[Found<'_, S>],
    wants_claims: bool,
) -> Result<(Verdict, AllCounted), CheckError> {
    // A blocked request is not counted, under any policy.
    let is_blocked = found
        .iter()
        .any(|one| matches!(one.held.to, To::Blocked) && !one.policy.is_shadow());
    let (mut enforced, mut beside) = (Asks::new(), Asks::new());
    for one in found.iter().filter(|_| !is_blocked) {
        if let Some(limiter) = one.enforced() {
            enforced.push(one.ask(limiter)?);
        }
        for limiter in [one.shadow(), one.candidate.and_then(|held| held.limiter())]
            .into_iter()
            .flatten()
        {
            beside.push(one.ask(limiter)?);
        }
    }
    let (answers, beside) = ask(&enforced, &beside, wants_claims).await?;
    let (mut answers, mut beside) = (answers.into_iter(), beside.into_iter());
    let (mut rulings, mut counted) = (SmallVec::new(), AllCounted::new());
    for one in found {
        let answer = one
            .enforced()
            .filter(|_| !is_blocked)
            .and_then(|_| answers.next().flatten());
        let shadow = one
            .shadow()
            .filter(|_| !is_blocked)
            .and_then(|_| beside.next().flatten());
        let candidate = one
            .candidate
            .filter(|_| !is_blocked)
            .and_then(|_| beside.next().flatten());
        let (decision, held) = answer.or(shadow).unzip();
        let (candidate, candidate_claims) = candidate.unzip();
        rulings.push(one.ruling(decision, candidate));
        counted.push(Counted {
            held: held.unwrap_or_default(),
            candidate: candidate_claims.unwrap_or_default(),
        });
    }
    let verdict = Verdict { rulings };
    count(found, &verdict);
    Ok((verdict, counted))
}

/// What is beside travels at the same time.
async fn ask<S: Store>(
    enforced: &[Asked<'_, S>],
    beside: &[Asked<'_, S>],
    wants_claims: bool,
) -> Result<(Answers, Answers), StoreError> {
    if beside.is_empty() {
        return Ok((
            check_together(enforced, wants_claims).await?,
            Answers::new(),
        ));
    }
    let alone = |one| check_together(std::slice::from_ref(one), wants_claims);
    let (answers, beside) = join(
        check_together(enforced, wants_claims),
        join_all(beside.iter().map(alone)),
    )
    .await;
    let beside: Result<SmallVec<[Answers; 2]>, StoreError> = beside.into_iter().collect();
    Ok((answers?, beside?.into_iter().flatten().collect()))
}

fn count<S: Store>(found: &[Found<'_, S>], verdict: &Verdict) {
    let is_denied = verdict.is_denied();
    // A look is no request.
    for (one, ruling) in found
        .iter()
        .zip(&verdict.rulings)
        .filter(|(one, _)| one.cost > Cost::ZERO)
    {
        Tally::ruling(one.policy.tally(), ruling, is_denied);
    }
}

/// What a request that goes on has taken, and what was taken beside it. Of answers without figures nothing was.
fn taken<S: Store>(
    found: SmallVec<[Found<'_, S>; 2]>,
    verdict: &Verdict,
    counted: AllCounted,
) -> SmallVec<[Taken<S>; 2]> {
    let mut all = SmallVec::new();
    for ((one, ruling), counted) in found.into_iter().zip(&verdict.rulings).zip(counted) {
        let is_kept = verdict.is_allowed() || ruling.is_shadow;
        let held = ruling
            .decision()
            .filter(|_| is_kept)
            .zip(one.held.limiter());
        let candidate = ruling
            .candidate()
            .zip(one.candidate.and_then(|held| held.limiter()));
        let both = [
            (ruling.is_shadow, held, counted.held),
            (true, candidate, counted.candidate),
        ];
        for (is_beside, pair, claims) in both {
            let Some((decision, limiter)) = pair.filter(|_| !claims.is_empty()) else {
                continue;
            };
            all.push(Taken {
                limiter: limiter.clone(),
                key: KeyBytes::from_slice(&one.key),
                cost: one.cost,
                claims,
                locally: decision.degraded(),
                tally: (!is_beside).then(|| std::sync::Arc::clone(one.policy.tally())),
            });
        }
    }
    all
}
