//! Many callers at once, on several connections: exactly the limit is admitted.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, bail};
use tidegate::{AnyStore, Limiter, Policy, StoreUrl};

use super::{Outcome, TIMEOUT, VerifyOptions};
use crate::interrupt::Interrupt;

/// The connections that share the store, as processes would.
const CONNECTIONS: usize = 4;

pub(super) fn verify(
    options: &VerifyOptions,
    prefix: &str,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    let total = options.callers * options.checks;
    let limit = (total / 2).max(1);
    let mut policies = 0;
    // Windows of a day, which do not end during the test unless it runs at midnight.
    for policy in [
        format!("sliding_window_log {limit}/day"),
        format!("1/day burst={limit}"),
        format!("fixed_window {limit}/day anchor=first_hit"),
    ] {
        // A log, and the refill of a bucket, have smaller bounds.
        let Ok(policy) = policy.parse::<Policy>() else {
            continue;
        };
        policies += 1;
        let admitted = admitted(options, prefix, &policy, interrupt)?;
        // A bucket of one per day does not refill in the time of the test.
        let is_right = admitted == limit;
        if !is_right {
            let text = format!("wrong: {admitted} of {limit} admitted by {policy}");
            return Ok(Outcome {
                is_right: false,
                text,
            });
        }
    }
    let callers = options.callers;
    let text = format!(
        "{callers} callers, {total} checks each of {policies} policies, exactly {limit} admitted"
    );
    Ok(Outcome {
        is_right: true,
        text,
    })
}

fn admitted(
    options: &VerifyOptions,
    prefix: &str,
    policy: &Policy,
    interrupt: &Interrupt,
) -> anyhow::Result<u64> {
    let limiters: Vec<Limiter<AnyStore>> = connections(options, prefix, policy)?;
    let (admitted, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for caller in 0..options.callers as usize {
            let limiter = &limiters[caller % limiters.len()];
            let (admitted, failed) = (&admitted, &failed);
            scope.spawn(move || {
                for _ in 0..options.checks {
                    if interrupt.is_set() {
                        return;
                    }
                    match limiter.check("shared").blocking() {
                        Ok(decision) if decision.degraded().is_some() => {
                            failed.fetch_add(1, Ordering::Relaxed)
                        }
                        Ok(decision) => {
                            admitted.fetch_add(u64::from(decision.is_allowed()), Ordering::Relaxed)
                        }
                        Err(_) => failed.fetch_add(1, Ordering::Relaxed),
                    };
                }
            });
        }
    });
    let _ = limiters[0].reset("shared").blocking();
    interrupt.check()?;
    match failed.load(Ordering::Relaxed) {
        0 => Ok(admitted.load(Ordering::Relaxed)),
        failed => bail!("{failed} checks failed: the store was unavailable during the test"),
    }
}

/// Connects several times. A store in memory is shared instead.
fn connections(
    options: &VerifyOptions,
    prefix: &str,
    policy: &Policy,
) -> anyhow::Result<Vec<Limiter<AnyStore>>> {
    let connect = || -> anyhow::Result<Limiter<AnyStore>> {
        let url: StoreUrl = options.url.parse()?;
        let url = url.prefix(prefix.to_owned()).default_timeout(TIMEOUT);
        url.limiter_blocking(policy.clone())
            .context("concurrent test")
    };
    let is_memory = options.url.parse::<StoreUrl>()?.is_memory();
    let count = if is_memory { 1 } else { CONNECTIONS };
    (0..count).map(|_| connect()).collect()
}
