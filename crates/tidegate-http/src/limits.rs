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
use crate::into_denial_response::IntoDenialResponse;
#[cfg(doc)]
use crate::key::RequestKey;
use crate::limit_rule::{KeyWithCost, LimitChoice, LimitRule};

/// The limits of a service: policies of a gate, the keys they apply to, costs, and the headers that
/// clients see. Clones share their counters.
///
/// # Examples
///
/// ```
/// use tidegate::tower::{Limits, RateLimitLayer, key};
/// use tidegate::{Gate, PolicySet, Rules};
///
/// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("100/minute".parse()?))?);
/// let limits = Limits::new(gate)
///     .limit("api", key::header("x-user-id"))?
///     .skip(|request| request.uri.path() == "/healthz");
/// let layer = RateLimitLayer::new(limits);
/// # let _: RateLimitLayer = layer;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Limits<F: Framework, S: Store = MemoryStore>(pub(crate) Arc<Shared<F, S>>);

pub(crate) struct Shared<F: Framework, S: Store> {
    pub(crate) gate: Gate<S>,
    pub(crate) settings: LimitSettings<F>,
}

pub(crate) type Test<T> = Arc<dyn Fn(&T) -> bool + Send + Sync>;
pub(crate) type ToCost<T> = Arc<dyn Fn(&T) -> Result<Cost, CostError> + Send + Sync>;
pub(crate) type ToText<T> = Arc<dyn for<'a> Fn(&'a T) -> Option<Cow<'a, str>> + Send + Sync>;
pub(crate) type OnDenied<F> = Arc<
    dyn Fn(&Denial<'_>, &<F as Framework>::Request) -> <F as Framework>::Response + Send + Sync,
>;
pub(crate) type Settle<T> = Arc<dyn Fn(&T) -> Option<Cost> + Send + Sync>;

pub(crate) struct LimitSettings<F: Framework> {
    pub(crate) limits: SmallVec<[LimitRule<F>; 2]>,
    /// The policies with a cost of their own, which settlements apply to; `None` for all.
    pub(crate) settled: Option<Arc<[Name]>>,
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
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{Limits, key};
    ///
    /// let limits = Limits::memory("100/minute".parse()?, key::client_address());
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::expect_used)] // The name is valid, and the policy exists.
    pub fn memory(policy: Policy, key: impl Into<KeyWithCost<F>>) -> Self {
        let policies = PolicySet::new()
            .with("default", Rules::new(policy))
            .expect("the name is valid");
        Self::new(Gate::memory(policies))
            .limit("default", key)
            .expect("the policy exists")
    }
}

impl<F: Framework, S: Store> Limits<F, S> {
    /// Creates limits on a gate, without any limit yet.
    pub fn new(gate: Gate<S>) -> Self {
        let settings = LimitSettings {
            limits: SmallVec::new(),
            settled: None,
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

    /// Adds a limit: a policy, the key it applies to, and its [cost](RequestKey::cost) if it is not
    /// that of the other limits.
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
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{Limits, key};
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let gate = Gate::memory(PolicySet::new().with("api", Rules::new("100/minute".parse()?))?);
    /// let limits = Limits::new(gate).limit("api", key::client_address())?;
    /// // The gate has no such policy.
    /// assert!(limits.limit("login", key::client_address()).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limit(self, policy: &str, key: impl Into<KeyWithCost<F>>) -> Result<Self, LimitsError> {
        self.limit_first([(policy, key.into())])
    }

    /// Adds a limit with several policies. The first one whose key the request has applies: limits
    /// per user, and per address for requests without a user.
    ///
    /// # Errors
    ///
    /// Returns an error if the gate lacks one of the policies, or if there are none.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{Limits, key};
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let policies = PolicySet::new()
    ///     .with("per-user", Rules::new("100/minute".parse()?))?
    ///     .with("per-address", Rules::new("10/minute".parse()?))?;
    /// let limits = Limits::new(Gate::memory(policies)).limit_first([
    ///     ("per-user", key::header("x-user-id")),
    ///     ("per-address", key::client_address()),
    /// ])?;
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limit_first<'a, K: Into<KeyWithCost<F>>>(
        self,
        choices: impl IntoIterator<Item = (&'a str, K)>,
    ) -> Result<Self, LimitsError> {
        let mut rule = LimitRule {
            choices: SmallVec::new(),
        };
        for (policy, key) in choices {
            self.0.gate.require(policy)?;
            rule.choices
                .push(LimitChoice::new(Name::new(policy)?, key.into()));
        }
        if rule.choices.is_empty() {
            return Err(LimitsError::NoPolicy);
        }
        Ok(self.set(|settings| {
            settings.limits.push(rule);
            let own = settings.limits.iter().flat_map(|rule| &rule.choices);
            let own = own.filter(|choice| choice.cost.is_some());
            let own: Vec<Name> = own.map(|choice| choice.policy.clone()).collect();
            settings.settled = (!own.is_empty()).then(|| own.into());
        }))
    }

    /// Sets the cost of a request by its head. The default is 1. An invalid cost is answered with
    /// 400.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{Limits, key};
    ///
    /// // An export costs ten requests.
    /// let limits = Limits::memory("100/minute".parse()?, key::client_address())
    ///     .cost(|request| if request.uri.path() == "/export" { 10 } else { 1 });
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{Limits, key};
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let api = Rules::new("100/minute".parse()?).tier("gold", "1_000/minute".parse()?)?;
    /// let gate = Gate::memory(PolicySet::new().with("api", api)?);
    /// let limits = Limits::new(gate)
    ///     .limit("api", key::header("x-user-id"))?
    ///     .tier(|request| request.headers.get("x-tier")?.to_str().ok().map(Into::into));
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tier(
        self,
        tier: impl for<'a> Fn(&'a F::Request) -> Option<Cow<'a, str>> + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.tier = Some(Arc::new(tier)))
    }

