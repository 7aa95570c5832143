//! The gate: a book of policies on a store. What middleware and servers hold.

mod compiled;
mod decide;
mod receipt;
mod request;
mod tally;
mod verdict;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use compiled::Compiled;
pub use receipt::Receipt;
pub(crate) use receipt::Taken;
pub use request::Ask;
pub use tally::PolicyCounters;
pub use verdict::{Effect, Label, Ruling, Verdict};

use crate::book::{Book, BookError};
use crate::clock::Clock;
use crate::health::StoreHealth;
use crate::limiter::{CheckError, FailurePolicy, Limiter, Settings};
use crate::memory::MemoryStore;
use crate::name::Name;
use crate::policy::{Algorithm, Limit, Policy, PolicyError, Rate};
use crate::store::{ANY_RATE, Store};

/// A [`Book`] of policies on a store. Clones share, and the book can be exchanged while all of them are in use.
///
/// ```
/// use tidegate_core::{Book, Gate, Rules};
///
/// let api = Rules::new("fixed_window 2/hour".parse()?).tier("premium", "fixed_window 4/hour".parse()?)?;
/// let gate = Gate::memory(Book::new().with("api", api)?);
/// assert!(gate.check("api", "user:42").cost(2).now()?.is_allowed());
/// assert!(gate.check("api", "user:42").now()?.is_denied());
/// // Each tier counts apart.
/// assert_eq!(gate.check("api", "user:42").tier("premium").now()?.remaining(), Some(3));
/// // The same key of a tenant is somebody else.
/// assert!(gate.check("api", "user:42").tenant("acme").now()?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Gate<S: Store = MemoryStore> {
    shared: Arc<Shared<S>>,
}

struct Shared<S: Store> {
    store: Arc<S>,
    settings: Settings,
    /// For limits that come with a request: there may be many different ones.
    inline: Settings,
    book: ArcSwap<Compiled<S>>,
    /// Policies that somebody has said will be asked for. Held while books are exchanged, too.
    in_use: Mutex<BTreeSet<Name>>,
}

impl Gate<MemoryStore> {
    /// A gate on a memory store of its own, with [`MemoryStore::DEFAULT_MAX_KEYS`].
    ///
    /// # Panics
    /// If the system has not the 46 MB of address space to reserve.
    #[must_use]
    #[allow(clippy::expect_used)] // As any allocation of this size in Rust does.
    pub fn memory(book: Book) -> Self {
        Self::new(
            MemoryStore::builder()
                .build()
                .expect("46 MB of address space"),
            book,
        )
    }
}

impl<S: Store> Gate<S> {
    /// A gate on a store.
    #[must_use]
    pub fn new(store: S, book: Book) -> Self {
        Self::builder(store, book).build()
    }

    /// A gate with settings of its own.
    pub fn builder(store: S, book: Book) -> GateBuilder<S> {
        GateBuilder {
            store,
            book,
            settings: Settings::default(),
        }
    }

    /// Replaces the book in use, whole or not at all. Policies that keep their names keep the counts of their windows and
    /// logs. A bucket with another rate or burst is another bucket and starts full.
    ///
    /// # Errors
    /// If a policy is missing that is [in use](Self::require).
    pub fn exchange(&self, book: Book) -> Result<(), BookError> {
        let in_use = self.shared.in_use.lock();
        if let Some(missing) = in_use
            .iter()
            .find(|name| book.rules(name.as_str()).is_none())
        {
            return Err(BookError::PolicyInUse(missing.clone()));
        }
        let old = self.shared.book.load();
        let new = Compiled::new(&self.shared.store, &self.shared.settings, book, Some(&old));
        self.shared.book.store(Arc::new(new));
        Ok(())
    }

    /// Another gate on the same store, with the same settings and a book of its own. Policies of one name count together.
    #[must_use]
    pub fn with_book(&self, book: Book) -> Self {
        let shared = &self.shared;
        let book =
            ArcSwap::from_pointee(Compiled::new(&shared.store, &shared.settings, book, None));
        let (store, settings, inline) = (
            Arc::clone(&shared.store),
            shared.settings.clone(),
            shared.inline.clone(),
        );
        Self {
            shared: Arc::new(Shared {
                store,
                settings,
                inline,
                book,
                in_use: Mutex::default(),
            }),
        }
    }

    /// What is to take this gate's place, under another book: on the same store, and counting on where this one is. What a
    /// server exchanges together with all else that is configured.
    #[must_use]
    pub fn renewed(&self, book: Book) -> Self {
        let shared = &self.shared;
        let old = shared.book.load();
        let book = ArcSwap::from_pointee(Compiled::new(
            &shared.store,
            &shared.settings,
            book,
            Some(&old),
        ));
        let (store, settings, inline) = (
            Arc::clone(&shared.store),
            shared.settings.clone(),
            shared.inline.clone(),
        );
        let in_use = Mutex::new(shared.in_use.lock().clone());
        Self {
            shared: Arc::new(Shared {
                store,
                settings,
                inline,
                book,
                in_use,
            }),
        }
    }

