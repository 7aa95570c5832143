//! Measures the cost of the dashboard's sketch and of the recorder, and the speed of `tidegate
//! replay`.
//!
//! Two servers of the same binary run on one core, with everything off and with everything on. The
//! load is on the other core, interleaved.

use std::fmt::Write as _;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tidegate_testkit::Folder;
use tidegate_testkit::redis::free_port;

use crate::server::{Client, Load, Server, at_least, cpu, rate, row};

/// The options of `bench insight`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of rounds, each with one sample per contender
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Only run the rows with names that contain this, such as HTTP, RESP or replay
    #[arg(long, default_value = "")]
    only: String,
    /// Lines of the logs to replay
    #[arg(long, value_delimiter = ',', default_value = "1000000,10000000")]
    lines: Vec<u64>,
}

const OFF: &str = "off";

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let program = std::env::var_os("TIDEGATE_BIN")
        .context("TIDEGATE_BIN is not set: run `cargo xtask bench insight`")?;
    let program = Path::new(&program);
    let folder = Folder::new();
    println!(
        "The same server with sketch and recorder (one in ten keys) on, and off; median \
         (minimum-maximum) of {} interleaved rounds. The bar is 0.97.\n",
        options.rounds
    );
    let on = Contender::start(program, &folder, true)?;
    let off = Contender::start(program, &folder, false)?;
    // The last numbers deny nearly every request.
    let rows: [(&str, Option<u32>, [&'static str; 3]); 5] = [
        ("HTTP", None, ["", "", ""]),
        ("RESP", Some(1), ["1000000", "1000000", "60"]),
        ("RESP, pipeline 16", Some(16), ["1000000", "1000000", "60"]),
        ("RESP, pipeline 64", Some(64), ["1000000", "1000000", "60"]),
        ("RESP, pipeline 64, denied", Some(64), ["1", "1", "3600"]),
    ];
    for (name, pipeline, numbers) in rows {
        if name.contains(&*options.only) {
            let loads = [
                off.load(OFF, pipeline, numbers),
                on.load("tidegate", pipeline, numbers),
            ];
            let bars = [
                at_least("rate", rate, OFF, 0.97),
                at_least("CPU", cpu, OFF, 0.0),
            ];
            row(options.rounds, name, &loads, &bars)?;
        }
    }
    drop((on, off));
    if "replay".contains(&*options.only) {
        println!("| replay | seconds | lines/s | peak MB |\n|---|---:|---:|---:|");
        for lines in &options.lines {
            replay(program, &folder, *lines)?;
        }
    }
    Ok(())
}

struct Contender {
    server: Server,
    http: u16,
    resp: u16,
}

impl Contender {
    fn start(program: &Path, folder: &Folder, is_on: bool) -> anyhow::Result<Self> {
        let [http, resp] = std::array::from_fn(|_| free_port());
        let (http_text, resp_text) = (format!("127.0.0.1:{http}"), format!("127.0.0.1:{resp}"));
        let trace = folder.path().join("trace.jsonl").display().to_string();
        let mut arguments = vec![
            "serve", "--http", &http_text, "--resp", &resp_text, "--admin", "off",
        ];
        let mut environment = vec![("TIDEGATE__ADMIN__DASHBOARD", "false")];
        if is_on {
            arguments.extend(["--record", &trace]);
            environment = vec![("TIDEGATE__ADMIN__DASHBOARD", "true")];
        }
        let server = Server::start(program, &arguments, &environment, http)?;
        Ok(Self { server, http, resp })
    }

    fn load(&self, name: &'static str, pipeline: Option<u32>, numbers: [&'static str; 3]) -> Load {
        let client = match pipeline {
            None => Client::Http {
                port: self.http,
                path: "/v1/check",
                body: r#"{"limits":"gcra 1000000/minute","key":"KEY"}"#,
            },
            Some(pipeline) => {
                let words = ["CL.THROTTLE", "key:__rand_int__"];
                Client::Resp {
                    port: self.resp,
                    words: words.into_iter().chain(numbers).collect(),
                    pipeline,
                    slowness: 1,
                }
            }
        };
        Load {
            name,
            pid: self.server.pid(),
            client,
        }
    }
}

/// Replays a generated log and prints the time and the largest resident size.
fn replay(program: &Path, folder: &Folder, lines: u64) -> anyhow::Result<()> {
    let file = folder.path().join("access.log");
    write_log(&file, lines)?;
    let begun = Instant::now();
    let mut child = Command::new(program)
        .arg("replay")
        .arg(&file)
        .args(["--policy", "60/minute burst=20"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let mut peak_kb = 0;
    let status = loop {
        if let Ok(status) = std::fs::read_to_string(format!("/proc/{}/status", child.id())) {
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let kb = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
            peak_kb = peak_kb.max(kb.unwrap_or(0));
        }
        match child.try_wait()? {
            Some(status) => break status,
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    ensure!(status.success(), "tidegate replay failed");
    let seconds = begun.elapsed().as_secs_f64();
    let per_second = lines as f64 / seconds;
    println!(
        "| {lines} lines | {seconds:.1} | {per_second:.0} | {} |",
        peak_kb / 1_000
    );
    std::fs::remove_file(&file)?;
    Ok(())
}

/// Writes a day of requests of 20,000 addresses, a few of them busy.
fn write_log(file: &Path, lines: u64) -> anyhow::Result<()> {
    let mut writer = BufWriter::with_capacity(1 << 20, std::fs::File::create(file)?);
    let mut random = fastrand::Rng::with_seed(1);
    let mut line = String::new();
    for index in 0..lines {
        let second = index * 86_400 / lines;
        let client = (20_000_f64.powf(random.f64())) as u32;
        line.clear();
        writeln!(
            line,
            "198.51.{}.{} - - [05/Jan/2026:{:02}:{:02}:{:02} +0000] \"GET /page/{} HTTP/1.1\" 200 {} \
             \"-\" \"Mozilla/5.0 (X11; Linux x86_64)\"",
            client / 256,
            client % 256,
            second / 3_600,
            second / 60 % 60,
            second % 60,
            index % 97,
            index % 5_000
        )?;
        writer.write_all(line.as_bytes())?;
    }
    Ok(writer.flush()?)
}
