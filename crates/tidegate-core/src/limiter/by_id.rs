//! Receipts that leave the process: the store keeps what is to be known of them, under an id that a client hands back.

use std::time::Duration;

use super::together::{Asked, check_together};
use super::{CheckError, Limiter};
use crate::algorithm::{Claim, Claims};
use crate::cost::Cost;
use crate::decision::Decision;
use crate::identity::BucketNumbers;
use crate::key::Key;
use crate::policy::{Limit, Policy};
use crate::record::Settlement;
use crate::remote::stored_limits;
use crate::store::Store;

const VERSION: u8 = 1;

/// A receipt is kept for at least so long: a request that turns out to cost more is charged, also once the limit has reset.
const LEAST_KEPT: Duration = Duration::from_secs(600);

impl<S: Store> Limiter<S> {
    /// Decides on one request, and keeps a receipt for it in the store if it was admitted. Returns whether there is one: not
    /// for a request that was denied, that cost nothing or that was decided without the store.
    pub(crate) async fn admit_by_id(
        &self,
        key: Key<'_>,
        cost: Cost,
        id: &str,
    ) -> Result<(Decision, bool), CheckError> {
        let asked = Asked {
            limiter: self,
            key,
            cost,
        };
        let answer = check_together(std::slice::from_ref(&asked), true)
            .await?
            .pop()
            .flatten();
        let Some((decision, claims)) = answer else {
            return Ok((self.shared.check(key, Cost::ZERO).await?, false));
        };
        if claims.is_empty() || cost == Cost::ZERO || decision.degraded().is_some() {
            return Ok((decision, false));
        }
        let (shared, receipt) = (&*self.shared, encode(&self.shared.policy, cost, &claims));
        // Once everything is free again there is nothing to give back.
        let keep_for = decision.reset_after().max(LEAST_KEPT);
        let kept = shared
            .store
            .keep_receipt(&shared.plan, key, id, &receipt, keep_for)
            .await;
        Ok((decision, kept.is_ok()))
    }

    /// Settles a request by the id of its receipt, once. `None` if the receipt is unknown, has expired or was settled.
    pub(crate) async fn settle_by_id(
        &self,
        key: Key<'_>,
        id: &str,
        actual: Cost,
    ) -> Result<Option<Decision>, CheckError> {
        let shared = &*self.shared;
        let receipt = shared.store.take_receipt(&shared.plan, key, id).await?;
        let decoded = receipt
            .as_deref()
            .and_then(|receipt| decode(&shared.policy, receipt));
        let Some((taken, claims)) = decoded else {
            return Ok(None);
        };
        let settlement = Settlement {
            claims: &claims,
            taken,
            actual,
        };
        Ok(Some(self.settle(key, &settlement, None).await?))
    }
}

/// The cost, and for each limit in stored order its numbers, if it is a bucket, and its claim.
///
/// The policy that settles may have its limits in another order, and buckets with other numbers.
fn encode(policy: &Policy, cost: Cost, claims: &Claims) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend(cost.thousandths().to_be_bytes());
    for (limit, index) in stored_limits(policy).zip(stored_indices(policy)) {
        let claim = claims.get(index).copied().unwrap_or_default();
        bytes.extend(numbers(limit));
        bytes.extend(claim.time.to_be_bytes());
        bytes.extend(claim.part.to_be_bytes());
    }
    bytes
}

/// Reads what [`encode`] wrote under a policy of the same [identity](crate::identity::identity). A bucket with other numbers
/// is another bucket, on which the request has no claim.
fn decode(policy: &Policy, bytes: &[u8]) -> Option<(Cost, Claims)> {
    let (VERSION, bytes) = bytes.split_first().map(|(first, rest)| (*first, rest))? else {
        return None;
    };
    let (cost, bytes) = bytes.split_first_chunk::<8>()?;
    let cost = Cost::from_thousandths(u64::from_be_bytes(*cost)).ok()?;
    let (entries, []) = bytes.as_chunks::<32>() else {
        return None;
    };
    let mut claims: Claims = policy.limits().iter().map(|_| Claim::default()).collect();
    if entries.len() != claims.len() {
        return None;
    }
    for ((limit, index), entry) in stored_limits(policy)
        .zip(stored_indices(policy))
        .zip(entries)
    {
        let (written_numbers, claim) = entry.split_at(16);
        let (time, part) = claim.split_first_chunk::<8>()?;
        if written_numbers == numbers(limit) {
            let part = u64::from_be_bytes(part.try_into().ok()?);
            *claims.get_mut(index)? = Claim {
                time: u64::from_be_bytes(*time),
                part,
            };
        }
    }
    Some((cost, claims))
}

fn numbers(limit: &Limit) -> [u8; 16] {
    if limit.algorithm().is_bucket() {
        BucketNumbers::new(limit).to_bytes()
    } else {
        [0; 16]
    }
}

/// For each limit in stored order, its index in the policy.
fn stored_indices(policy: &Policy) -> impl Iterator<Item = usize> {
    let order = policy.stored_order();
    (0..policy.limits().len())
        .map(move |index| order.map_or(index, |order| usize::from(order[index])))
}

/// For servers, which name limits in a request and hold no gate's policy for them.
#[doc(hidden)]
impl<S: Store> Limiter<S> {
    /// See `admit_by_id`, with a key that is not checked yet.
    pub async fn check_with_receipt_id(
        &self,
        key: &[u8],
        cost: Cost,
        id: &str,
    ) -> Result<(Decision, bool), CheckError> {
        self.admit_by_id(Key::new(key)?, cost, id).await
    }

    /// See `settle_by_id`, with a key that is not checked yet.
    pub async fn settle_receipt_id(
        &self,
        key: &[u8],
        id: &str,
        actual: Cost,
    ) -> Result<Option<Decision>, CheckError> {
        self.settle_by_id(Key::new(key)?, id, actual).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a3_a_receipt_is_read_as_it_was_written_and_nothing_else_is() {
        let policy = "5/hour; fixed_window 9/day".parse().unwrap();
        let (bucket, window) = (
            Claim { time: 7, part: 8 },
            Claim {
                time: u64::MAX,
                part: 0,
            },
        );
        let claims: Claims = [bucket, window].into_iter().collect();
        let bytes = encode(&policy, Cost::ONE, &claims);
        assert_eq!(decode(&policy, &bytes), Some((Cost::ONE, claims)));
        for end in 0..bytes.len() {
            assert_eq!(decode(&policy, &bytes[..end]), None);
        }
        assert_eq!(decode(&policy, &[&[2][..], &bytes[1..]].concat()), None);
        // In another order, and with other numbers.
        let read = |policy: &str| decode(&policy.parse().unwrap(), &bytes).unwrap().1.to_vec();
        assert_eq!(read("fixed_window 9/day; 5/hour"), [window, bucket]);
        assert_eq!(read("fixed_window 8/day; 5/hour"), [window, bucket]);
        assert_eq!(
            read("6/hour; fixed_window 9/day"),
            [Claim::default(), window]
        );
    }
}
