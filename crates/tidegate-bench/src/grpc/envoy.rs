//! Requests through a real Envoy with its default timeout of 20 ms: how many of them time out.

use std::time::Duration;

use anyhow::{Context, ensure};
use tidegate_testkit::gateway::{Gateway, GatewayProgram, tool};

use super::contenders::Contenders;

const CONFIG: &str = include_str!("envoy.yaml");

/// Prints the answers of each round. A request whose check times out is answered with 503.
pub(super) fn measure(contenders: &Contenders, rounds: usize) -> anyhow::Result<()> {
    println!(
        "| Through Envoy, timeout 20 ms | requests | failed | thousands/s | p99 ms | p99.9 ms |\n|---|---:|---:|---:|---:|---:|"
    );
    for (store, port) in ["memory", "Redis"].into_iter().zip(contenders.own_ports()) {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
        let envoy = Gateway::start(&GatewayProgram {
            program: tool("envoy"),
            arguments: &[
                "-c",
                "envoy.yaml",
                "--concurrency",
                "1",
                "--disable-hot-restart",
                "-l",
                "error",
            ],
            files: &[("envoy.yaml", CONFIG)],
            addresses: &[
                ("127.0.0.1:10000", None),
                ("127.0.0.1:10001", None),
                ("127.0.0.1:18081", Some(address)),
            ],
            listens_at: "127.0.0.1:10000",
        });
        for _ in 0..rounds {
            let [requests, us, failed, p99, p999] = wrk(envoy.address().port())?;
            let rate = requests / us * 1e3;
            println!(
                "| {store} | {requests} | {failed} | {rate:.1} | {:.2} | {:.2} |",
                p99 / 1e3,
                p999 / 1e3
            );
        }
    }
    println!();
    Ok(())
}

const SCRIPT: &str = r#"
request = function() return wrk.format("GET", nil, { ["x-user"] = "user-" .. math.random(10000) }) end
done = function(summary, latency)
  io.write(string.format("%d %d %d %f %f\n", summary.requests, summary.duration,
    summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.timeout,
    latency:percentile(99), latency:percentile(99.9)))
end
"#;

fn wrk(port: u16) -> anyhow::Result<[f64; 5]> {
    let script = std::env::temp_dir().join(format!("tidegate-envoy-{}.lua", std::process::id()));
    std::fs::write(&script, SCRIPT)?;
    let seconds = format!("-d{}s", Duration::from_secs(4).as_secs());
    let output = std::process::Command::new("wrk")
        .args(["-t1", "-c64", &seconds, "-s"])
        .arg(&script)
        .arg(format!("http://127.0.0.1:{port}/"))
        .output()
        .context("wrk is not installed")?;
    std::fs::remove_file(&script)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    let figures: Vec<f64> = line
        .split(' ')
        .filter_map(|figure| figure.parse().ok())
        .collect();
    ensure!(figures.len() == 5, "wrk: expected five figures, got {text}");
    Ok([figures[0], figures[1], figures[2], figures[3], figures[4]])
}
