//! The decisions of a gate: enforced policies together, all or nothing; shadows and candidates
//! beside them.

use std::sync::Arc;

use futures_channel::oneshot;
use futures_util::future::{join, join_all};
use smallvec::SmallVec;

use super::Gate;
use super::lookup::{Lookup, Lookups, look_up};
use super::receipt::{Receipt, ReceiptEntry, Undelivered};
use super::verdict::{PolicyDecision, Verdict};
use crate::algorithm::Claims;
use crate::blocking;
use crate::cost::Cost;
use crate::decision::Degraded;
use crate::key::Key;
use crate::limiter::{Admissions, CheckError, Limiter, LimiterRequest, check_all, check_allowed};
use crate::maybe_ready::MaybeReady;
use crate::store::{Admission, Store, StoreError};
use crate::subject::{EncodedKey, KeyBytes, OwnedSubject, Subject, encoded, plain_key};

/// The result of [`Gate::admit`].
type Admitted<S> = Result<(Verdict, Receipt<S>), CheckError>;

impl<S: Store> Gate<S> {
    /// Decides one request under several policies, all or nothing. Policies in shadow mode and
    /// candidates are checked too, and never deny.
    ///
    /// In memory the decision is made before this returns.
    ///
    /// # Errors
    ///
    /// Returns an error if a policy does not exist or a key is empty. Nothing is taken then.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules, Subject};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let policies = PolicySet::new()
    ///     .with("per-user", Rules::new("100/minute".parse()?))?
    ///     .with("per-address", Rules::new("1_000/minute".parse()?))?;
    /// let gate = Gate::memory(policies);
    /// let subjects = [Subject::new("per-user", "user:42"), Subject::new("per-address", "192.0.2.7")];
    /// assert!(gate.decide(&subjects).await?.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    pub fn decide<'a>(
        &'a self,
        subjects: &'a [Subject<'a>],
    ) -> MaybeReady<
        Result<Verdict, CheckError>,
        impl Future<Output = Result<Verdict, CheckError>> + Send + 'a,
    > {
        match self.decide_now(subjects, false) {
            Some(verdict) => MaybeReady::ready(verdict),
            None => MaybeReady::pending(self.decide_all(subjects, false)),
        }
    }

    async fn decide_all(
        &self,
        subjects: &[Subject<'_>],
        wants_limits: bool,
    ) -> Result<Verdict, CheckError> {
        let policies = self.shared.policies.load();
        Ok(decide_lookups(&look_up(&policies, subjects)?, wants_limits)
            .await?
            .0)
    }

    /// Decides like [`decide`](Self::decide) or [`decide_with_limits`](Self::decide_with_limits),
    /// without a future. Returns `None` if the store is remote and has to be asked.
    #[doc(hidden)] // For middleware.
    #[inline]
    pub fn decide_now(
        &self,
        subjects: &[Subject<'_>],
        wants_limits: bool,
    ) -> Option<Result<Verdict, CheckError>> {
        if self.store().is_remote() {
            let [subject] = subjects else { return None };
            return self.decide_leased(subject, wants_limits).map(Ok);
        }
        if let [subject] = subjects
            && let Some(verdict) = self.decide_one(subject, wants_limits)
        {
            return Some(verdict);
        }
        Some(self.decide_several(subjects, wants_limits))
    }

    /// Decides like [`decide`](Self::decide), and returns the figures of every limit of a policy,
    /// see [`PolicyDecision::limits`](crate::PolicyDecision::limits).
    ///
    /// # Errors
    ///
    /// Returns an error if a policy does not exist or a key is empty. Nothing is taken then.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules, Subject};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = Rules::new("5/second; fixed_window 100/day".parse()?);
    /// let gate = Gate::memory(PolicySet::new().with("api", rules)?);
    /// let verdict = gate.decide_with_limits(&[Subject::new("api", "user:42")]).await?;
    /// assert_eq!(verdict.decisions()[0].limits()[1].remaining(), 99);
    /// # Ok(())
    /// # }
    /// ```
    pub fn decide_with_limits<'a>(
        &'a self,
        subjects: &'a [Subject<'a>],
    ) -> MaybeReady<
        Result<Verdict, CheckError>,
        impl Future<Output = Result<Verdict, CheckError>> + Send + 'a,
    > {
        match self.decide_now(subjects, true) {
            Some(verdict) => MaybeReady::ready(verdict),
            None => MaybeReady::pending(self.decide_all(subjects, true)),
        }
    }

    /// Decides the most common case: one enforced policy without a candidate, in this process.
    /// Returns `None` in any other case.
    #[inline]
    fn decide_one(
        &self,
        subject: &Subject<'_>,
        wants_limits: bool,
    ) -> Option<Result<Verdict, CheckError>> {
        let policies = self.shared.policies.load();
        let policy = match policies.policy(subject.policy) {
            Ok(policy) => policy,
            Err(error) => return Some(Err(error)),
        };
        if policy.candidate().is_some() || policy.is_shadow() {
            return None;
        }
        // Most keys are stored unchanged.
        let key = match plain_key(subject) {
            Some(key) => EncodedKey::Plain(key),
            None => match encoded(subject.tenant, &subject.key) {
                Ok(key) => key,
                Err(error) => return Some(Err(error.into())),
            },
        };
        // From here on the rule has been looked up, which counts unknown tiers.
        let rule = match policy.rule(&key, subject.tier) {
            Ok((rule, _)) => rule,
            Err(error) => return Some(Err(error)),
        };
        let is_simple =
            |limiter: &&Limiter<S>| !wants_limits || limiter.policy().limits().len() == 1;
        let Some(limiter) = rule.limiter().filter(is_simple) else {
            let lookup = Lookup {
                policy,
                rule,
                candidate: None,
                key,
                cost: subject.cost,
            };
            return Some(decide_in_memory(&[lookup], wants_limits));
        };
        let decision = match limiter.check_local(Key::new(&key).ok()?, subject.cost) {
            Ok(decision) => decision,
            Err(error) => return Some(Err(error.into())),
        };
        // A look is not counted as a request.
        if subject.cost > Cost::ZERO {
            policy.counters().count_enforced(&decision);
        }
        Some(Ok(Verdict {
            decisions: SmallVec::from_buf([PolicyDecision::limited(&rule.label, decision)]),
        }))
    }

    /// Admits a request under one enforced policy from quota that this process has leased.
    fn decide_leased(&self, subject: &Subject<'_>, wants_limits: bool) -> Option<Verdict> {
        let policies = self.shared.policies.load();
        let policy = policies.policy(subject.policy).ok()?;
        if policy.candidate().is_some() || policy.is_shadow() {
            return None;
        }
        let key = encoded(subject.tenant, &subject.key).ok()?;
        let (rule, _) = policy.known_rule(&key, subject.tier)?;
        let limiter = rule.limiter()?;
        if wants_limits && limiter.policy().limits().len() > 1 {
            return None;
        }
        let decision = limiter.check_leased(Key::new(&key).ok()?, subject.cost)?;
        policy.counters().count_enforced(&decision);
        Some(Verdict {
            decisions: SmallVec::from_buf([PolicyDecision::limited(&rule.label, decision)]),
        })
    }

    /// Decides a request under several policies, in this process.
    fn decide_several(
        &self,
        subjects: &[Subject<'_>],
        wants_limits: bool,
    ) -> Result<Verdict, CheckError> {
        let policies = self.shared.policies.load();
        let lookups = look_up(&policies, subjects)?;
        match decide_allowed(&lookups, wants_limits) {
            Some(verdict) => Ok(verdict),
            None => decide_in_memory(&lookups, wants_limits),
        }
    }

    /// Decides like [`decide`](Self::decide) and returns a receipt, which gives back or corrects
    /// the cost.
    ///
    /// If the future is dropped before it completes, everything taken is given back.
    ///
    /// # Errors
    ///
    /// Returns an error if a policy does not exist or a key is empty. Nothing is taken then.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::{Gate, PolicySet, Rules, Subject};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let gate = Gate::memory(PolicySet::new().with("login", Rules::new("5/hour".parse()?))?);
    /// let (verdict, receipt) = gate.admit(&[Subject::new("login", "ann")]).await?;
    /// if verdict.is_allowed() {
    ///     // The login succeeded, so it does not count.
    ///     receipt.give_back();
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn admit<'a>(
        &'a self,
        subjects: &'a [Subject<'a>],
    ) -> MaybeReady<Admitted<S>, impl Future<Output = Admitted<S>> + Send + 'a> {
        if self.store().is_remote() {
            MaybeReady::pending(self.admit_detached(subjects))
        } else {
            MaybeReady::ready(blocking::ready(self.admit_here(subjects)))
        }
    }

    /// Admits on a task of its own, so that a caller that goes away leaves nothing half taken.
    async fn admit_detached(&self, subjects: &[Subject<'_>]) -> Admitted<S> {
        let (send, receive) = oneshot::channel();
        let gate = self.clone();
        let owned: Vec<OwnedSubject> = subjects.iter().map(OwnedSubject::of).collect();
        self.store().detach(async move {
            let subjects: Vec<Subject<'_>> = owned.iter().map(OwnedSubject::subject).collect();
            // If the receiver is gone, the result is dropped, which gives everything back.
            let _ = send.send(Undelivered::new(gate.admit_here(&subjects).await));
        });
        match receive.await {
            Ok(undelivered) => undelivered.deliver(),
            Err(gone) => Err(StoreError::new(Degraded::Disconnected, gone).into()),
        }
    }

    async fn admit_here(&self, subjects: &[Subject<'_>]) -> Admitted<S> {
        let policies = self.shared.policies.load();
        let lookups = look_up(&policies, subjects)?;
        let (verdict, claims) = decide_lookups(&lookups, true).await?;
        let receipt = Receipt::new(receipt_entries(lookups, &verdict, claims));
        Ok((verdict, receipt))
    }
}

type LimiterRequests<'a, S> = SmallVec<[LimiterRequest<'a, S>; 2]>;

