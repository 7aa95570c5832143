//! How limits are asked about a request: for middleware.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;
use tidegate_core::{Cost, CostError, Name, Store, Subject, Verdict};

use crate::charge::{Charge, Open, Settling};
use crate::denial::Denial;
use crate::error::RequestError;
use crate::fields::{Field, fields};
use crate::framework::Framework;
use crate::key::{Key, KeyBytes};
use crate::limits::{Limits, Settings, SettlingKind, ToText};
use crate::prepared::{About, Answer, Prepared};

impl<F: Framework, S: Store> Limits<F, S> {
    /// What is to be asked about a request; `None` if it goes on unasked.
    ///
    /// # Errors
    /// If it cannot be asked about.
    #[doc(hidden)] // For middleware, and its tests.
    pub fn prepare<'a>(
        &self,
        request: &'a F::Request,
    ) -> Result<Option<Prepared<'a>>, RequestError> {
        let settings = &self.0.settings;
        if settings.skips(request) {
            return Ok(None);
        }
        let mut keys = SmallVec::new();
        for (_, key) in &settings.limits {
            let mut bytes = KeyBytes::new();
            key.write(request, &mut bytes)
                .map_err(|_| RequestError::NoPeer)?;
            keys.push(bytes);
        }
        let (tier, tenant) = (
            text(&settings.tier, request),
            text(&settings.tenant, request),
        );
        Ok(Some(Prepared {
            keys,
            tier,
            tenant,
            cost: settings.cost(request)?,
        }))
    }

    /// What the gate answers about a request, where it is in this process; else what is to be asked.
    ///
    /// # Errors
    /// If it cannot be asked about.
    #[doc(hidden)] // For middleware.
    pub fn ask_about<'a>(&self, request: &'a F::Request) -> Result<About<'a, S>, RequestError> {
        let settings = &self.0.settings;
        match &settings.limits[..] {
            [(policy, key)] if !self.0.gate.store().is_remote() => {
                let answer = if settings.skips(request) {
                    None
                } else {
                    self.ask_about_one(policy, key, request)?
                };
                Ok(answer.map_or(About::Nothing, About::Answered))
            }
            _ => {
                let Some(prepared) = self.prepare(request)? else {
                    return Ok(About::Nothing);
                };
                let answer = prepared.ask_at_once(self);
                Ok(answer.map_or_else(|| About::ToAsk(prepared), About::Answered))
            }
        }
    }

    /// The commonest case, in which nothing need be moved about.
    fn ask_about_one(
        &self,
        policy: &Name,
        key: &Key<F>,
        request: &F::Request,
    ) -> Result<Option<Answer<S>>, RequestError> {
        let settings = &self.0.settings;
        let mut bytes = KeyBytes::new();
        key.write(request, &mut bytes)
            .map_err(|_| RequestError::NoPeer)?;
        let (tier, tenant) = (
            text(&settings.tier, request),
            text(&settings.tenant, request),
        );
        let subject = Subject {
            policy: policy.as_str(),
            key: &bytes,
            tier: tier.as_deref(),
            tenant: tenant.as_deref(),
            cost: settings.cost(request)?,
        };
        Ok(self.ask_at_once(&[subject]))
    }

    pub(crate) fn ask_at_once(&self, subjects: &[Subject<'_>]) -> Option<Answer<S>> {
        if self.wants_receipt() {
            let answer = self.0.gate.admit_at_once(subjects)?;
            return Some(answer.map(|(verdict, receipt)| (verdict, Some(receipt))));
        }
        Some(
            self.0
                .gate
                .decide_at_once(subjects)?
                .map(|verdict| (verdict, None)),
        )
    }

    /// Whether what a request takes may have to be given back once there is an answer.
    pub(crate) fn charges_by_outcome(&self) -> bool {
        let settings = &self.0.settings;
        settings.count_when.is_some()
            || settings.settle_by.is_some()
            || settings.settling != SettlingKind::Not
    }

    /// The policies that requests are held to, in their order.
    pub(crate) fn policies(&self) -> impl Iterator<Item = &str> {
        self.0
            .settings
            .limits
            .iter()
            .map(|(policy, _)| policy.as_str())
    }

    /// Whether what a request takes may have to be given back at all.
    pub(crate) fn wants_receipt(&self) -> bool {
        self.charges_by_outcome() || self.0.settings.longest_delay.is_some()
    }

    pub(crate) fn counts_aborted(&self) -> bool {
        self.0.settings.counts_aborted
    }

    /// Whether there is nothing that requests are held to: most likely something was forgotten.
    #[doc(hidden)] // For middleware.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.settings.limits.is_empty()
    }

    /// How a request is settled, and what its handler is to be given for it.
    pub(crate) fn settling(&self) -> Settling {
        match self.0.settings.settling {
            SettlingKind::Not => Settling::Not,
            SettlingKind::Told => Settling::Told(Charge::default()),
            SettlingKind::Bytes(per_unit) => Settling::Bytes(per_unit),
        }
    }

    /// Settles as far as the head of the answer says.
    #[doc(hidden)] // For middleware.
    pub fn answered(&self, open: &mut Open<S>, reply: &F::Reply) {
        let settings = &self.0.settings;
        if settings
            .count_when
            .as_ref()
            .is_some_and(|counts| !counts(reply))
        {
            open.give_back();
        } else if let Some(cost) = settings.settle_by.as_ref().and_then(|settle| settle(reply)) {
            open.settle(cost);
        } else {
            open.answered();
        }
    }

    /// How long a request that goes on waits; an error if it would be for too long.
    pub(crate) fn delay(&self, verdict: &Verdict) -> Result<Duration, Duration> {
        match self.0.settings.longest_delay {
            None => Ok(Duration::ZERO),
            Some(longest) if verdict.delay() <= longest => Ok(verdict.delay()),
            Some(longest) => Err(verdict.delay() - longest),
        }
    }

    /// The denial of a verdict that denies; or that admits, where it would have to wait by so much too long.
    #[doc(hidden)] // For middleware.
    #[must_use]
    pub fn denial<'a>(&self, verdict: &'a Verdict, excess: Option<Duration>) -> Option<Denial<'a>> {
        match excess {
            Some(excess) => Denial::queued(verdict, excess, self.0.settings.has_jitter),
            None => Denial::new(
                verdict,
                self.0.settings.statuses,
                self.0.settings.has_jitter,
            ),
        }
    }

    /// The answer of a closure in the place of ours, if there is one.
    #[doc(hidden)] // For middleware.
    #[must_use]
    pub fn refusal(&self, denial: &Denial<'_>) -> Option<F::Refusal> {
        self.0.settings.refuse.as_ref().map(|refuse| refuse(denial))
    }

    /// The header fields of an answer. With an excess, of a request that would have had to wait by so much too long.
    #[doc(hidden)] // For middleware.
    #[must_use]
    pub fn fields(&self, verdict: &Verdict, excess: Option<Duration>) -> SmallVec<[Field; 2]> {
        let settings = &self.0.settings;
        let mut fields = fields(
            verdict,
            settings.dialect,
            settings.tells_all,
            excess,
            &settings.policies,
        );
        if settings.is_cors {
            let value = Bytes::from_static(settings.dialect.exposed().as_bytes());
            fields.push(Field {
                name: "access-control-expose-headers",
                value,
            });
        }
        fields
    }
}

impl<F: Framework> Settings<F> {
    fn skips(&self, request: &F::Request) -> bool {
        let is_preflight = || {
            let mut asked = SmallVec::new();
            F::headers(request, "access-control-request-method", &mut asked);
            !asked.is_empty()
        };
        let passes = !self.counts_preflights && F::method(request) == "OPTIONS" && is_preflight();
        passes || self.skip.as_ref().is_some_and(|skip| skip(request))
    }

    fn cost(&self, request: &F::Request) -> Result<Cost, CostError> {
        self.cost
            .as_ref()
            .map_or(Ok(Cost::ONE), |cost| cost(request))
    }
}

fn text<'a, T>(text: &Option<ToText<T>>, request: &'a T) -> Option<Cow<'a, str>> {
    text.as_ref().and_then(|text| text(request))
}
