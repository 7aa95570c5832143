//! Commands of a pipeline that are decided together.

use smallvec::SmallVec;
use tidegate::request::LimiterRequest;
use tidegate::{AnyStore, Cost, Decision, Key, Limiter};

use super::reply::Replies;
use super::throttle::Throttle;
use crate::activity::{Label, Observed};
use crate::server::Server;

/// Throttle commands that will be decided together.
pub(super) struct ThrottleBatch<'s, 'i> {
    pub(super) server: &'s Server,
    pub(super) commands: SmallVec<[Throttle<'i>; 4]>,
}

/// The approximate length of a reply.
const REPLY: usize = 32;

impl ThrottleBatch<'_, '_> {
    /// Returns the approximate length of the replies.
    pub(super) fn expected(&self) -> usize {
        self.commands.len() * REPLY
    }

    /// Decides all commands, and writes the replies in order.
    pub(super) async fn flush(&mut self, replies: &mut Replies) {
        if self.commands.is_empty() {
            return;
        }
        let commands = std::mem::take(&mut self.commands);
        // No key is empty: that was rejected before.
        let requests: SmallVec<[LimiterRequest<'_, AnyStore>; 4]> = commands
            .iter()
            .filter_map(|one| {
                Some(LimiterRequest {
                    limiter: &one.limiter,
                    key: Key::new(one.key).ok()?,
                    cost: one.cost,
                })
            })
            .collect();
        let decided = Limiter::check_each(&requests).await;
        match decided {
            Ok(decisions) => {
                for (one, decision) in commands.iter().zip(&decisions) {
                    if one.cost > Cost::ZERO {
                        self.server.metrics.inline(decision);
                    }
                    replies.five(one.command.reply(decision));
                }
                let both = commands.iter().zip(&decisions);
                let observed = both.map(|(one, decision)| observed(one, decision));
                self.server
                    .activity
                    .observe_each(&self.server.clock, observed);
            }
            Err(error) => commands
                .iter()
                .for_each(|_| replies.error(&format!("ERR {error}"))),
        }
    }
}

#[inline]
fn observed<'a>(throttle: &'a Throttle<'_>, decision: &Decision) -> Observed<'a> {
    Observed {
        label: Label::Bucket,
        tenant: None,
        key: throttle.key,
        cost: throttle.cost,
        is_denied: decision.is_denied(),
        retry_after: decision.retry_after(),
        limit: throttle.limiter.policy().limits().first(),
    }
}
