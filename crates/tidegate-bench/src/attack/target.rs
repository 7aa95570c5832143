//! The server under attack: a release binary on free ports, killed when it is dropped.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};
use tidegate_testkit::Folder;
use tidegate_testkit::http::HttpClient;

pub(super) struct Target {
    child: Child,
    _folder: Folder,
    pub(super) http: SocketAddr,
    pub(super) resp: SocketAddr,
    pub(super) admin: SocketAddr,
}

impl Target {
    /// Starts a server with a configuration and discards its log.
    pub(super) fn start(config: &str) -> anyhow::Result<Self> {
        let mut target = Self::start_with_log(config)?;
        if let Some(mut log) = target.child.stderr.take() {
            std::thread::spawn(move || {
                let mut bytes = [0; 65_536];
                while log.read(&mut bytes).is_ok_and(|read| read > 0) {}
            });
        }
        Ok(target)
    }

    /// Starts a server with a log that is not read.
    pub(super) fn start_with_log(config: &str) -> anyhow::Result<Self> {
        let binary = std::env::var("TIDEGATE_BIN")
            .context("TIDEGATE_BIN is not set: run `cargo xtask attack`")?;
        let folder = Folder::new();
        let path = folder.write("attack.toml", config);
        let mut child = Command::new(binary)
            .args([
                "serve",
                "--http",
                "127.0.0.1:0",
                "--resp",
                "127.0.0.1:0",
                "--admin",
                "127.0.0.1:0",
                "--config",
                &path,
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut stdout = BufReader::new(
            child
                .stdout
                .take()
                .context("standard output is not piped")?,
        );
        let mut greeting = String::new();
        while !greeting.contains("Try: ") {
            if stdout.read_line(&mut greeting)? == 0 {
                bail!("the server did not start: {greeting}");
            }
        }
        let address = |name: &str| -> anyhow::Result<SocketAddr> {
            let line = greeting
                .lines()
                .find(|line| line.starts_with(&format!("  {name}")));
            let text = line
                .and_then(|line| line.split_whitespace().nth(1))
                .with_context(|| format!("greeting: expected an address of {name}"))?;
            Ok(text
                .trim_start_matches("http://")
                .trim_end_matches("/metrics")
                .parse()?)
        };
        let (http, resp, admin) = (address("http")?, address("resp")?, address("admin")?);
        Ok(Self {
            child,
            _folder: folder,
            http,
            resp,
            admin,
        })
    }

    pub(super) fn client(&self) -> anyhow::Result<HttpClient> {
        Ok(HttpClient::connect(self.http)?)
    }

    /// Returns the resident memory, in MiB.
    pub(super) fn memory(&self) -> anyhow::Result<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/statm", self.child.id()))?;
        let pages: u64 = text
            .split(' ')
            .nth(1)
            .context("statm: expected two fields")?
            .parse()?;
        Ok((pages * 4_096) >> 20)
    }

    /// Returns the value of a metric; `name` includes its labels.
    pub(super) fn metric(&self, name: &str) -> anyhow::Result<u64> {
        let text = HttpClient::connect(self.admin)?.get("/metrics")?.body;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(value
            .with_context(|| format!("missing metric {name}"))?
            .parse()?)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
