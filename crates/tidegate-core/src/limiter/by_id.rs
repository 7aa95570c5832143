//! Receipts that leave the process: the store keeps what is to be known of them, under an id that a client hands back.

use super::together::{Asked, check_together};
use super::{CheckError, Limiter};
use crate::algorithm::{Claim, Claims};
use crate::cost::Cost;
use crate::decision::Decision;
use crate::key::Key;
use crate::record::Settlement;
use crate::store::Store;

const VERSION: u8 = 1;

impl<S: Store> Limiter<S> {
    /// Decides on one request, and keeps a receipt for it in the store if it was admitted. Returns whether there is one: not
    /// for a request that was denied, that cost nothing or that was decided without the store.
    pub(crate) async fn admit_by_id(&self, key: Key<'_>, cost: Cost, id: &str) -> Result<(Decision, bool), CheckError> {
        let asked = Asked { limiter: self, key, cost };
        let answer = check_together(std::slice::from_ref(&asked), true).await?.pop().flatten();
        let Some((decision, claims)) = answer else {
            return Ok((self.shared.check(key, Cost::ZERO).await?, false));
        };
        if claims.is_empty() || decision.degraded().is_some() {
            return Ok((decision, false));
        }
        let (shared, receipt) = (&*self.shared, encode(cost, &claims));
        // Once everything is free again there is nothing to give back.
        let kept = shared.store.keep_receipt(&shared.plan, key, id, &receipt, decision.reset_after()).await;
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
        let Some((taken, claims)) = receipt.as_deref().and_then(decode) else { return Ok(None) };
        let settlement = Settlement { claims: &claims, taken, actual };
        Ok(Some(self.settle(key, &settlement, None).await?))
    }
}

fn encode(cost: Cost, claims: &Claims) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend(cost.thousandths().to_be_bytes());
    for claim in claims {
        bytes.extend(claim.time.to_be_bytes());
        bytes.extend(claim.part.to_be_bytes());
    }
    bytes
}

fn decode(bytes: &[u8]) -> Option<(Cost, Claims)> {
    let (VERSION, bytes) = bytes.split_first().map(|(first, rest)| (*first, rest))? else { return None };
    let (numbers, []) = bytes.as_chunks::<8>() else { return None };
    let mut numbers = numbers.iter().map(|number| u64::from_be_bytes(*number));
    let cost = Cost::from_thousandths(numbers.next()?).ok()?;
    let mut claims = Claims::new();
    while let Some(time) = numbers.next() {
        claims.push(Claim { time, part: numbers.next()? });
    }
    Some((cost, claims))
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
    pub async fn settle_receipt_id(&self, key: &[u8], id: &str, actual: Cost) -> Result<Option<Decision>, CheckError> {
        self.settle_by_id(Key::new(key)?, id, actual).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a3_a_receipt_is_read_as_it_was_written_and_nothing_else_is() {
        let claims: Claims = [Claim { time: 7, part: 8 }, Claim { time: u64::MAX, part: 0 }].into_iter().collect();
        let bytes = encode(Cost::ONE, &claims);
        assert_eq!(decode(&bytes), Some((Cost::ONE, claims)));
        for end in 0..bytes.len() {
            // Only whole claims are read, and only of this version.
            assert!(decode(&bytes[..end]).is_none_or(|(_, claims)| claims.len() < 2 && end % 16 == 9));
        }
        assert_eq!(decode(&[&[2][..], &bytes[1..]].concat()), None);
    }
}
