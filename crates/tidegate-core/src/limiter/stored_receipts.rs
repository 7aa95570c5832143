//! Receipts that leave the process: the store keeps them under an id, which a client sends back to
//! settle.

use std::time::Duration;

use super::multi_key::check_all;
use super::{CheckError, Limiter, LimiterRequest};
use crate::algorithm::{Claim, Claims};
use crate::cost::Cost;
use crate::identity::BucketNumbers;
use crate::key::Key;
use crate::policy::{Limit, Policy};
use crate::record::Settlement;
use crate::remote::stored_limits;
use crate::store::{Admission, Charged, Store};

const VERSION: u8 = 2;

/// The minimum time that a receipt is kept, so that a higher actual cost is charged even after the
/// limit has reset.
const MIN_KEPT: Duration = Duration::from_secs(600);

impl<S: Store> Limiter<S> {
    /// Decides a request and, if it is admitted, stores a receipt for it. Returns `true` if a
    /// receipt was stored: not if the request was denied, was free, or was decided by the failure
    /// policy.
    pub(crate) async fn admit_with_stored_receipt(
        &self,
        key: Key<'_>,
        cost: Cost,
        id: &str,
    ) -> Result<(Admission, bool), CheckError> {
        let asked = LimiterRequest {
            limiter: self,
            key,
            cost,
        };
        let answer = check_all(std::slice::from_ref(&asked), true)
            .await?
            .pop()
            .flatten();
        let Some(admission) = answer else {
            let look = self.shared.check(key, Cost::ZERO).await?;
            return Ok((Admission::look(look), false));
        };
        let decision = admission.decision;
        if admission.claims.is_empty() || cost == Cost::ZERO || decision.degraded().is_some() {
            return Ok((admission, false));
        }
        let (shared, receipt) = (
            &*self.shared,
            encode(&self.shared.policy, cost, &admission.claims),
        );
        // Once everything is free again there is nothing to give back.
        let keep_for = decision.reset_after().max(MIN_KEPT);
        let kept = shared
            .store
            .keep_receipt(&shared.plan, key, id, &receipt, keep_for)
            .await;
        Ok((admission, kept.is_ok()))
    }

    /// Settles a request by the id of its receipt, once. Returns `None` if the receipt is unknown,
    /// has expired or was settled before.
    pub(crate) async fn settle_stored_receipt(
        &self,
        key: Key<'_>,
        id: &str,
        actual: Cost,
    ) -> Result<Option<(Charged, Cost)>, CheckError> {
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
        Ok(Some((self.settle(key, &settlement, None).await?, taken)))
    }
}

/// Encodes the cost and, for each limit in stored order, its bucket numbers and its claim.
///
/// The policy that settles may list its limits in another order, and may have buckets with other
/// numbers.
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

/// Decodes a receipt written by [`encode`] with a policy of the same
/// [identity](crate::identity::identity). A bucket with other numbers is another bucket, so it gets
/// no claim.
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

/// Returns the index in the policy of each limit in stored order.
fn stored_indices(policy: &Policy) -> impl Iterator<Item = usize> {
    let order = policy.stored_order();
    (0..policy.limits().len())
        .map(move |index| order.map_or(index, |order| usize::from(order[index])))
}

/// For servers, where a request can bring its own limits.
#[doc(hidden)]
impl<S: Store> Limiter<S> {
    /// Like `admit_with_stored_receipt`, with an unchecked key.
    pub async fn check_with_receipt_id(
        &self,
        key: &[u8],
        cost: Cost,
        id: &str,
    ) -> Result<(Admission, bool), CheckError> {
        self.admit_with_stored_receipt(Key::new(key)?, cost, id)
            .await
    }

    /// Like `settle_stored_receipt`, with an unchecked key.
    pub async fn settle_receipt_id(
        &self,
        key: &[u8],
        id: &str,
        actual: Cost,
    ) -> Result<Option<Charged>, CheckError> {
        let settled = self
            .settle_stored_receipt(Key::new(key)?, id, actual)
            .await?;
        Ok(settled.map(|(charged, _)| charged))
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
        assert_eq!(decode(&policy, &[&[1][..], &bytes[1..]].concat()), None);
        // With limits in another order, and with other numbers.
        let read = |policy: &str| decode(&policy.parse().unwrap(), &bytes).unwrap().1.to_vec();
        assert_eq!(read("fixed_window 9/day; 5/hour"), [window, bucket]);
        assert_eq!(read("fixed_window 8/day; 5/hour"), [window, bucket]);
        assert_eq!(
            read("6/hour; fixed_window 9/day"),
            [Claim::default(), window]
        );
    }
}
