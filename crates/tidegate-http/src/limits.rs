//! The limits of a service, and the settings of its middleware.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, CostError, Gate, MemoryStore, Name, Policy, PolicySet, Rules, Store};

use crate::denial::{Denial, DenialStatuses};
use crate::error::LimitsError;
use crate::framework::Framework;
use crate::header_format::HeaderFormat;
use crate::headers::PolicyHeaderCache;
use crate::key::RequestKey;

/// The limits of a service: policies of a gate, the keys they apply to, costs, and the headers that
/// clients see. Clones share their counters.
pub struct Limits<F: Framework, S: Store = MemoryStore>(pub(crate) Arc<Shared<F, S>>);

pub(crate) struct Shared<F: Framework, S: Store> {
    pub(crate) gate: Gate<S>,
    pub(crate) settings: LimitSettings<F>,
}

pub(crate) type Test<T> = Arc<dyn Fn(&T) -> bool + Send + Sync>;
pub(crate) type ToCost<T> = Arc<dyn Fn(&T) -> Result<Cost, CostError> + Send + Sync>;
pub(crate) type ToText<T> = Arc<dyn for<'a> Fn(&'a T) -> Option<Cow<'a, str>> + Send + Sync>;
pub(crate) type OnDenied<F> = Arc<dyn Fn(&Denial<'_>) -> <F as Framework>::Response + Send + Sync>;
pub(crate) type Settle<T> = Arc<dyn Fn(&T) -> Option<Cost> + Send + Sync>;

pub(crate) struct LimitSettings<F: Framework> {
    pub(crate) limits: SmallVec<[(Name, Arc<RequestKey<F>>); 2]>,
    pub(crate) cost: Option<ToCost<F::Request>>,
    pub(crate) tier: Option<ToText<F::Request>>,
    pub(crate) tenant: Option<ToText<F::Request>>,
    pub(crate) skip: Option<Test<F::Request>>,
    pub(crate) counts_preflights: bool,
    pub(crate) format: HeaderFormat,
    pub(crate) reports_all: bool,
    pub(crate) is_cors: bool,
    pub(crate) has_jitter: bool,
    pub(crate) statuses: DenialStatuses,
    pub(crate) on_denied: Option<OnDenied<F>>,
    pub(crate) count_when: Option<Test<F::ResponseHead>>,
    pub(crate) settle_by: Option<Settle<F::ResponseHead>>,
    pub(crate) settle_mode: SettleMode,
    pub(crate) max_delay: Option<Duration>,
    pub(crate) counts_aborted: bool,
    /// The last policy header.
    pub(crate) policy_headers: PolicyHeaderCache,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SettleMode {
    Never,
    Handler,
    Bytes(u64),
}

impl<F: Framework> Limits<F, MemoryStore> {
    /// Creates limits with one policy in memory and one key. In headers the policy's name is
    /// `default`.
    #[allow(clippy::expect_used)] // The name is one, and is there.
    pub fn memory(policy: Policy, key: impl Into<RequestKey<F>>) -> Self {
        let policies = PolicySet::new()
            .with("default", Rules::new(policy))
            .expect("a name");
        Self::new(Gate::memory(policies))
            .limit("default", key)
            .expect("a policy that is there")
    }
}

impl<F: Framework, S: Store> Limits<F, S> {
    /// Creates limits on a gate, without any limit yet.
    pub fn new(gate: Gate<S>) -> Self {
        let settings = LimitSettings {
            limits: SmallVec::new(),
            cost: None,
            tier: None,
            tenant: None,
            skip: None,
            counts_preflights: false,
            format: HeaderFormat::default(),
            reports_all: false,
            is_cors: false,
            has_jitter: false,
            statuses: DenialStatuses::default(),
            on_denied: None,
            count_when: None,
            settle_by: None,
            settle_mode: SettleMode::Never,
            max_delay: None,
            counts_aborted: false,
            policy_headers: PolicyHeaderCache::default(),
        };
        Self(Arc::new(Shared { gate, settings }))
    }

    fn set(mut self, set: impl FnOnce(&mut LimitSettings<F>)) -> Self {
        set(&mut Arc::make_mut(&mut self.0).settings);
        self
    }

    /// Adds a limit: a policy, and the key it applies to.
    ///
    /// A request must meet all limits, all or nothing: a request that one limit denies takes
    /// nothing from the others. On a Redis Cluster the keys may be on different nodes. They are
    /// then taken from in order and given back on a denial; in between, other requests may be
    /// denied capacity that is about to be freed.
    ///
    /// # Errors
    ///
    /// Returns an error if the gate does not have the policy. From now on the policy is required,
    /// see [`Gate::require`].
    pub fn limit(self, policy: &str, key: impl Into<RequestKey<F>>) -> Result<Self, LimitsError> {
        self.0.gate.require(policy)?;
        let limit = (Name::new(policy)?, Arc::new(key.into()));
        Ok(self.set(|settings| settings.limits.push(limit)))
    }

    /// Sets the cost of a request by its head. The default is 1. An invalid cost is answered with
    /// 400.
    pub fn cost<C>(self, cost: impl Fn(&F::Request) -> C + Send + Sync + 'static) -> Self
    where
        C: TryInto<Cost, Error: Into<CostError>>,
    {
        self.set(|settings| {
            settings.cost = Some(Arc::new(move |request| {
                cost(request).try_into().map_err(Into::into)
            }))
        })
    }

    /// Sets the tier of a request. Derive it from a trusted source: a client that can choose its
    /// tier will.
    pub fn tier(
        self,
        tier: impl for<'a> Fn(&'a F::Request) -> Option<Cow<'a, str>> + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.tier = Some(Arc::new(tier)))
    }

    /// Sets the tenant of a request. The same key of another tenant is another client. Derive it
    /// from a trusted source.
    pub fn tenant(
        self,
        tenant: impl for<'a> Fn(&'a F::Request) -> Option<Cow<'a, str>> + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.tenant = Some(Arc::new(tenant)))
    }

    /// Skips requests that should not be limited or counted, such as health checks.
    pub fn skip(self, skip: impl Fn(&F::Request) -> bool + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.skip = Some(Arc::new(skip)))
    }

    /// Counts CORS preflight requests too.
    ///
    /// By default they are skipped, because a page cannot read the error of a denied preflight. A
    /// preflight is an OPTIONS request with Access-Control-Request-Method, which any client can
    /// send. Count them if a handler does expensive work for OPTIONS.
    pub fn count_preflights(self) -> Self {
        self.set(|settings| settings.counts_preflights = true)
    }

    /// Sets the header format. The default is [`HeaderFormat::Draft11`].
    pub fn headers(self, format: HeaderFormat) -> Self {
        self.set(|settings| settings.format = format)
    }

    /// Reports every limit, and not only the one nearest to exhaustion ([`HeaderFormat::Draft11`]
    /// only).
    pub fn report_all(self) -> Self {
        self.set(|settings| settings.reports_all = true)
    }

    /// Allows pages of other origins to read the headers: adds Access-Control-Expose-Headers.
    pub fn cors(self) -> Self {
        self.set(|settings| settings.is_cors = true)
    }

    /// Adds zero or one second to Retry-After at random, so that clients denied at the same time do
    /// not retry at the same time.
    pub fn retry_jitter(self) -> Self {
        self.set(|settings| settings.has_jitter = true)
    }

    /// Sets the status of a request whose cost exceeds the capacity, such as 413. The default is
    /// 429.
    ///
    /// # Panics
    ///
    /// Panics if `status` is not between 400 and 599.
    pub fn never_status(self, status: u16) -> Self {
        assert!(
            (400..600).contains(&status),
            "{status} is not an error status: expected 400 to 599"
        );
        self.set(|settings| settings.statuses.never = status)
    }

    /// Sets the status of a request of a blocked key, such as 403. The default is 429.
    ///
    /// # Panics
    ///
    /// Panics if `status` is not between 400 and 599.
    pub fn blocked_status(self, status: u16) -> Self {
        assert!(
            (400..600).contains(&status),
            "{status} is not an error status: expected 400 to 599"
        );
        self.set(|settings| settings.statuses.blocked = status)
    }

    /// Sets the response to denied requests, instead of 429 with problem+json. The rate limit
    /// headers are added to it.
    pub fn on_denied(
        self,
        on_denied: impl Fn(&Denial<'_>) -> F::Response + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.on_denied = Some(Arc::new(on_denied)))
    }

    /// Counts only requests whose response matches, for example failed logins.
    ///
    /// The cost is taken first and given back after the response, so a parallel burst cannot exceed
    /// the limit. It is also given back if the client disconnects or the handler panics.
    ///
    /// A client that can cause responses which do not count is not limited by this. Add another
    /// limit.
    pub fn count_when(
        self,
        counts: impl Fn(&F::ResponseHead) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.count_when = Some(Arc::new(counts)))
    }

    /// Keeps the cost of requests whose client disconnects before the response, or whose handler
    /// panics.
    ///
    /// By default [`count_when`](Self::count_when) gives it back. Set this for logins, where a
    /// failure can be inferred from the response time.
    pub fn count_aborted(self) -> Self {
        self.set(|settings| settings.counts_aborted = true)
    }

    /// Lets the handler report the actual cost, with a [`Charge`](crate::Charge) in the request's
    /// extensions.
    ///
    /// Set [`cost`](Self::cost) to the maximum. It is taken first, and the rest is given back when
    /// the response body has ended. If nothing is reported, the cost stays taken.
    pub fn settle(self) -> Self {
        self.set(|settings| settings.settle_mode = SettleMode::Handler)
    }

    /// Sets the actual cost by the head of the response. `None` keeps the cost as taken.
    pub fn settle_by(
        self,
        settle: impl Fn(&F::ResponseHead) -> Option<Cost> + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.settle_by = Some(Arc::new(settle)))
    }

    /// Sets the actual cost by the bytes of the response body that were sent: `bytes_per_unit` cost
    /// one unit.
    pub fn settle_by_bytes(self, bytes_per_unit: u64) -> Self {
        self.set(|settings| settings.settle_mode = SettleMode::Bytes(bytes_per_unit))
    }

    /// Delays requests that a leaky_bucket admits, up to `max`. A request that would wait longer is
    /// denied.
    ///
    /// If a client disconnects while it waits, its place stays taken.
    pub fn shape(self, max: Duration) -> Self {
        self.set(|settings| settings.max_delay = Some(max))
    }

    /// Returns the gate.
    #[must_use]
    pub fn gate(&self) -> &Gate<S> {
        &self.0.gate
    }
}

impl<F: Framework> Clone for LimitSettings<F> {
    fn clone(&self) -> Self {
        Self {
            limits: self.limits.clone(),
            cost: self.cost.clone(),
            tier: self.tier.clone(),
            tenant: self.tenant.clone(),
            skip: self.skip.clone(),
            on_denied: self.on_denied.clone(),
            count_when: self.count_when.clone(),
            settle_by: self.settle_by.clone(),
            policy_headers: PolicyHeaderCache::default(),
            ..*self
        }
    }
}

impl<F: Framework, S: Store> Clone for Shared<F, S> {
    fn clone(&self) -> Self {
        Self {
            gate: self.gate.clone(),
            settings: self.settings.clone(),
        }
    }
}

impl<F: Framework, S: Store> Clone for Limits<F, S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<F: Framework, S: Store> std::fmt::Debug for Limits<F, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let limits: Vec<_> = self
            .0
            .settings
            .limits
            .iter()
            .map(|(name, key)| (name, key))
            .collect();
        f.debug_struct("Limits")
            .field("limits", &limits)
            .field("format", &self.0.settings.format)
            .finish_non_exhaustive()
    }
}
