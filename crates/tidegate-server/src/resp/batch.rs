//! Commands of a pipeline that are decided together.

use smallvec::SmallVec;
use tidegate::{AnyStore, Cost, Key, Limiter};

use super::reply::Replies;
use super::throttle::Throttle;
use crate::server::Server;

/// Requests that will be decided at one time.
pub(super) struct Batch<'s, 'i> {
    pub(super) server: &'s Server,
    pub(super) asked: SmallVec<[Throttle<'i>; 4]>,
}

/// How long a reply to one is, about.
const REPLY: usize = 32;

impl Batch<'_, '_> {
    /// How long the replies will be, about.
    pub(super) fn expected(&self) -> usize {
        self.asked.len() * REPLY
    }

    /// Decides on all of them, and writes the replies in their order.
    pub(super) async fn flush(&mut self, replies: &mut Replies) {
        if self.asked.is_empty() {
            return;
        }
        let asked = std::mem::take(&mut self.asked);
        let each: SmallVec<[(&Limiter<AnyStore>, Key<'_>, Cost); 4]> = asked
            .iter()
            // None of them is empty: that was refused before.
            .filter_map(|one| Some((&one.limiter, Key::new(one.key).ok()?, one.cost)))
            .collect();
        let decided = match Limiter::check_each_at_once(&each) {
            Some(decided) => decided,
            None => Limiter::check_each(&each).await,
        };
        match decided {
            Ok(decisions) => {
                for (one, decision) in asked.iter().zip(&decisions) {
                    if one.cost > Cost::ZERO {
                        self.server.metrics.inline(decision);
                    }
                    replies.five(one.form.reply(decision));
                }
            }
            Err(error) => asked
                .iter()
                .for_each(|_| replies.error(&format!("ERR {error}"))),
        }
    }
}
