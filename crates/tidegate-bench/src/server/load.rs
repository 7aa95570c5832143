//! The load generators, redis-benchmark and wrk, pinned to the second core.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use crate::grpc::{GrpcLoad, grpc};

/// One contender of a row.
pub(crate) struct Load {
    pub(crate) name: &'static str,
    pub(crate) pid: u32,
    pub(crate) client: Client,
}

pub(crate) enum Client {
    Resp {
        port: u16,
        words: Vec<&'static str>,
        pipeline: u32,
        /// The divisor of the number of requests per sample, greater than 1 for slow contenders.
        slowness: u32,
    },
    Http {
        port: u16,
        path: &'static str,
        body: &'static str,
    },
    Grpc(GrpcLoad),
}

#[derive(Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) rate: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// 0 if unknown.
    pub(crate) p999_ms: f64,
    pub(crate) cpu_us: f64,
}

impl Load {
    pub(crate) fn sample(&self) -> anyhow::Result<Sample> {
        let before = cpu_us(self.pid)?;
        let (requests, sample) = match &self.client {
            Client::Resp {
                port,
                words,
                pipeline,
                slowness,
            } => resp(*port, words, *pipeline, *slowness)?,
            Client::Http { port, path, body } => http(*port, path, body, 50)?,
            Client::Grpc(load) => grpc(load)?,
        };
        let cpu_us = (cpu_us(self.pid)? - before) / requests;
        Ok(Sample { cpu_us, ..sample })
    }
}

/// Returns the CPU time that a process has used, in microseconds.
fn cpu_us(pid: u32) -> anyhow::Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = text
        .rsplit_once(')')
        .context("/proc/…/stat: expected a name in parentheses")?
        .1;
    let ticks: Vec<f64> = after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|tick| tick.parse().ok())
        .collect();
    // A tick is a hundredth of a second on Linux.
    Ok(ticks.iter().sum::<f64>() * 10_000.0)
}

fn resp(port: u16, words: &[&str], pipeline: u32, slowness: u32) -> anyhow::Result<(f64, Sample)> {
    let requests = match pipeline {
        1 => 100_000,
        16 => 1_000_000,
        _ => 2_000_000,
    } / slowness;
    let (port, count, pipeline) = (port.to_string(), requests.to_string(), pipeline.to_string());
    let output = Command::new("taskset")
        .args([
            "-c",
            "1",
            "redis-benchmark",
            "-p",
            &port,
            "-c",
            "50",
            "-n",
            &count,
            "-P",
            &pipeline,
            "-r",
            "10000",
            "--csv",
        ])
        .args(words)
        .stdin(Stdio::null())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "redis-benchmark: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // The CSV fields: test, rps, and avg, min, p50, p95, p99 and max latency in ms.
    let line = text
        .lines()
        .last()
        .context("redis-benchmark printed nothing")?;
    let figures: Vec<f64> = line
        .split("\",\"")
        .skip(1)
        .filter_map(|figure| figure.trim_matches('"').parse().ok())
        .collect();
    let [rate, _, _, p50_ms, _, p99_ms, _] = figures[..] else {
        anyhow::bail!("redis-benchmark: expected eight CSV fields, got {line}")
    };
    Ok((
        f64::from(requests),
        Sample {
            rate,
            p50_ms,
            p99_ms,
            p999_ms: 0.0,
            cpu_us: 0.0,
        },
    ))
}

/// Generates a separate body for each request, with one of 10,000 keys.
const SCRIPT: &str = r#"
local bodies = {}
init = function() math.randomseed(os.time()) end
request = function()
  local body = string.gsub(BODY, "KEY", "user:" .. math.random(10000))
  return wrk.format("POST", nil, { ["Content-Type"] = "application/json" }, body)
end
done = function(summary, latency)
  io.write(string.format("%d %d %f %f %d\n", summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.timeout))
end
"#;

pub(super) fn http(
    port: u16,
    path: &str,
    body: &str,
    connections: u32,
) -> anyhow::Result<(f64, Sample)> {
    let script = std::env::temp_dir().join(format!("tidegate-wrk-{}.lua", std::process::id()));
    let mut file = std::fs::File::create(&script)?;
    write!(file, "BODY = [[{body}]]\n{SCRIPT}")?;
    let url = format!("http://127.0.0.1:{port}{path}");
    let connections = format!("-c{connections}");
    let output = Command::new("taskset")
        .args(["-c", "1", "wrk", "-t1", &connections, "-d2s", "-s"])
        .arg(&script)
        .arg(url)
        .stdin(Stdio::null())
        .output()?;
    std::fs::remove_file(script)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    let figures: Vec<f64> = line
        .split(' ')
        .filter_map(|figure| figure.parse().ok())
        .collect();
    let [requests, us, p50, p99, errors] = figures[..] else {
        anyhow::bail!("wrk: expected five figures, got {text}")
    };
    ensure!(errors == 0.0, "{errors} of {requests} requests failed");
    Ok((
        requests,
        Sample {
            rate: requests / us * 1e6,
            p50_ms: p50 / 1e3,
            p99_ms: p99 / 1e3,
            p999_ms: 0.0,
            cpu_us: 0.0,
        },
    ))
}
