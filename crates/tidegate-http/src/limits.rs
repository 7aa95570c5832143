//! What the requests of a service are held to.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Book, Cost, CostError, Gate, MemoryStore, Name, Policy, Rules, Store};

use crate::denial::{Denial, Statuses};
use crate::dialect::Dialect;
use crate::error::LimitsError;
use crate::fields::Written;
use crate::framework::Framework;
use crate::key::Key;

/// What the requests of a service are held to: which policies of a gate, by which keys, at what cost, and what clients are
/// told. Clones share.
pub struct Limits<F: Framework, S: Store = MemoryStore>(pub(crate) Arc<Shared<F, S>>);

pub(crate) struct Shared<F: Framework, S: Store> {
    pub(crate) gate: Gate<S>,
    pub(crate) settings: Settings<F>,
}

pub(crate) type Test<T> = Arc<dyn Fn(&T) -> bool + Send + Sync>;
pub(crate) type ToCost<T> = Arc<dyn Fn(&T) -> Result<Cost, CostError> + Send + Sync>;
pub(crate) type ToText<T> = Arc<dyn for<'a> Fn(&'a T) -> Option<Cow<'a, str>> + Send + Sync>;
pub(crate) type Refuse<F> = Arc<dyn Fn(&Denial<'_>) -> <F as Framework>::Refusal + Send + Sync>;
pub(crate) type Settle<T> = Arc<dyn Fn(&T) -> Option<Cost> + Send + Sync>;

pub(crate) struct Settings<F: Framework> {
    pub(crate) limits: SmallVec<[(Name, Arc<Key<F>>); 2]>,
    pub(crate) cost: Option<ToCost<F::Request>>,
    pub(crate) tier: Option<ToText<F::Request>>,
    pub(crate) tenant: Option<ToText<F::Request>>,
    pub(crate) skip: Option<Test<F::Request>>,
    pub(crate) counts_preflights: bool,
    pub(crate) dialect: Dialect,
    pub(crate) tells_all: bool,
    pub(crate) is_cors: bool,
    pub(crate) has_jitter: bool,
    pub(crate) statuses: Statuses,
    pub(crate) refuse: Option<Refuse<F>>,
    pub(crate) count_when: Option<Test<F::Reply>>,
    pub(crate) settle_by: Option<Settle<F::Reply>>,
    pub(crate) settling: SettlingKind,
    pub(crate) longest_delay: Option<Duration>,
    pub(crate) counts_aborted: bool,
    /// What has been written of policies before.
    pub(crate) policies: Written,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SettlingKind {
    Not,
    Told,
    Bytes(u64),
}

impl<F: Framework> Limits<F, MemoryStore> {
    /// One policy, in memory, by one key. In header fields it is named `default`.
    #[allow(clippy::expect_used)] // The name is one, and is there.
    pub fn memory(policy: Policy, key: impl Into<Key<F>>) -> Self {
        let book = Book::new()
            .with("default", Rules::new(policy))
            .expect("a name");
        Self::new(Gate::memory(book))
            .limit("default", key)
            .expect("a policy that is there")
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
        self.set(|settings| {
            settings.cost = Some(Arc::new(move |request| {
                cost(request).try_into().map_err(Into::into)
            }))
        })
    }

    /// Of which tier a request is. Let somebody trusted say so: a client that can choose its tier will.
    pub fn tier(
        self,
        tier: impl for<'a> Fn(&'a F::Request) -> Option<Cow<'a, str>> + Send + Sync + 'static,
    ) -> Self {
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
        assert!(
            (400..600).contains(&status),
            "{status} is not the status of an error"
        );
        self.set(|settings| settings.statuses.never = status)
    }

    /// The status of a request by a key that is blocked, such as 403; 429 where not given.
    ///
    /// # Panics
    /// If it is not one of an error, 400 to 599: a mistake in the program, found when it starts.
    pub fn blocked_status(self, status: u16) -> Self {
        assert!(
            (400..600).contains(&status),
            "{status} is not the status of an error"
        );
        self.set(|settings| settings.statuses.blocked = status)
    }

    /// What is answered in the place of 429 and problem+json. The header fields are added to it.
    pub fn on_denied(
        self,
        refuse: impl Fn(&Denial<'_>) -> F::Refusal + Send + Sync + 'static,
    ) -> Self {
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

    /// Puts a [`Charge`](crate::Charge) among the request's extensions: what the handler tells it is what the request costs in the end. Let
    /// [`cost`](Self::cost) be the most it can be: that is taken first, and the rest given back once the answer's body has
    /// ended. What nobody tells is kept as it was taken.
    pub fn settle(self) -> Self {
        self.set(|settings| settings.settling = SettlingKind::Told)
    }

    /// Settles by the head of the answer: what the closure answers is what the request costs in the end, and `None` that
    /// what was taken was right.
    pub fn settle_by(
        self,
        settle: impl Fn(&F::Reply) -> Option<Cost> + Send + Sync + 'static,
    ) -> Self {
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
            .field("dialect", &self.0.settings.dialect)
            .finish_non_exhaustive()
    }
}
