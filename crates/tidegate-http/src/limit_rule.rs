//! One limit of a service: its policy, its key and its cost.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Cost, CostError, Name};

use crate::client_address::ClientAddress;
use crate::error::RequestError;
use crate::framework::Framework;
use crate::key::{KeyBytes, Presence, RequestKey};
use crate::limits::ToCost;

/// A key with the cost of a request under its limit. [`RequestKey::cost`] creates it.
#[must_use]
pub struct KeyWithCost<F: Framework> {
    key: RequestKey<F>,
    cost: Option<ToCost<F::Request>>,
}

impl<F: Framework> RequestKey<F> {
    /// Sets the cost of a request under the limit with this key. Limits without a cost of their own
    /// use [`Limits::cost`](crate::Limits::cost), or 1.
    ///
    /// # Examples
    ///
    /// One request, and an estimate of its tokens:
    ///
    /// ```
    /// use tidegate::tower::{Limits, key};
    /// use tidegate::{Gate, PolicySet, Rules};
    ///
    /// let policies = PolicySet::new()
    ///     .with("requests", Rules::new("10/minute".parse()?))?
    ///     .with("tokens", Rules::new("10_000/minute debt=50_000".parse()?))?;
    /// let limits = Limits::new(Gate::memory(policies))
    ///     .limit("requests", key::header("x-user-id"))?
    ///     .limit("tokens", key::header("x-user-id").cost(|_request| 1_500))?;
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cost<C>(self, cost: impl Fn(&F::Request) -> C + Send + Sync + 'static) -> KeyWithCost<F>
    where
        C: TryInto<Cost, Error: Into<CostError>>,
    {
        KeyWithCost {
            key: self,
            cost: Some(Arc::new(move |request| {
                cost(request).try_into().map_err(Into::into)
            })),
        }
    }
}

impl<F: Framework> From<RequestKey<F>> for KeyWithCost<F> {
    fn from(key: RequestKey<F>) -> Self {
        Self { key, cost: None }
    }
}

impl<F: Framework> From<ClientAddress> for KeyWithCost<F> {
    fn from(address: ClientAddress) -> Self {
        RequestKey::from(address).into()
    }
}

impl<F: Framework> std::fmt::Debug for KeyWithCost<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyWithCost")
            .field("key", &self.key)
            .field("has_cost", &self.cost.is_some())
            .finish()
    }
}

/// One limit: the first of its policies whose key the request has.
pub(crate) struct LimitRule<F: Framework> {
    pub(crate) choices: SmallVec<[LimitChoice<F>; 1]>,
}

/// A policy, its key and its cost.
pub(crate) struct LimitChoice<F: Framework> {
    pub(crate) policy: Name,
    key: Arc<RequestKey<F>>,
    pub(crate) cost: Option<ToCost<F::Request>>,
}

impl<F: Framework> LimitChoice<F> {
    pub(crate) fn new(policy: Name, KeyWithCost { key, cost }: KeyWithCost<F>) -> Self {
        Self {
            policy,
            key: Arc::new(key),
            cost,
        }
    }

    /// Writes the key of a request.
    pub(crate) fn write_key(
        &self,
        request: &F::Request,
        key: &mut KeyBytes,
    ) -> Result<Presence, RequestError> {
        self.key.write(request, key)
    }
}

impl<F: Framework> LimitRule<F> {
    /// Returns the policy that applies to a request, and its key. If the request lacks all keys, the
    /// last policy applies.
    pub(crate) fn choose(&self, request: &F::Request) -> Result<(usize, KeyBytes), RequestError> {
        let mut key = KeyBytes::new();
        for (index, choice) in self.choices.iter().enumerate() {
            key.clear();
            let presence = choice.write_key(request, &mut key)?;
            if presence == Presence::Present || index + 1 == self.choices.len() {
                return Ok((index, key));
            }
        }
        Ok((0, key))
    }
}

impl<F: Framework> Clone for LimitRule<F> {
    fn clone(&self) -> Self {
        let choices = self.choices.iter().map(|choice| LimitChoice {
            policy: choice.policy.clone(),
            key: Arc::clone(&choice.key),
            cost: choice.cost.clone(),
        });
        Self {
            choices: choices.collect(),
        }
    }
}

impl<F: Framework> std::fmt::Debug for LimitRule<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let choices = self
            .choices
            .iter()
            .map(|choice| (&choice.policy, &choice.key));
        f.debug_map().entries(choices).finish()
    }
}