    /// Sets the tenant of a request. The same key of another tenant is another client. Derive it
    /// from a trusted source.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{Limits, key};
    ///
    /// let limits = Limits::memory("100/minute".parse()?, key::header("x-user-id"))
    ///     .tenant(|request| request.headers.get("x-tenant")?.to_str().ok().map(Into::into));
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tenant(
        self,
        tenant: impl for<'a> Fn(&'a F::Request) -> Option<Cow<'a, str>> + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.tenant = Some(Arc::new(tenant)))
    }

    /// Skips requests that should not be limited or counted, such as health checks.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{Limits, key};
    ///
    /// let limits = Limits::memory("100/minute".parse()?, key::client_address())
    ///     .skip(|request| request.uri.path() == "/healthz");
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn skip(self, skip: impl Fn(&F::Request) -> bool + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.skip = Some(Arc::new(skip)))
    }

    /// Counts CORS preflight requests too.
    ///
    /// By default they are skipped, because a page cannot read the error of a denied preflight. A
    /// preflight is an OPTIONS request with Access-Control-Request-Method, which any client can
    /// send. Count them if a handler does expensive work for OPTIONS.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{Limits, key};
    ///
    /// let limits = Limits::memory("100/minute".parse()?, key::client_address()).count_preflights();
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn count_preflights(self) -> Self {
        self.set(|settings| settings.counts_preflights = true)
    }

    /// Sets the header format. The default is [`HeaderFormat::Draft11`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{HeaderFormat, Limits, key};
    ///
    /// let limits = Limits::memory("100/minute".parse()?, key::client_address())
    ///     .headers(HeaderFormat::Draft07);
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn headers(self, format: HeaderFormat) -> Self {
        self.set(|settings| settings.format = format)
    }

    /// Reports every limit, and not only the one nearest to exhaustion ([`HeaderFormat::Draft11`]
    /// only).
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{Limits, key};
    ///
    /// let limits = Limits::memory("100/minute".parse()?, key::client_address()).report_all();
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn report_all(self) -> Self {
        self.set(|settings| settings.reports_all = true)
    }

    /// Allows pages of other origins to read the headers: adds Access-Control-Expose-Headers.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{Limits, key};
    ///
    /// let limits = Limits::memory("100/minute".parse()?, key::client_address()).cors();
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cors(self) -> Self {
        self.set(|settings| settings.is_cors = true)
    }

    /// Adds zero or one second to Retry-After at random, so that clients denied at the same time do
    /// not retry at the same time.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{Limits, key};
    ///
    /// let limits = Limits::memory("100/minute".parse()?, key::client_address()).retry_jitter();
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn retry_jitter(self) -> Self {
        self.set(|settings| settings.has_jitter = true)
    }

    /// Sets the status of a request whose cost exceeds the capacity, such as 413. The default is
    /// 429.
    ///
    /// # Panics
    ///
    /// Panics if `status` is not between 400 and 599.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{Limits, key};
    ///
    /// let limits = Limits::memory("100/minute".parse()?, key::client_address()).never_status(413);
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{Limits, key};
    ///
    /// let limits = Limits::memory("100/minute".parse()?, key::client_address()).blocked_status(403);
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn blocked_status(self, status: u16) -> Self {
        assert!(
            (400..600).contains(&status),
            "{status} is not an error status: expected 400 to 599"
        );
        self.set(|settings| settings.statuses.blocked = status)
    }

    /// Sets the response to denied requests, instead of 429 with problem+json. The rate limit
    /// headers are added to it.
    ///
    /// The closure gets the denial, with its [reason](Denial::reason), and the head of the request.
    /// It returns a response of the framework; with the feature `axum`, anything that is
    /// `IntoResponse`.
    ///
    /// # Examples
    ///
    /// ```
    /// use axum::http::StatusCode;
    /// use tidegate::tower::{Limits, key};
    ///
    /// let limits = Limits::memory("100/minute".parse()?, key::client_address()).on_denied(
    ///     |denial, request| {
    ///         let text = format!("{}: {}", request.uri.path(), denial.detail());
    ///         (StatusCode::SERVICE_UNAVAILABLE, text)
    ///     },
    /// );
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_denied<R, M>(
        self,
        on_denied: impl Fn(&Denial<'_>, &F::Request) -> R + Send + Sync + 'static,
    ) -> Self
    where
        R: IntoDenialResponse<F, M>,
    {
        self.set(|settings| {
            settings.on_denied = Some(Arc::new(move |denial, request| {
                on_denied(denial, request).into_denial_response()
            }))
        })
    }

    /// Counts only requests whose response matches, for example failed logins.
    ///
    /// The cost is taken first and given back after the response, so a parallel burst cannot exceed
    /// the limit. It is also given back if the client disconnects or the handler panics.
    ///
    /// A client that can cause responses which do not count is not limited by this. Add another
    /// limit.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{Limits, key};
    ///
    /// // Only failed logins count.
    /// let limits = Limits::memory("5/minute".parse()?, key::client_address())
    ///     .count_when(|response| response.status == 401);
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{Limits, key};
    ///
    /// let limits = Limits::memory("5/minute".parse()?, key::client_address())
    ///     .count_when(|response| response.status == 401)
    ///     .count_aborted();
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn count_aborted(self) -> Self {
        self.set(|settings| settings.counts_aborted = true)
    }

    /// Lets the handler report the actual cost, with a [`Charge`](crate::Charge) in the request's
    /// extensions.
    ///
    /// Set [`cost`](Self::cost) to an estimate. It is taken first, and corrected when the response
    /// body has ended. If nothing is reported, the cost stays taken.
    ///
    /// A settlement applies to the limits with a [cost of their own](RequestKey::cost), and to all
    /// limits if there are none.
    ///
    /// # Examples
    ///
    /// ```
    /// use axum::Extension;
    /// use tidegate::tower::{Charge, Limits, key};
    ///
    /// // Takes 500 before the handler runs. The handler reports the actual cost.
    /// let limits = Limits::memory("10_000/minute".parse()?, key::client_address())
    ///     .cost(|_| 500)
    ///     .settle();
    /// # let _ = limits;
    ///
    /// async fn complete(Extension(charge): Extension<Charge>) -> &'static str {
    ///     let _ = charge.set(120);
    ///     "done"
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn settle(self) -> Self {
        self.set(|settings| settings.settle_mode = SettleMode::Handler)
    }

    /// Sets the actual cost by the head of the response. `None` keeps the cost as taken.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{Limits, key};
    ///
    /// let limits = Limits::memory("100/minute".parse()?, key::client_address())
    ///     .cost(|_| 10)
    ///     .settle_by(|response| response.headers.get("x-cost")?.to_str().ok()?.parse().ok());
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn settle_by(
        self,
        settle: impl Fn(&F::ResponseHead) -> Option<Cost> + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.settle_by = Some(Arc::new(settle)))
    }

    /// Sets the actual cost by the bytes of the response body that were sent: `bytes_per_unit` cost
    /// one unit.
    ///
    /// # Examples
    ///
    /// ```
    /// use tidegate::tower::{Limits, key};
    ///
    /// // 1,000 bytes of a response cost one unit.
    /// let limits = Limits::memory("10_000/minute".parse()?, key::client_address())
    ///     .cost(|_| 100)
    ///     .settle_by_bytes(1_000);
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn settle_by_bytes(self, bytes_per_unit: u64) -> Self {
        self.set(|settings| settings.settle_mode = SettleMode::Bytes(bytes_per_unit))
    }

    /// Delays requests that a leaky_bucket admits, up to `max`. A request that would wait longer is
    /// denied.
    ///
    /// If a client disconnects while it waits, its place stays taken.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate::tower::{Limits, key};
    ///
    /// let limits = Limits::memory("leaky_bucket 10/second burst=20".parse()?, key::client_address())
    ///     .shape(Duration::from_secs(2));
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
            settled: self.settled.clone(),
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
        f.debug_struct("Limits")
            .field("limits", &self.0.settings.limits)
            .field("format", &self.0.settings.format)
            .finish_non_exhaustive()
    }
}