    /// Returns a limiter on the same store, with the same settings, for limits that come with a request. Its keys must come
    /// from `composed_key`.
    #[doc(hidden)] // For Tidegate's own servers.
    #[must_use]
    pub fn limiter(&self, policy: Policy) -> Limiter<S> {
        self.limiter_in("", policy)
    }

    /// Returns a limiter for a bucket whose rate comes with each request. A key has one bucket, whatever the rate. It is
    /// never brought back to a smaller capacity: a request under one is denied until the bucket has room under it.
    #[doc(hidden)] // For Tidegate's own servers.
    #[must_use]
    pub fn bucket(&self, limit: BucketLimit) -> Limiter<S> {
        self.limiter_in(ANY_RATE, limit.0)
    }

    fn limiter_in(&self, namespace: &str, policy: Policy) -> Limiter<S> {
        Limiter::on(
            Arc::clone(&self.shared.store),
            policy,
            namespace.into(),
            self.shared.inline.clone(),
        )
    }

    /// Says that a policy will be asked for, so that it is missed now and not at a request; from now on no book can take
    /// the place of this one that has not got it.
    ///
    /// # Errors
    /// If there is no such policy.
    pub fn require(&self, policy: &str) -> Result<(), CheckError> {
        let mut in_use = self.shared.in_use.lock();
        let book = self.shared.book.load();
        in_use.insert(book.policy(policy)?.name().clone());
        Ok(())
    }

    /// Whether there is a policy of this name.
    ///
    /// # Errors
    /// If there is not: with the names there are.
    pub fn knows(&self, policy: &str) -> Result<(), CheckError> {
        self.shared.book.load().policy(policy).map(drop)
    }

    /// The book in use.
    #[must_use]
    pub fn book(&self) -> Book {
        self.shared.book.load().book().clone()
    }

    /// The store it keeps its records in.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// May this request go on? It costs 1; [`Ask::cost`] says otherwise.
    pub fn check<'a, K: AsRef<[u8]> + ?Sized>(&'a self, policy: &'a str, key: &'a K) -> Ask<'a, S> {
        Ask::new(self, policy, key.as_ref())
    }

    /// What each policy has answered so far, in the order of their names.
    #[must_use]
    pub fn counters(&self) -> Vec<PolicyCounters> {
        let book = self.shared.book.load();
        book.policies()
            .map(compiled::NamedPolicy::counters)
            .collect()
    }

    /// How the store is, as seen from here; `None` in memory.
    #[must_use]
    pub fn store_health(&self) -> Option<StoreHealth> {
        self.shared.store.health()
    }
}

/// A policy of one gcra limit: a bucket, and nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketLimit(Policy);

impl BucketLimit {
    /// A bucket of `burst` that is refilled at a rate.
    ///
    /// # Errors
    /// If a number is out of bounds.
    pub fn new(rate: Rate, burst: u64) -> Result<Self, PolicyError> {
        let policy = Policy::new([Limit::new(Algorithm::Gcra, rate).burst(burst)])?;
        Ok(Self(policy.with_any_rate().unwrap_or(policy)))
    }
}

impl<S: Store> Clone for Gate<S> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S: Store> fmt::Debug for Gate<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.book().names().map(ToString::to_string).collect();
        f.debug_struct("Gate")
            .field("policies", &names)
            .finish_non_exhaustive()
    }
}

/// What configures a [`Gate`] on a remote store. In memory there is nothing that these settings could do.
#[must_use]
pub struct GateBuilder<S: Store> {
    store: S,
    book: Book,
    settings: Settings,
}

impl<S: Store> GateBuilder<S> {
    /// What is answered when the store cannot, by policies that do not say; [`FailurePolicy::Local`] where not given.
    pub fn failure_policy(mut self, failure: FailurePolicy) -> Self {
        self.settings.failure = failure;
        self
    }

    /// How many denials of each policy are remembered; 16,384 where not given, none with 0.
    pub fn deny_cache(mut self, keys: usize) -> Self {
        self.settings.deny_cache = keys;
        self
    }

    /// The clock that remembered denials and local decisions go by; the system's where not given.
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.settings.clock = clock.into();
        self
    }

    /// The gate.
    #[must_use]
    pub fn build(self) -> Gate<S> {
        let Self {
            store,
            book,
            settings,
        } = self;
        let store = Arc::new(store);
        let book = ArcSwap::from_pointee(Compiled::new(&store, &settings, book, None));
        let inline = settings.sharing_denials();
        Gate {
            shared: Arc::new(Shared {
                store,
                settings,
                inline,
                book,
                in_use: Mutex::default(),
            }),
        }
    }
}
