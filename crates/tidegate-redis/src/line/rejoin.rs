//! Making a connection anew, one attempt at a time, by one task a line.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{Numbered, Shared};
use crate::dial::told;

/// The first wait after an attempt that failed, and the longest. With jitter: half of it up to all of it.
const FIRST_DELAY: Duration = Duration::from_millis(50);
const LONGEST_DELAY: Duration = Duration::from_millis(500);

/// Tries until there is a connection, or nobody needs one any more. `old` is one that may still come to life.
pub(super) async fn rejoin(line: Weak<Shared>, mut old: Option<Numbered>) {
    loop {
        let Some(attempts) = line.upgrade().map(|line| line.state.lock().attempts) else {
            return;
        };
        if attempts > 0 {
            sleep(delay(attempts)).await;
        }
        let Some(line) = line.upgrade() else { return };
        match attempt(&line, old.take()).await {
            Ok(connection) => {
                // The first one, made in the background, is none that was lost.
                if line.state.lock().generation > 0 {
                    line.health.reconnected();
                }
                // Until it has answered something: a server that greets and closes is not dialled on and on.
                line.count_attempt();
                line.joined(connection);
                return;
            }
            Err(error) => {
                line.health.failed_to_connect();
                line.count_attempt();
                line.take_down(&mut line.state.lock(), told(&error).into());
            }
        }
    }
}

/// The old connection, if it answers again; else a new one.
async fn attempt(line: &Arc<Shared>, old: Option<Numbered>) -> redis::RedisResult<Numbered> {
    if let Some((mut connection, generation)) = old {
        let ping = redis::cmd("PING");
        if let Ok(Ok(())) =
            timeout(line.settings().deadline, ping.exec_async(&mut connection)).await
        {
            return Ok((connection, generation));
        }
    }
    Shared::dial(line).await
}

fn delay(attempts: u32) -> Duration {
    let doubled = FIRST_DELAY.saturating_mul(1 << attempts.saturating_sub(1).min(10));
    let longest = doubled.min(LONGEST_DELAY);
    longest.mul_f64(0.5 + fastrand::f64() / 2.0)
}
