//! What the requests of a service are held to.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;
use tidegate_core::{
    Book, CheckError, Cost, CostError, Gate, MemoryStore, Name, Policy, Rules, Store, Subject, Verdict,
};

use crate::charge::{Charge, Settling};
use crate::denial::{Denial, Statuses};
use crate::dialect::Dialect;
use crate::fields::{Field, Written, fields};
use crate::framework::Framework;
use crate::key::{Key, KeyBytes};
use crate::prepared::{About, Answer, Prepared};

/// What the requests of a service are held to: which policies of a gate, by which keys, at what cost, and what clients are
/// told. Clones share.
pub struct Limits<F: Framework, S: Store = MemoryStore>(Arc<Shared<F, S>>);

struct Shared<F: Framework, S: Store> {
    gate: Gate<S>,
    settings: Settings<F>,
}

type Test<T> = Arc<dyn Fn(&T) -> bool + Send + Sync>;
type ToCost<T> = Arc<dyn Fn(&T) -> Result<Cost, CostError> + Send + Sync>;
type ToText<T> = Arc<dyn for<'a> Fn(&'a T) -> Option<Cow<'a, str>> + Send + Sync>;
type Refuse<F> = Arc<dyn Fn(&Denial<'_>) -> <F as Framework>::Refusal + Send + Sync>;
type Settle<T> = Arc<dyn Fn(&T) -> Option<Cost> + Send + Sync>;

struct Settings<F: Framework> {
    limits: SmallVec<[(Name, Arc<Key<F>>); 2]>,
    cost: Option<ToCost<F::Request>>,
    tier: Option<ToText<F::Request>>,
    tenant: Option<ToText<F::Request>>,
    skip: Option<Test<F::Request>>,
    counts_preflights: bool,
    dialect: Dialect,
    tells_all: bool,
    is_cors: bool,
    has_jitter: bool,
    statuses: Statuses,
    refuse: Option<Refuse<F>>,
    count_when: Option<Test<F::Reply>>,
    settle_by: Option<Settle<F::Reply>>,
    settling: SettlingKind,
    longest_delay: Option<Duration>,
    counts_aborted: bool,
    /// What has been written of policies before.
    policies: Written,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SettlingKind {
    Not,
    Told,
    Bytes(u64),
}

/// Why there are no limits.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimitsError {
    /// The gate has no policy of the name.
    #[error(transparent)]
    Policy(#[from] CheckError),
    /// The name is not one.
    #[error(transparent)]
    Name(#[from] tidegate_core::NameError),
}

/// Why a request could not be asked about: an answer with an error of its own.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// Nobody has said who is at the other end of the connection.
    #[error(
        "the address of the peer is not known: the server has to pass it on, axum by \
         into_make_service_with_connect_info::<SocketAddr>(), others by a PeerAddress among the request's extensions"
    )]
    NoPeer,
    /// What the request costs is not a cost.
    #[error("what this request costs cannot be told: {0}")]
    Cost(#[from] CostError),
    /// The gate could not be asked.
    #[error(transparent)]
    Check(#[from] CheckError),
}

impl RequestError {
    /// The status of its answer.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::Cost(_) => 400,
            Self::NoPeer | Self::Check(_) => 500,
        }
    }

    /// The body of its answer: `application/problem+json`.
    #[must_use]
    pub fn problem(&self) -> String {
        let status = self.status();
        let title = if status == 400 { "Bad Request" } else { "Internal Server Error" };
        serde_json::json!({ "type": "about:blank", "title": title, "status": status, "detail": self.to_string() })
            .to_string()
    }
}

impl<F: Framework> Limits<F, MemoryStore> {
    /// One policy, in memory, by one key. In header fields it is named `default`.
    #[allow(clippy::expect_used)] // The name is one, and is there.
    pub fn memory(policy: Policy, key: impl Into<Key<F>>) -> Self {
        let book = Book::new().with("default", Rules::new(policy)).expect("a name");
        Self::new(Gate::memory(book)).limit("default", key).expect("a policy that is there")
    }
}

impl<F: Framework, S: Store> Limits<F, S> {
    /// Limits of a gate, none so far.
    pub fn new(gate: Gate<S>) -> Self {
        let settings = Settings {
            limits: SmallVec::new(),
            cost: None,
            tier: None,
            tenant: None,
            skip: None,
            counts_preflights: false,
            dialect: Dialect::default(),
            tells_all: false,
            is_cors: false,
            has_jitter: false,
            statuses: Statuses::default(),
            refuse: None,
            count_when: None,
            settle_by: None,
            settling: SettlingKind::Not,
            longest_delay: None,
            counts_aborted: false,
            policies: Written::default(),
        };
        Self(Arc::new(Shared { gate, settings }))
    }

    fn set(mut self, set: impl FnOnce(&mut Settings<F>)) -> Self {
        set(&mut Arc::make_mut(&mut self.0).settings);
        self
    }

