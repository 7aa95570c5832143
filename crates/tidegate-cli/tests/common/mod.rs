//! `tidegate serve` as a process, on free ports. Dropping it kills the process.
// Each test program uses a part of this module, and helpers panic when they fail.
#![allow(dead_code, clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_testkit::http::{HttpAnswer, HttpClient};
use tidegate_testkit::redis::wait_for;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the command, without the TIDEGATE variables of this environment.
pub(crate) fn tidegate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    for name in std::env::vars()
        .map(|(name, _)| name)
        .filter(|name| name.starts_with("TIDEGATE"))
    {
        command.env_remove(name);
    }
    command
}

pub(crate) struct ServerProcess {
    child: Child,
    pub(crate) http: SocketAddr,
    pub(crate) resp: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// The message that the server printed when it started.
    pub(crate) greeting: String,
    errors: Arc<Mutex<String>>,
}

impl ServerProcess {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_command(tidegate().arg("serve"), arguments)
    }

    pub(crate) fn start_command(command: &mut Command, arguments: &[&str]) -> Self {
        let any = [
            "--http",
            "127.0.0.1:0",
            "--resp",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
        ];
        command
            .args(any)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let errors = Arc::new(Mutex::new(String::new()));
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let kept = Arc::clone(&errors);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                kept.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut greeting = String::new();
        while !greeting.contains("Try: ") {
            let read = stdout.read_line(&mut greeting).unwrap();
            assert!(
                read > 0,
                "the server did not start: {greeting}\n{}",
                errors.lock().unwrap()
            );
        }
        let address = |name: &str| {
            let line = greeting
                .lines()
                .find(|line| line.starts_with(&format!("  {name}")))
                .unwrap();
            let text = line.split_whitespace().nth(1).unwrap();
            let text = text
                .trim_start_matches("https://")
                .trim_start_matches("http://");
            text.trim_end_matches("/metrics").parse().unwrap()
        };
        let (http, resp, admin) = (address("http"), address("resp"), address("admin"));
        Self {
            http,
            resp,
            admin,
            child,
            greeting,
            errors,
        }
    }

    pub(crate) fn client(&self) -> HttpClient {
        HttpClient::connect(self.http).unwrap()
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> HttpAnswer {
        self.client().post(path, body).unwrap()
    }

    /// Returns the value of a metric. The name includes the labels.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let text = HttpClient::connect(self.admin)
            .unwrap()
            .get("/metrics")
            .unwrap()
            .body;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value
            .unwrap_or_else(|| panic!("no {name} in {text}"))
            .parse()
            .unwrap()
    }

    /// Returns the log so far.
    pub(crate) fn log(&self) -> String {
        self.errors.lock().unwrap().clone()
    }

    pub(crate) fn wait_for_log(&self, text: &str) {
        assert!(
            wait_for(TIMEOUT, || self.log().contains(text)),
            "no {text:?} in {}",
            self.log()
        );
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([name, &self.pid().to_string()])
            .status()
            .unwrap();
        assert!(status.success());
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        let ended = wait_for(TIMEOUT, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(ended, "the server does not exit: {}", self.log());
        status.unwrap()
    }

    /// Returns the resident memory in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/statm", self.pid())).unwrap();
        text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

/// Runs the command, asserts exit code 0 and returns standard output.
pub(crate) fn success(arguments: &[&str]) -> String {
    let output = tidegate().args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the command, asserts exit code 2 and returns standard error.
pub(crate) fn failure(arguments: &[&str]) -> String {
    let output = tidegate().args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}