/// The claims of a request under one policy, and under its candidate.
#[derive(Default)]
struct PolicyClaims {
    policy: Claims,
    candidate: Claims,
}

type AllClaims = SmallVec<[PolicyClaims; 2]>;

/// Decides a request that several enforced policies without candidates allow, in this process.
/// Returns `None` in any other case; nothing is taken then.
fn decide_allowed<S: Store>(lookups: &[Lookup<'_, S>], wants_limits: bool) -> Option<Verdict> {
    let mut limiters: SmallVec<[LimiterRequest<'_, S>; 4]> = SmallVec::new();
    for lookup in lookups {
        let limiter = lookup.enforced().filter(|_| lookup.candidate.is_none())?;
        if wants_limits && limiter.policy().limits().len() > 1 {
            return None;
        }
        limiters.push(lookup.request(limiter).ok()?);
    }
    let decisions = check_allowed(&limiters)?;
    let decisions = lookups.iter().zip(decisions).map(|(lookup, decision)| {
        lookup.policy.counters().count_enforced(&decision);
        PolicyDecision::limited(&lookup.rule.label, decision)
    });
    Some(Verdict {
        decisions: decisions.collect(),
    })
}

/// Decides on a store in this process, whose futures are ready.
fn decide_in_memory<S: Store>(
    lookups: &[Lookup<'_, S>],
    wants_limits: bool,
) -> Result<Verdict, CheckError> {
    let (verdict, _) = blocking::ready(decide_lookups(lookups, wants_limits))?;
    Ok(verdict)
}

async fn decide_lookups<S: Store>(
    lookups: &[Lookup<'_, S>],
    wants_claims: bool,
) -> Result<(Verdict, AllClaims), CheckError> {
    // A blocked request is not counted under any policy.
    let is_blocked = lookups.iter().any(Lookup::is_blocked);
    let (mut enforced, mut unenforced) = (LimiterRequests::new(), LimiterRequests::new());
    for lookup in lookups.iter().filter(|_| !is_blocked) {
        if let Some(limiter) = lookup.enforced() {
            enforced.push(lookup.request(limiter)?);
        }
        for limiter in [lookup.shadow(), lookup.candidate_limiter()]
            .into_iter()
            .flatten()
        {
            unenforced.push(lookup.request(limiter)?);
        }
    }
    let (enforced, unenforced) = check_both(&enforced, &unenforced, wants_claims).await?;
    let admissions = (!is_blocked).then_some((enforced.into_iter(), unenforced.into_iter()));
    let (verdict, claims) = assemble(lookups, admissions);
    count(lookups, &verdict);
    Ok((verdict, claims))
}

/// Runs shadows and candidates at the same time as the enforced limiters.
async fn check_both<S: Store>(
    enforced: &[LimiterRequest<'_, S>],
    unenforced: &[LimiterRequest<'_, S>],
    wants_claims: bool,
) -> Result<(Admissions, Admissions), StoreError> {
    if unenforced.is_empty() {
        return Ok((check_all(enforced, wants_claims).await?, Admissions::new()));
    }
    let alone = |request| check_all(std::slice::from_ref(request), wants_claims);
    let (enforced, unenforced) = join(
        check_all(enforced, wants_claims),
        join_all(unenforced.iter().map(alone)),
    )
    .await;
    let unenforced: Result<SmallVec<[Admissions; 2]>, StoreError> =
        unenforced.into_iter().collect();
    Ok((enforced?, unenforced?.into_iter().flatten().collect()))
}

/// Assigns the admissions, which are in the order of the lookups, to the policies. There are none
/// if the request is blocked.
fn assemble<S: Store>(
    lookups: &[Lookup<'_, S>],
    mut admissions: Option<(
        impl Iterator<Item = Option<Admission>>,
        impl Iterator<Item = Option<Admission>>,
    )>,
) -> (Verdict, AllClaims) {
    let (mut decisions, mut claims) = (SmallVec::new(), AllClaims::new());
    for lookup in lookups {
        let (mut admission, mut candidate) = (None, None);
        if let Some((enforced, unenforced)) = &mut admissions {
            admission = match (lookup.enforced(), lookup.shadow()) {
                (Some(_), _) => enforced.next().flatten(),
                (None, Some(_)) => unenforced.next().flatten(),
                (None, None) => None,
            };
            candidate = lookup.candidate.and_then(|_| unenforced.next().flatten());
        }
        let mut own_claims = PolicyClaims::default();
        let (mut decision, mut limits) = (None, Vec::new());
        if let Some(admission) = admission {
            decision = Some(admission.decision);
            (own_claims.policy, limits) = (admission.claims, admission.limits);
        }
        let candidate = candidate.map(|admission: Admission| {
            own_claims.candidate = admission.claims;
            admission.decision
        });
        decisions.push(lookup.policy_decision(decision, limits, candidate));
        claims.push(own_claims);
    }
    (Verdict { decisions }, claims)
}

pub(super) fn count<S: Store>(lookups: &[Lookup<'_, S>], verdict: &Verdict) {
    let is_denied = verdict.is_denied();
    for (lookup, decision) in lookups.iter().zip(&verdict.decisions) {
        // A look is not counted as a request.
        if lookup.cost > Cost::ZERO {
            lookup.policy.counters().count(decision, is_denied);
        }
    }
}

/// Returns the receipt entries of an admitted request, its shadows and its candidates. A decision
/// without figures took nothing.
fn receipt_entries<S: Store>(
    lookups: Lookups<'_, S>,
    verdict: &Verdict,
    claims: AllClaims,
) -> SmallVec<[ReceiptEntry<S>; 2]> {
    let mut entries = SmallVec::new();
    for ((lookup, decision), claims) in lookups.into_iter().zip(&verdict.decisions).zip(claims) {
        let is_shadow = decision.is_shadow;
        let is_kept = verdict.is_allowed() || is_shadow;
        let policy = decision
            .decision()
            .filter(|_| is_kept)
            .zip(lookup.rule.limiter());
        let candidate = decision.candidate().zip(lookup.candidate_limiter());
        for (is_enforced, pair, claims) in [
            (!is_shadow, policy, claims.policy),
            (false, candidate, claims.candidate),
        ] {
            let Some((decision, limiter)) = pair.filter(|_| !claims.is_empty()) else {
                continue;
            };
            entries.push(ReceiptEntry {
                limiter: limiter.clone(),
                key: KeyBytes::from_slice(&lookup.key),
                cost: lookup.cost,
                claims,
                degraded: decision.degraded(),
                policy: Some(lookup.policy.name().clone()),
                counters: is_enforced.then(|| Arc::clone(lookup.policy.counters())),
            });
        }
    }
    entries
}
