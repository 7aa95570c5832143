//! Floods of new keys against the memory store, at full speed.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegate_testkit::http::HttpClient;

use super::Finding;
use super::target::Target;

const CONFIG: &str = r#"
store.url = "memory://?max_keys=200000"
[policies.login]
limits = "sliding_window_log 5/minute"
[policies.api]
limits = "fixed_window 5/day"
"#;

const CLIENT: &str = r#"{"policy": "login", "key": "client"}"#;

/// The requests of a flood.
#[derive(Clone, Copy)]
enum Flood {
    Policy {
        name: &'static str,
        cost: u32,
        times: u32,
    },
    Resp,
}

impl Flood {
    /// Checks new keys until `is_over`, and returns their number.
    fn run(self, target: &Target, worker: u64, is_over: &AtomicBool) -> anyhow::Result<u64> {
        let mut next = worker << 40;
        match self {
            Self::Policy { name, cost, times } => {
                let mut client = target.client()?;
                while !is_over.load(Ordering::Relaxed) {
                    let mut checks = Vec::new();
                    for _ in 0..500 / times {
                        next += 1;
                        let check =
                            format!(r#"{{"policy":"{name}","key":"flood {next}","cost":{cost}}}"#);
                        checks.extend((0..times).map(|_| check.clone()));
                    }
                    client.post(
                        "/v1/check:batch",
                        &format!(r#"{{"checks":[{}]}}"#, checks.join(",")),
                    )?;
                }
            }
            Self::Resp => {
                let mut stream = TcpStream::connect(target.resp)?;
                let mut replies = vec![0; 1 << 20];
                while !is_over.load(Ordering::Relaxed) {
                    let mut pipeline = String::new();
                    for _ in 0..500 {
                        next += 1;
                        pipeline
                            .push_str(&format!("CL.THROTTLE flood{next} 0 1 86400\r\n").repeat(2));
                    }
                    stream.write_all(pipeline.as_bytes())?;
                    let mut count = 0;
                    while count < 1_000 {
                        let read = stream.read(&mut replies)?;
                        anyhow::ensure!(read > 0, "the server closed the connection");
                        count += replies[..read].iter().filter(|byte| **byte == b'*').count();
                    }
                }
            }
        }
        Ok(next - (worker << 40))
    }
}

/// Checks the client's key ten times a second under a flood. Returns the number of allowed checks,
/// the number of checks, and the new keys a second.
fn under(flood: Flood, target: &Target, duration: Duration) -> anyhow::Result<(u64, u64, u64)> {
    let (is_over, keys) = (AtomicBool::new(false), AtomicU64::new(0));
    let started = Instant::now();
    let (passed, asked) = std::thread::scope(|scope| -> anyhow::Result<(u64, u64)> {
        for worker in 1..=2 {
            let (is_over, keys) = (&is_over, &keys);
            scope.spawn(move || {
                keys.fetch_add(
                    flood.run(target, worker, is_over).unwrap_or(0),
                    Ordering::Relaxed,
                )
            });
        }
        let mut client = target.client()?;
        let (mut passed, mut asked) = (0, 0);
        while started.elapsed() < duration {
            asked += 1;
            passed += u64::from(is_allowed(&mut client, CLIENT)?);
            std::thread::sleep(Duration::from_millis(100));
        }
        is_over.store(true, Ordering::Relaxed);
        Ok((passed, asked))
    })?;
    Ok((
        passed,
        asked,
        keys.into_inner() / started.elapsed().as_secs().max(1),
    ))
}

fn is_allowed(client: &mut HttpClient, body: &str) -> anyhow::Result<bool> {
    Ok(client.post("/v1/check", body)?.json()["allowed"] == true)
}

/// The most that a window of a minute admits in this time.
fn most(duration: Duration) -> u64 {
    5 * (duration.as_secs() / 60 + 1)
}

fn client_under(flood: Flood, duration: Duration) -> anyhow::Result<Finding> {
    let target = Target::start(CONFIG)?;
    let (passed, asked, rate) = under(flood, &target, duration)?;
    let most = most(duration);
    let figures = format!(
        "{rate} new keys/s; {passed} of the client's {asked} checks were allowed, at most {most}"
    );
    Ok(Finding {
        figures,
        has_held: passed <= most,
    })
}

pub(super) fn own_policy_once(duration: Duration) -> anyhow::Result<Finding> {
    client_under(
        Flood::Policy {
            name: "login",
            cost: 1,
            times: 1,
        },
        duration,
    )
}

pub(super) fn own_policy_twice(duration: Duration) -> anyhow::Result<Finding> {
    client_under(
        Flood::Policy {
            name: "login",
            cost: 5,
            times: 2,
        },
        duration,
    )
}

pub(super) fn another_policy(duration: Duration) -> anyhow::Result<Finding> {
    client_under(
        Flood::Policy {
            name: "api",
            cost: 5,
            times: 2,
        },
        duration,
    )
}

pub(super) fn unnamed_over_resp(duration: Duration) -> anyhow::Result<Finding> {
    client_under(Flood::Resp, duration)
}

/// Denies a thousand keys, then leaves them idle under a flood of their own policy and of another
/// one.
pub(super) fn quiet_denied_keys(duration: Duration) -> anyhow::Result<Finding> {
    let mut lines = Vec::new();
    let mut has_held = true;
    for (name, most_freed) in [("login", 0), ("api", 10)] {
        let target = Target::start(&CONFIG.replace("5/minute", "5/day"))?;
        let mut client = target.client()?;
        let key = |number: u32, cost: u32| {
            format!(r#"{{"policy": "login", "key": "quiet {number}", "cost": {cost}}}"#)
        };
        for number in 0..1_000 {
            is_allowed(&mut client, &key(number, 5))?;
            is_allowed(&mut client, &key(number, 5))?;
        }
        let (_, _, rate) = under(
            Flood::Policy {
                name,
                cost: 1,
                times: 1,
            },
            &target,
            duration,
        )?;
        let mut freed = 0;
        for number in 0..1_000 {
            freed += u32::from(is_allowed(&mut client, &key(number, 5))?);
        }
        has_held &= freed <= most_freed;
        lines.push(format!(
            "{freed} of 1,000 freed by {rate} new keys/s of {name}, at most {most_freed}"
        ));
    }
    Ok(Finding {
        figures: lines.join("; "),
        has_held,
    })
}

pub(super) fn eight_limits(duration: Duration) -> anyhow::Result<Finding> {
    let limits: Vec<String> = (1..=8)
        .map(|days| format!("fixed_window 5 per {days} days"))
        .collect();
    let config = CONFIG.replace("fixed_window 5/day", &limits.join("; "));
    let target = Target::start(&config)?;
    let before = target.memory()?;
    let (_, _, rate) = under(
        Flood::Policy {
            name: "api",
            cost: 1,
            times: 1,
        },
        &target,
        duration,
    )?;
    let grown = target.memory()?.saturating_sub(before);
    // The table, the budget of records, and as much again for the allocator and the requests in
    // flight.
    let most = 9 + 64 + 73;
    let figures = format!("{rate} new keys/s; memory grew by {grown} MiB, at most {most}");
    Ok(Finding {
        figures,
        has_held: grown <= most,
    })
}
