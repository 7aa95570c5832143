//! The check of a request, for middleware.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;
use tidegate_core::{Cost, CostError, Name, Store, Subject, Verdict};

use crate::charge::{ActualCost, Charge, PendingCharge};
use crate::denial::Denial;
use crate::error::RequestError;
use crate::framework::Framework;
use crate::header_format::HeaderFormat;
use crate::headers::{Header, Headers, rate_limit_headers};
use crate::key::KeyBytes;
use crate::limit_rule::{LimitChoice, LimitRule};
use crate::limits::{LimitSettings, Limits, SettleMode, ToCost, ToText};
use crate::lookup::{Lookup, PreparedCheck, PreparedKey};

impl<F: Framework, S: Store> Limits<F, S> {
    /// Returns the check of a request, or `None` if the request is not limited.
    ///
    /// # Errors
    ///
    /// Returns an error if the request cannot be checked.
    #[doc(hidden)] // For middleware, and its tests.
    pub fn prepare<'a>(
        &self,
        request: &'a F::Request,
    ) -> Result<Option<PreparedCheck<'a>>, RequestError> {
        let settings = &self.0.settings;
        if settings.skips(request) {
            return Ok(None);
        }
        let mut keys = SmallVec::new();
        for rule in &settings.limits {
            let (choice, bytes) = rule.choose(request)?;
            let own = rule.choices.get(choice).and_then(|one| one.cost.as_ref());
            keys.push(PreparedKey {
                bytes,
                choice,
                cost: settings.cost(own, request)?,
            });
        }
        Ok(Some(PreparedCheck {
            keys,
            tier: text(&settings.tier, request),
            tenant: text(&settings.tenant, request),
        }))
    }

    /// Checks a request. In memory the gate decides before this returns.
    ///
    /// # Errors
    ///
    /// Returns an error if the request cannot be checked.
    #[doc(hidden)] // For middleware.
    pub fn look_up<'a>(&self, request: &'a F::Request) -> Result<Lookup<'a, S>, RequestError> {
        let settings = &self.0.settings;
        if let [rule] = &settings.limits[..]
            && let [choice] = &rule.choices[..]
            && !self.0.gate.store().is_remote()
        {
            return self.look_up_one(choice, request);
        }
        let Some(prepared) = self.prepare(request)? else {
            return Ok(Lookup::Skipped);
        };
        let decided = prepared.check_now(self);
        Ok(decided.map_or_else(|| Lookup::Undecided(prepared), Lookup::Decided))
    }

    /// Checks the most common case, one limit in memory, without storing its parts.
    fn look_up_one<'a>(
        &self,
        choice: &LimitChoice<F>,
        request: &'a F::Request,
    ) -> Result<Lookup<'a, S>, RequestError> {
        let settings = &self.0.settings;
        if settings.skips(request) {
            return Ok(Lookup::Skipped);
        }
        let mut bytes = KeyBytes::new();
        choice.write_key(request, &mut bytes)?;
        let tier = text(&settings.tier, request);
        let tenant = text(&settings.tenant, request);
        let subject = Subject {
            policy: choice.policy.as_str(),
            key: bytes[..].into(),
            tier: tier.as_deref(),
            tenant: tenant.as_deref(),
            cost: settings.cost(choice.cost.as_ref(), request)?,
        };
        let decided = self.decide_now(&[subject]);
        Ok(decided.map_or(Lookup::Skipped, Lookup::Decided))
    }

    /// Returns `true` if a response may give back a part of the cost.
    pub(crate) fn charges_by_outcome(&self) -> bool {
        let settings = &self.0.settings;
        settings.count_when.is_some()
            || settings.settle_by.is_some()
            || settings.settle_mode != SettleMode::Never
    }

    /// Returns the policies of the limits, in order.
    pub(crate) fn rules(&self) -> impl Iterator<Item = &LimitRule<F>> {
        self.0.settings.limits.iter()
    }

    /// Returns the policies that settlements apply to, or `None` for all.
    pub(crate) fn settled(&self) -> Option<Arc<[Name]>> {
        self.0.settings.settled.clone()
    }

    /// Returns `true` if the headers report every limit of a policy.
    pub(crate) fn reports_every_limit(&self) -> bool {
        self.0.settings.reports_all && self.0.settings.format == HeaderFormat::Draft11
    }

    /// Returns `true` if the cost of a request may have to be given back.
    pub(crate) fn wants_receipt(&self) -> bool {
        self.charges_by_outcome() || self.0.settings.max_delay.is_some()
    }

    pub(crate) fn counts_aborted(&self) -> bool {
        self.0.settings.counts_aborted
    }

    /// Returns `true` if there are no limits, which is most likely a mistake.
    #[doc(hidden)] // For middleware.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.settings.limits.is_empty()
    }

    /// Returns the source of a request's actual cost.
    pub(crate) fn actual_cost(&self) -> ActualCost {
        match self.0.settings.settle_mode {
            SettleMode::Never => ActualCost::AsTaken,
            SettleMode::Handler => ActualCost::Reported(Charge::default()),
            SettleMode::Bytes(per_unit) => ActualCost::Bytes(per_unit),
        }
    }

    /// Settles a request as far as the head of its response allows.
    #[doc(hidden)] // For middleware.
    pub fn settle_by_head(&self, pending: &mut PendingCharge<S>, response: &F::ResponseHead) {
        let settings = &self.0.settings;
        let counts = settings.count_when.as_ref();
        if counts.is_some_and(|counts| !counts(response)) {
            return pending.give_back();
        }
        match settings
            .settle_by
            .as_ref()
            .and_then(|settle| settle(response))
        {
            Some(cost) => pending.settle(cost),
            None => pending.set_has_response(),
        }
    }

    /// Returns how long an admitted request is delayed, or by how much the delay is too long.
    pub(crate) fn delay(&self, verdict: &Verdict) -> Result<Duration, Duration> {
        match self.0.settings.max_delay {
            None => Ok(Duration::ZERO),
            Some(max) if verdict.delay() <= max => Ok(verdict.delay()),
            Some(max) => Err(verdict.delay() - max),
        }
    }

    /// Returns the response to a denied request or, with `excess`, to one whose delay is too long.
    #[doc(hidden)] // For middleware.
    #[must_use]
    pub fn denial<'a>(&self, verdict: &'a Verdict, excess: Option<Duration>) -> Option<Denial<'a>> {
        let settings = &self.0.settings;
        match excess {
            Some(excess) => Denial::delayed(verdict, excess, settings.has_jitter),
            None => Denial::with_statuses(verdict, settings.statuses, settings.has_jitter),
        }
    }

    /// Returns the response of the [`on_denied`](Self::on_denied) closure, if there is one.
    #[doc(hidden)] // For middleware.
    #[must_use]
    pub fn custom_response(
        &self,
        denial: &Denial<'_>,
        request: &F::Request,
    ) -> Option<F::Response> {
        let respond = self.0.settings.on_denied.as_ref();
        respond.map(|respond| respond(denial, request))
    }

    /// Returns the rate limit headers of a response. With `excess`, the request's delay in a queue
    /// was too long by that time.
    #[doc(hidden)] // For middleware.
    #[must_use]
    pub fn response_headers(&self, verdict: &Verdict, excess: Option<Duration>) -> Headers {
        let settings = &self.0.settings;
        let mut headers = rate_limit_headers(
            verdict,
            settings.format,
            settings.reports_all,
            excess,
            &settings.policy_headers,
        );
        if settings.is_cors {
            let exposed = Bytes::from_static(settings.format.exposed().as_bytes());
            headers.push(Header::new("access-control-expose-headers", exposed));
        }
        headers
    }
}

impl<F: Framework> LimitSettings<F> {
    fn skips(&self, request: &F::Request) -> bool {
        let is_preflight = || {
            let mut methods = SmallVec::new();
            F::headers(request, "access-control-request-method", &mut methods);
            !methods.is_empty()
        };
        let is_uncounted = !self.counts_preflights && F::method(request) == "OPTIONS";
        (is_uncounted && is_preflight()) || self.skip.as_ref().is_some_and(|skip| skip(request))
    }

    fn cost(
        &self,
        own: Option<&ToCost<F::Request>>,
        request: &F::Request,
    ) -> Result<Cost, CostError> {
        own.or(self.cost.as_ref())
            .map_or(Ok(Cost::ONE), |cost| cost(request))
    }
}

fn text<'a, T>(text: &Option<ToText<T>>, request: &'a T) -> Option<Cow<'a, str>> {
    text.as_ref().and_then(|text| text(request))
}
