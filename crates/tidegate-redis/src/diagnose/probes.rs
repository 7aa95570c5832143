//! Tries things: the clock, the latency, a script, and a scan for keys without expiry.

use std::time::Duration;

use redis::Value;
use tidegate_core::Clock;
use tokio::time::Instant;

use super::{Examination, Severity, text};

/// The keys that are examined for a missing expiry.
const MAX_SCANNED: usize = 50_000;
/// The time for that.
const SCAN_TIME: Duration = Duration::from_secs(10);
/// The pings that measure the latency.
const PINGS: usize = 40;

impl Examination {
    pub(super) async fn clock(&mut self) {
        let clock = Clock::system();
        let before = clock.now().as_nanos();
        let Ok(Value::Array(time)) = self.command(&["TIME"]).await else {
            return;
        };
        let after = clock.now().as_nanos();
        let parts: Vec<u64> = time
            .iter()
            .filter_map(|part| text(part).parse().ok())
            .collect();
        let [seconds, micros] = parts[..] else {
            return;
        };
        let server = seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(micros.saturating_mul(1_000));
        let ours = before.midpoint(after);
        let difference = Duration::from_nanos(server.abs_diff(ours));
        if difference > Duration::from_secs(1) + Duration::from_nanos(after - before) {
            let what = format!(
                "the clock differs from this machine's by {:.1} s: windows end at other times than people expect",
                difference.as_secs_f64()
            );
            self.add(
                Severity::Warning,
                "clock",
                what,
                "run an NTP client on both machines",
            );
        }
    }

    pub(super) async fn latency(&mut self, timeout: Duration) {
        let mut times = Vec::with_capacity(PINGS);
        for _ in 0..PINGS {
            let begun = Instant::now();
            if self.command(&["PING"]).await.is_err() {
                return;
            }
            times.push(begun.elapsed());
        }
        times.sort_unstable();
        let (median, slowest) = (times[PINGS / 2], times[PINGS - 1]);
        let what = format!(
            "a round trip takes {:.2} ms, the slowest of {PINGS} took {:.2} ms; the timeout is {} ms",
            median.as_secs_f64() * 1e3,
            slowest.as_secs_f64() * 1e3,
            timeout.as_millis()
        );
        if median * 4 > timeout {
            let fix = "use a server that is nearer, or raise timeout= in the URL";
            self.add(Severity::Serious, "latency", what, fix);
        } else {
            self.add(Severity::Note, "latency", what, "");
        }
    }

    /// Runs a script that does what our scripts do, on a key of its own.
    pub(super) async fn script(&mut self, prefix: &str) {
        const SCRIPT: &str = "local t = redis.call('TIME'); \
            redis.call('SET', KEYS[1], t[1], 'PX', 1000); \
            local v = redis.call('MGET', KEYS[1]); redis.call('DEL', KEYS[1]); return v[1]";
        let key = format!("{prefix}:doctor:{{{:x}}}", fastrand::u64(..));
        let ran = self.command(&["EVAL", SCRIPT, "1", &key]).await;
        let error = match ran {
            // Another node of the cluster has the slot.
            Ok(_) => return,
            Err(error) if error.contains("MOVED") || error.contains("Moved") => return,
            Err(error) => error,
        };
        // A replica was reported already.
        if error.contains("READONLY") || error.contains("ReadOnly") {
            return;
        }
        let fix = if error.contains("NOPERM") || error.contains("permission") {
            format!(
                "ACL SETUSER NAME ~{prefix}:* +evalsha +eval +script|load +time +get +mget +set +del \
                 +pexpire +pexpireat +hget +hset +strlen +getrange +setrange +append"
            )
        } else {
            "allow EVALSHA, EVAL and SCRIPT LOAD: scripts decide".to_owned()
        };
        let what = format!("scripts cannot run: {error}");
        self.add(Severity::Serious, "script", what, &fix);
    }

    /// Counts keys under our prefix that never expire.
    pub(super) async fn expiries(&mut self, prefix: &str) {
        let pattern = format!("{prefix}:*");
        let mut cursor = "0".to_owned();
        let (mut scanned, mut lasting, mut example) = (0, 0_u64, None);
        let end = Instant::now() + SCAN_TIME;
        while Instant::now() < end {
            let scan = ["SCAN", &cursor, "MATCH", &pattern, "COUNT", "1000"];
            let Ok(Value::Array(reply)) = self.command(&scan).await else {
                return;
            };
            let [next, Value::Array(keys)] = &reply[..] else {
                return;
            };
            cursor = text(next);
            for key in keys {
                let key = text(key);
                scanned += 1;
                if let Ok(Value::Int(-1)) = self.command(&["PTTL", &key]).await {
                    lasting += 1;
                    example.get_or_insert(key);
                }
            }
            if cursor == "0" || scanned >= MAX_SCANNED {
                break;
            }
        }
        if let Some(example) = example {
            let what = format!(
                "{lasting} of {scanned} keys under {prefix}: never expire, which Tidegate does not write; one is {example:?}"
            );
            let fix = format!("redis-cli DEL {example:?}, or use another prefix= for Tidegate");
            self.add(Severity::Warning, "no-expiry", what, &fix);
        }
    }
}
