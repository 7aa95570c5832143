//! Process metrics, as Prometheus' client libraries export them, if the system provides them.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// Encodes the metrics that are known.
pub(crate) fn encode(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let gauges = [
        (
            "process_resident_memory_bytes",
            "Resident memory in bytes",
            resident_bytes(),
        ),
        ("process_open_fds", "Open file descriptors", open_files()),
        (
            "process_max_fds",
            "Maximum number of open file descriptors",
            max_files(),
        ),
    ];
    for (name, help, value) in gauges {
        let Some(value) = value else { continue };
        let mut encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        encoder.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?;
    }
    if let Some(seconds) = cpu_seconds() {
        let help = "User and system CPU time in seconds";
        let mut encoder =
            encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
        encoder.encode_counter::<NoLabelSet, _, u64>(&seconds, None)?;
    }
    Ok(())
}

fn resident_bytes() -> Option<u64> {
    let pages: u64 = std::fs::read_to_string("/proc/self/statm")
        .ok()?
        .split(' ')
        .nth(1)?
        .parse()
        .ok()?;
    pages.checked_mul(rustix::param::page_size() as u64)
}

fn open_files() -> Option<u64> {
    // Without the descriptor that is used for counting.
    Some((std::fs::read_dir("/proc/self/fd").ok()?.count() as u64).saturating_sub(1))
}

pub(crate) fn max_files() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    cpu_ticks(&stat).map(|ticks| ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Returns user and system time: fields 14 and 15. The second field, the program's name, may
/// contain spaces.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    next()?.checked_add(next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_ticks_adds_user_and_system_time() {
        let stat = "12 (a ) b) S 1 12 12 0 -1 4194304 901 0 0 0 730 41 0 0 20 0 1 0 12345 1 2";
        assert_eq!(cpu_ticks(stat), Some(771));
        assert_eq!(cpu_ticks(""), None);
        assert_eq!(cpu_ticks("1 (a) S"), None);
    }
}