    /// Holds requests to a policy, by a key. Of several limits a request must meet all, all or nothing: what one denies
    /// takes nothing from the others. On a Redis Cluster, where the keys may live on different nodes, they are taken from in
    /// order and given back on a refusal: meanwhile another request may be denied what will be free again.
    ///
    /// # Errors
    /// If the gate's book has no such policy. From now on it must have it: see [`Gate::require`].
    pub fn limit(self, policy: &str, key: impl Into<Key<F>>) -> Result<Self, LimitsError> {
        self.0.gate.require(policy)?;
        let limit = (Name::new(policy)?, Arc::new(key.into()));
        Ok(self.set(|settings| settings.limits.push(limit)))
    }

    /// What a request costs, by its head; 1 where not given. A cost that is not one is answered with 400.
    pub fn cost<C>(self, cost: impl Fn(&F::Request) -> C + Send + Sync + 'static) -> Self
    where
        C: TryInto<Cost, Error: Into<CostError>>,
    {
        self.set(|settings| settings.cost = Some(Arc::new(move |request| cost(request).try_into().map_err(Into::into))))
    }

    /// Of which tier a request is. Let somebody trusted say so: a client that can choose its tier will.
    pub fn tier(self, tier: impl for<'a> Fn(&'a F::Request) -> Option<Cow<'a, str>> + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.tier = Some(Arc::new(tier)))
    }

