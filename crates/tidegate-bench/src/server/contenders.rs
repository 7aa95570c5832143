//! The servers under measurement. They run on free ports, on one core, and end with the benchmark.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use tidegate_testkit::redis::{free_port, wait_for};

use super::load::{Client, Load};

/// A server process.
pub(crate) struct Server {
    child: Child,
}

impl Server {
    /// Starts a program on the first core and waits until it listens.
    pub(crate) fn start(
        program: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
        port: u16,
    ) -> anyhow::Result<Self> {
        let mut command = Command::new("taskset");
        command.args(["-c", "0"]).arg(program).args(arguments);
        command.envs(environment.iter().copied());
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let server = Self { child };
        let is_up = wait_for(Duration::from_secs(10), || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        ensure!(is_up, "{} does not listen on {port}", program.display());
        Ok(server)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All servers of the benchmark.
pub(super) struct Contenders {
    redis: (Server, u16),
    crab: (Server, u16, u16),
    tidegate: (Server, u16, u16),
}

impl Contenders {
    pub(super) fn start() -> anyhow::Result<Self> {
        let [redis, crab_resp, crab_http, resp, http] = std::array::from_fn(|_| free_port());
        let texts = [redis, crab_resp, crab_http, resp, http].map(|port| port.to_string());
        let [redis_text, crab_resp_text, crab_http_text, ..] = &texts;
        let redis_arguments = ["--port", redis_text, "--save", "", "--appendonly", "no"];
        let redis_server = Server::start(Path::new("redis-server"), &redis_arguments, &[], redis)?;
        let crab_arguments = [
            "--redis",
            "--redis-host",
            "127.0.0.1",
            "--redis-port",
            crab_resp_text,
            "--http",
            "--http-host",
            "127.0.0.1",
            "--http-port",
            crab_http_text,
            "--log-level",
            "error",
        ];
        let crab = Server::start(&throttlecrab()?, &crab_arguments, &[], crab_http)?;
        let ours = std::env::var_os("TIDEGATE_BIN")
            .context("TIDEGATE_BIN is not set: run `cargo xtask bench server`")?;
        let (resp_text, http_text) = (format!("127.0.0.1:{resp}"), format!("127.0.0.1:{http}"));
        let arguments = [
            "serve", "--resp", &resp_text, "--http", &http_text, "--admin", "off",
        ];
        let tidegate = Server::start(Path::new(&ours), &arguments, &[], http)?;
        Ok(Self {
            redis: (redis_server, redis),
            crab: (crab, crab_resp, crab_http),
            tidegate: (tidegate, resp, http),
        })
    }

    /// Returns the contenders of a row: over RESP with this pipeline length, or over HTTP.
    pub(super) fn of(&self, pipeline: Option<u32>) -> Vec<Load> {
        let (redis, redis_port) = &self.redis;
        let (crab, crab_resp, crab_http) = &self.crab;
        let (tidegate, own_resp, http) = &self.tidegate;
        let load = |name, server: &Server, client| Load {
            name,
            pid: server.pid(),
            client,
        };
        let Some(pipeline) = pipeline else {
            let crab_body =
                r#"{"key":"KEY","max_burst":1000000,"count_per_period":1000000,"period":60}"#;
            let body = r#"{"limits":"gcra 1000000/minute","key":"KEY"}"#;
            return vec![
                load(
                    super::CRAB,
                    crab,
                    Client::Http {
                        port: *crab_http,
                        path: "/throttle",
                        body: crab_body,
                    },
                ),
                load(
                    "tidegate",
                    tidegate,
                    Client::Http {
                        port: *http,
                        path: "/v1/check",
                        body,
                    },
                ),
            ];
        };
        const NUMBERS: [&str; 3] = ["1000000", "1000000", "60"];
        let resp = |port, words: &[&'static str], numbers: &[&'static str], slowness| {
            let words = words
                .iter()
                .chain(&["key:__rand_int__"])
                .chain(numbers)
                .copied()
                .collect();
            Client::Resp {
                port,
                words,
                pipeline,
                slowness,
            }
        };
        vec![
            load(super::INCR, redis, resp(*redis_port, &["INCR"], &[], 1)),
            // With a pipeline, throttlecrab waits for the client's delayed acknowledgement.
            load(
                super::CRAB,
                crab,
                resp(
                    *crab_resp,
                    &["THROTTLE"],
                    &NUMBERS,
                    if pipeline > 1 { 20 } else { 1 },
                ),
            ),
            load(
                "tidegate",
                tidegate,
                resp(*own_resp, &["CL.THROTTLE"], &NUMBERS, 1),
            ),
        ]
    }

    pub(super) fn tidegate(&self) -> (SocketAddr, SocketAddr, u32) {
        let (server, resp, http) = &self.tidegate;
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        (at(*http), at(*resp), server.pid())
    }
}

/// Returns throttlecrab-server. The first call downloads and builds it into the target folder.
pub(crate) fn throttlecrab() -> anyhow::Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peers");
    let program = folder.join("bin/throttlecrab-server");
    if !program.exists() {
        eprintln!(
            "> cargo install throttlecrab-server 0.4.40 (takes minutes; needs protoc from protobuf-compiler)"
        );
        let install = [
            "install",
            "--quiet",
            "--locked",
            "throttlecrab-server",
            "--version",
            "0.4.40",
            "--root",
        ];
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo)
            .args(install)
            .arg(&folder)
            .current_dir("/")
            .status()?;
        ensure!(status.success(), "failed to install throttlecrab-server");
    }
    Ok(program)
}
