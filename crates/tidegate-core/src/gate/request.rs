//! What a gate is asked. Nothing happens until `.now()` (in memory), `.await` or `.wait()` (on any store).

use std::future::IntoFuture;
use std::pin::Pin;

use super::{Gate, Receipt, Verdict};
use crate::blocking;
use crate::cost::{Cost, CostError};
use crate::limiter::CheckError;
use crate::memory::MemoryStore;
use crate::store::Store;
use crate::subject::Subject;

/// One request under one named policy. Nothing happens until `.now()` (in memory), `.await` or `.wait()`.
#[must_use = "nothing is checked until `.now()`, `.await` or `.wait()`"]
#[derive(Debug)]
pub struct Ask<'a, S: Store> {
    gate: &'a Gate<S>,
    subject: Subject<'a>,
    cost: Result<Cost, CostError>,
}

impl<'a, S: Store> Ask<'a, S> {
    pub(super) fn new(gate: &'a Gate<S>, policy: &'a str, key: &'a [u8]) -> Self {
        Self {
            gate,
            subject: Subject::new(policy, key),
            cost: Ok(Cost::ONE),
        }
    }

    /// What the request takes: an integer, a decimal of at most three places, or a [`Cost`]. 0 looks without taking.
    pub fn cost<C: TryInto<Cost, Error: Into<CostError>>>(mut self, cost: C) -> Self {
        self.cost = cost.try_into().map_err(Into::into);
        self
    }

    /// Of which tier the key is; the default holds for one that the policy does not name.
    pub fn tier(mut self, tier: &'a str) -> Self {
        self.subject.tier = Some(tier);
        self
    }

    /// The tenant of the key: the same key of another tenant counts apart.
    pub fn tenant(mut self, tenant: &'a str) -> Self {
        self.subject.tenant = Some(tenant);
        self
    }

    async fn answer(self) -> Result<Verdict, CheckError> {
        let subject = Subject {
            cost: self.cost?,
            ..self.subject
        };
        self.gate.decide(&[subject]).await
    }

    /// Decides, and holds this thread up meanwhile: for programs without an async runtime.
    ///
    /// # Errors
    /// If there is no such policy, the key is empty, the cost is not one, or this thread runs async tasks. Then nothing is
    /// taken.
    pub fn wait(self) -> Result<Verdict, CheckError> {
        self.gate.store().block_on(self.answer())?
    }
}

impl Ask<'_, MemoryStore> {
    /// Decides.
    ///
    /// # Errors
    /// If there is no such policy, the key is empty or the cost is not one. Then nothing is taken.
    pub fn now(self) -> Result<Verdict, CheckError> {
        let subject = Subject {
            cost: self.cost?,
            ..self.subject
        };
        let gate = self.gate;
        gate.decide_one(&[subject])
            .unwrap_or_else(|| blocking::ready(gate.decide(&[subject])))
    }
}

impl<'a, S: Store> IntoFuture for Ask<'a, S> {
    type Output = Result<Verdict, CheckError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.answer())
    }
}

impl<S: Store> Gate<S> {
    /// [`decide`](Self::decide) at once, where the store is in this process; `None` where it is not.
    #[must_use]
    pub fn decide_at_once(&self, subjects: &[Subject<'_>]) -> Option<Result<Verdict, CheckError>> {
        if self.store().is_remote() {
            return None;
        }
        Some(
            self.decide_one(subjects)
                .unwrap_or_else(|| blocking::ready(self.decide(subjects))),
        )
    }

    /// [`admit`](Self::admit) at once, where the store is in this process; `None` where it is not.
    #[must_use]
    pub fn admit_at_once(
        &self,
        subjects: &[Subject<'_>],
    ) -> Option<Result<(Verdict, Receipt<S>), CheckError>> {
        (!self.store().is_remote()).then(|| blocking::ready(self.admit(subjects)))
    }
}