    /// Of which tenant a request is: the same key of another one is somebody else. Let somebody trusted say so.
    pub fn tenant(
        self,
        tenant: impl for<'a> Fn(&'a F::Request) -> Option<Cow<'a, str>> + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.tenant = Some(Arc::new(tenant)))
    }

    /// Lets requests through that are not to be limited, uncounted: health checks, say.
    pub fn skip(self, skip: impl Fn(&F::Request) -> bool + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.skip = Some(Arc::new(skip)))
    }

    /// Counts preflights, too. Where not given they pass: one that is denied is an error that the browser's page can not
    /// read. A preflight is an OPTIONS request with Access-Control-Request-Method, which anybody can send: where a handler
    /// does something expensive in answer to OPTIONS, count them.
    pub fn count_preflights(self) -> Self {
        self.set(|settings| settings.counts_preflights = true)
    }

    /// In which header fields clients are told; [`Dialect::Draft11`] where not given.
    pub fn headers(self, dialect: Dialect) -> Self {
        self.set(|settings| settings.dialect = dialect)
    }

    /// Tells of every limit what is left, and not only of the one nearest to exhaustion ([`Dialect::Draft11`] only).
    pub fn tell_all(self) -> Self {
        self.set(|settings| settings.tells_all = true)
    }

    /// Lets pages of other origins read the fields: adds Access-Control-Expose-Headers.
    pub fn cors(self) -> Self {
        self.set(|settings| settings.is_cors = true)
    }

    /// Adds a second to Retry-After, or none, at random: clients that were denied together do not all come back together.
    pub fn retry_jitter(self) -> Self {
        self.set(|settings| settings.has_jitter = true)
    }

    /// The status of a request that costs more than its limit will ever allow, such as 413; 429 where not given.
    ///
    /// # Panics
    /// If it is not one of an error, 400 to 599: a mistake in the program, found when it starts.
    pub fn never_status(self, status: u16) -> Self {
        assert!((400..600).contains(&status), "{status} is not the status of an error");
        self.set(|settings| settings.statuses.never = status)
    }

    /// The status of a request by a key that is blocked, such as 403; 429 where not given.
    ///
    /// # Panics
    /// If it is not one of an error, 400 to 599: a mistake in the program, found when it starts.
    pub fn blocked_status(self, status: u16) -> Self {
        assert!((400..600).contains(&status), "{status} is not the status of an error");
        self.set(|settings| settings.statuses.blocked = status)
    }

    /// What is answered in the place of 429 and problem+json. The header fields are added to it.
    pub fn on_denied(self, refuse: impl Fn(&Denial<'_>) -> F::Refusal + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.refuse = Some(Arc::new(refuse)))
    }

    /// Counts only requests whose answer passes: failed log-ins, say. Taken first and given back after, so that no burst in
    /// parallel gets past the limit; given back, too, if the client goes away or the handler panics.
    ///
    /// Whoever can bring about answers that do not count is not limited by this: have another limit beside it.
    pub fn count_when(self, counts: impl Fn(&F::Reply) -> bool + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.count_when = Some(Arc::new(counts)))
    }

    /// Counts requests whose client goes away before there is an answer, or whose handler panics, where
    /// [`count_when`](Self::count_when) would give them back: for log-ins, whose failure can be told by how long they take.
    pub fn count_aborted(self) -> Self {
        self.set(|settings| settings.counts_aborted = true)
    }

    /// Puts a [`Charge`] among the request's extensions: what the handler tells it is what the request costs in the end. Let
    /// [`cost`](Self::cost) be the most it can be: that is taken first, and the rest given back once the answer's body has
    /// ended. What nobody tells is kept as it was taken.
    pub fn settle(self) -> Self {
        self.set(|settings| settings.settling = SettlingKind::Told)
    }

    /// Settles by the head of the answer: what the closure answers is what the request costs in the end, and `None` that
    /// what was taken was right.
    pub fn settle_by(self, settle: impl Fn(&F::Reply) -> Option<Cost> + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.settle_by = Some(Arc::new(settle)))
    }

    /// Settles by the bytes of the answer's body that were sent: so many cost one unit.
    pub fn settle_by_bytes(self, bytes_a_unit: u64) -> Self {
        self.set(|settings| settings.settling = SettlingKind::Bytes(bytes_a_unit))
    }

    /// Shapes: a request that a leaky_bucket admits waits its delay, up to so long; one that would wait for longer is denied.
    /// What a client that goes away meanwhile has taken is given back.
    pub fn shape(self, longest: Duration) -> Self {
        self.set(|settings| settings.longest_delay = Some(longest))
    }

    /// The gate.
    #[must_use]
    pub fn gate(&self) -> &Gate<S> {
        &self.0.gate
    }

    /// What is to be asked about a request; `None` if it goes on unasked.
    ///
    /// # Errors
    /// If it cannot be asked about.
    #[doc(hidden)] // For middleware, and its tests.
    pub fn prepare<'a>(&self, request: &'a F::Request) -> Result<Option<Prepared<'a>>, RequestError> {
        let settings = &self.0.settings;
        if settings.skips(request) {
            return Ok(None);
        }
        let mut keys = SmallVec::new();
        for (_, key) in &settings.limits {
            let mut bytes = KeyBytes::new();
            key.write(request, &mut bytes).map_err(|_| RequestError::NoPeer)?;
            keys.push(bytes);
        }
        let (tier, tenant) = (text(&settings.tier, request), text(&settings.tenant, request));
        Ok(Some(Prepared { keys, tier, tenant, cost: settings.cost(request)? }))
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
                let answer = if settings.skips(request) { None } else { self.ask_about_one(policy, key, request)? };
                Ok(answer.map_or(About::Nothing, About::Answered))
            }
            _ => {
                let Some(prepared) = self.prepare(request)? else { return Ok(About::Nothing) };
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
        key.write(request, &mut bytes).map_err(|_| RequestError::NoPeer)?;
        let (tier, tenant) = (text(&settings.tier, request), text(&settings.tenant, request));
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
        Some(self.0.gate.decide_at_once(subjects)?.map(|verdict| (verdict, None)))
    }

    /// Whether what a request takes may have to be given back once there is an answer.
    pub(crate) fn charges_by_outcome(&self) -> bool {
        let settings = &self.0.settings;
        settings.count_when.is_some() || settings.settle_by.is_some() || settings.settling != SettlingKind::Not
    }

    /// The policies that requests are held to, in their order.
    pub(crate) fn policies(&self) -> impl Iterator<Item = &str> {
        self.0.settings.limits.iter().map(|(policy, _)| policy.as_str())
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
    pub fn answered(&self, open: &mut crate::charge::Open<S>, reply: &F::Reply) {
        let settings = &self.0.settings;
        if settings.count_when.as_ref().is_some_and(|counts| !counts(reply)) {
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
            None => Denial::new(verdict, self.0.settings.statuses, self.0.settings.has_jitter),
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
        let mut fields = fields(verdict, settings.dialect, settings.tells_all, excess, &settings.policies);
        if settings.is_cors {
            let value = Bytes::from_static(settings.dialect.exposed().as_bytes());
            fields.push(Field { name: "access-control-expose-headers", value });
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
        self.cost.as_ref().map_or(Ok(Cost::ONE), |cost| cost(request))
    }
}

fn text<'a, T>(text: &Option<ToText<T>>, request: &'a T) -> Option<Cow<'a, str>> {
    text.as_ref().and_then(|text| text(request))
}

impl<F: Framework> Clone for Settings<F> {
    fn clone(&self) -> Self {
        Self {
            limits: self.limits.clone(),
            cost: self.cost.clone(),
            tier: self.tier.clone(),
            tenant: self.tenant.clone(),
            skip: self.skip.clone(),
            refuse: self.refuse.clone(),
            count_when: self.count_when.clone(),
            settle_by: self.settle_by.clone(),
            policies: Written::default(),
            ..*self
        }
    }
}

impl<F: Framework, S: Store> Clone for Shared<F, S> {
    fn clone(&self) -> Self {
        Self { gate: self.gate.clone(), settings: self.settings.clone() }
    }
}

impl<F: Framework, S: Store> Clone for Limits<F, S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<F: Framework, S: Store> std::fmt::Debug for Limits<F, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let limits: Vec<_> = self.0.settings.limits.iter().map(|(name, key)| (name, key)).collect();
        f.debug_struct("Limits")
            .field("limits", &limits)
            .field("dialect", &self.0.settings.dialect)
            .finish_non_exhaustive()
    }
}
