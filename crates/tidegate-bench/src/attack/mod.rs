//! Attacks on a release binary on loopback: floods, stalls, hostile connections, repeated
//! settlements, and two configurations on one Redis. Prints the result of each attack, with
//! figures.

mod connections;
mod floods;
mod on_redis;
mod target;

use std::time::Duration;

use anyhow::bail;
use clap::Args;

/// Attack a release binary for a few minutes and print the result of each attack
#[derive(Args)]
pub(crate) struct Options {
    /// Duration of each flood, in seconds
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// Only run the attacks with names that contain this
    #[arg(long)]
    only: Option<String>,
}

/// The result of an attack.
pub(super) struct Finding {
    /// The measured figures.
    pub(super) figures: String,
    pub(super) has_held: bool,
}

type Attack = fn(Duration) -> anyhow::Result<Finding>;

const ATTACKS: [(&str, Attack); 13] = [
    (
        "flood of the client's own policy, each key asked once",
        floods::own_policy_once,
    ),
    (
        "flood of the client's own policy, each key asked twice and denied",
        floods::own_policy_twice,
    ),
    ("flood of another policy", floods::another_policy),
    (
        "flood of limits without a name, over RESP",
        floods::unnamed_over_resp,
    ),
    (
        "flood that is not denied: quiet denied keys",
        floods::quiet_denied_keys,
    ),
    (
        "flood of policies of eight limits: memory",
        floods::eight_limits,
    ),
    ("log that is not read, flooded", connections::log_flood),
    (
        "HTTP/2 clients with closed windows: memory",
        connections::closed_windows,
    ),
    (
        "RESP clients that never authenticate: memory",
        connections::before_auth,
    ),
    (
        "stalled connections: the slowest healthy answer",
        connections::stalls,
    ),
    (
        "receipts settled again and again on two servers",
        on_redis::repeated_settlements,
    ),
    (
        "two configurations on one Redis",
        on_redis::two_configurations,
    ),
    (
        "one connection with large batches: others on the same Redis",
        on_redis::large_batches,
    ),
];

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let duration = Duration::from_secs(options.seconds.max(1));
    let mut failed = 0;
    for (name, attack) in ATTACKS {
        if options
            .only
            .as_ref()
            .is_some_and(|only| !name.contains(only.as_str()))
        {
            continue;
        }
        let finding = attack(duration)?;
        let verdict = if finding.has_held { "held  " } else { "FAILED" };
        println!("{verdict}  {name}\n        {}", finding.figures);
        failed += u32::from(!finding.has_held);
    }
    if failed > 0 {
        bail!("{failed} attacks succeeded");
    }
    Ok(())
}
