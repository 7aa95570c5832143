//! The actual costs of an admitted request, for each policy.

use smallvec::SmallVec;

use crate::cost::{Cost, CostError};

/// The actual cost of a request: one for all policies, or one for each.
///
/// A policy without a cost keeps what was taken.
///
/// # Examples
///
/// ```
/// use tidegate::{ActualCosts, Gate, PolicySet, Rules, Subject};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let policies = PolicySet::new()
///     .with("requests", Rules::new("10/minute".parse()?))?
///     .with("tokens", Rules::new("10_000/minute debt=50_000".parse()?))?;
/// let gate = Gate::memory(policies);
/// let estimate = Subject { cost: 1_500.try_into()?, ..Subject::new("tokens", "user:42") };
/// let (verdict, receipt) = gate.admit(&[Subject::new("requests", "user:42"), estimate]).await?;
/// if verdict.is_allowed() {
///     // The response took 2,300 tokens. The request still counts as one.
///     receipt.settle(ActualCosts::new().policy("tokens", 2_300)?);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActualCosts {
    for_all: Option<Cost>,
    by_policy: SmallVec<[(Box<str>, Cost); 2]>,
}

impl ActualCosts {
    /// Creates a set without costs: everything stays as taken.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the cost of one policy.
    ///
    /// # Errors
    ///
    /// Returns an error if the cost is invalid.
    pub fn policy<C>(self, policy: &str, cost: C) -> Result<Self, CostError>
    where
        C: TryInto<Cost, Error: Into<CostError>>,
    {
        Ok(self.with_policy(policy, cost.try_into().map_err(Into::into)?))
    }

    /// Sets the cost of one policy, which is valid.
    #[must_use]
    pub fn with_policy(mut self, policy: &str, cost: Cost) -> Self {
        self.by_policy.retain(|(name, _)| **name != *policy);
        self.by_policy.push((policy.into(), cost));
        self
    }

    /// Returns the cost of a policy, or `None` to keep what was taken.
    #[must_use]
    pub fn of(&self, policy: Option<&str>) -> Option<Cost> {
        let own = self
            .by_policy
            .iter()
            .find(|(name, _)| Some(&**name) == policy);
        own.map(|(_, cost)| *cost).or(self.for_all)
    }
}

/// One cost for all policies.
impl From<Cost> for ActualCosts {
    fn from(cost: Cost) -> Self {
        Self {
            for_all: Some(cost),
            by_policy: SmallVec::new(),
        }
    }
}
