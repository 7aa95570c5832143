//! Real Redis servers on free ports. They end with the test, however it ends.

mod clock;
mod cluster;
pub(crate) mod process;
mod proxy;
mod sentinel;
mod tls;

use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

pub use self::clock::ShiftedClock;
pub use self::cluster::RedisCluster;
use self::process::Process;
pub use self::proxy::{Fault, Proxy};
pub use self::sentinel::RedisSentinels;
pub use self::tls::TlsFiles;

/// A reply from Redis.
pub use ::redis::Value;

/// A redis-server that belongs to one test.
pub struct RedisServer {
    program: String,
    port: u16,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    process: Process,
}

impl RedisServer {
    /// Starts a server that stores nothing on disk.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with additional settings, such as `["--maxmemory", "3mb"]`.
    #[must_use]
    pub fn start_with(settings: &[&str]) -> Self {
        Self::start_in("redis-server", settings, &[])
    }

    /// Starts another program that is a Redis server, such as Valkey.
    #[must_use]
    pub fn start_program(program: &std::path::Path) -> Self {
        Self::start_in(&program.display().to_string(), &[], &[])
    }

    /// Starts a server with a clock that can be shifted.
    #[must_use]
    pub fn start_with_clock(clock: &ShiftedClock) -> Self {
        Self::start_in("redis-server", &[], &clock.environment())
    }

    fn start_in(program: &str, settings: &[&str], environment: &[(String, String)]) -> Self {
        let settings: Vec<String> = settings
            .iter()
            .map(|setting| (*setting).to_owned())
            .collect();
        // Another process may take the port after it was found free and before Redis binds it.
        for _ in 0..10 {
            let port = free_port();
            let arguments = [standard_arguments(port), settings.clone()].concat();
            let process = Process::start(program, &arguments, environment);
            if wait_until_up(port, &process) {
                return Self {
                    program: program.to_owned(),
                    port,
                    arguments,
                    environment: environment.to_vec(),
                    process,
                };
            }
        }
        panic!("{program} did not start: is it installed? `cargo xtask test` installs it");
    }

    /// Returns its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Sends a command and returns the reply.
    pub fn command(&self, words: &[&str]) -> Value {
        command(self.port, words)
    }

    /// Sends a command to a server that may be about to exit or to close its connections. Returns
    /// `None` on failure.
    #[must_use]
    pub fn try_command(&self, words: &[&str]) -> Option<Value> {
        try_command(&mut connect(self.port).ok()?, words).ok()
    }

    /// Kills the process with SIGKILL and waits until it is gone.
    pub fn kill(&mut self) {
        self.process.signal("KILL");
        self.process.wait_until_gone();
    }

    /// Suspends the process with SIGSTOP: it accepts connections but does not reply.
    pub fn stop(&self) {
        self.process.signal("STOP");
    }

    /// Resumes the process with SIGCONT.
    pub fn go_on(&self) {
        self.process.signal("CONT");
    }

    /// Starts the server again after [`kill`](Self::kill), on the same port.
    pub fn restart(&mut self) {
        self.process = Process::start(&self.program, &self.arguments, &self.environment);
        assert!(
            wait_until_up(self.port, &self.process),
            "redis-server did not restart"
        );
    }

    /// Returns a section of the server's INFO reply.
    #[must_use]
    pub fn info(&self, section: &str) -> String {
        match self.command(&["INFO", section]) {
            Value::BulkString(text) => String::from_utf8_lossy(&text).into_owned(),
            Value::VerbatimString { text, .. } => text,
            other => panic!("INFO: expected text, got {other:?}"),
        }
    }

    /// Returns every key with its time to live in ms, or -1 if it has none.
    #[must_use]
    pub fn keys(&self) -> Vec<(Vec<u8>, i64)> {
        let mut connection = connect(self.port).expect("the server accepts connections");
        let keys: Vec<Vec<u8>> = ::redis::cmd("KEYS")
            .arg("*")
            .query(&mut connection)
            .expect("KEYS succeeds");
        let ttl = |key: Vec<u8>| {
            let ttl: i64 = ::redis::cmd("PTTL")
                .arg(&key)
                .query(&mut connection)
                .expect("PTTL succeeds");
            (key, ttl)
        };
        keys.into_iter()
            .map(ttl)
            .filter(|(_, ttl)| *ttl != -2)
            .collect()
    }
}

fn standard_arguments(port: u16) -> Vec<String> {
    let port = port.to_string();
    let words = [
        "--port",
        &port,
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "no",
        "--repl-diskless-sync-delay",
        "0",
    ];
    words.map(str::to_owned).to_vec()
}

/// Sends a command to a server on this machine.
pub(crate) fn command(port: u16, words: &[&str]) -> Value {
    let mut connection =
        connect(port).unwrap_or_else(|error| panic!("{words:?} to port {port}: {error}"));
    try_command(&mut connection, words)
        .unwrap_or_else(|error| panic!("{words:?} to port {port}: {error}"))
}

fn try_command(
    connection: &mut ::redis::Connection,
    words: &[&str],
) -> ::redis::RedisResult<Value> {
    let mut command = ::redis::Cmd::new();
    for word in words {
        command.arg(*word);
    }
    command.query(connection)
}

fn connect(port: u16) -> ::redis::RedisResult<::redis::Connection> {
    let client = ::redis::Client::open(format!("redis://127.0.0.1:{port}/"))?;
    client.get_connection_with_timeout(Duration::from_secs(5))
}

/// Waits until this process replies on the port. Returns false if it does not: another process may
/// have taken the port first.
fn wait_until_up(port: u16, process: &Process) -> bool {
    let is_ours = format!("process_id:{}\r\n", process.pid());
    let answers = || {
        let info = connect(port)
            .and_then(|mut connection| try_command(&mut connection, &["INFO", "server"]));
        info.is_ok_and(|info| sentinel::text(&info).contains(&is_ours))
    };
    wait_for(Duration::from_secs(10), || {
        answers() || !process.is_running()
    }) && answers()
}

/// Waits until `holds` returns true, for at most `longest`. Returns true if it did.
pub fn wait_for(longest: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let end = now() + longest;
    loop {
        if holds() {
            return true;
        }
        if now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the current time, for waits and measurements in tests on real servers.
#[must_use]
#[allow(clippy::disallowed_methods)] // No decision depends on it.
pub fn now() -> Instant {
    Instant::now()
}

/// Returns a free port below the range that the system assigns to outgoing connections.
#[must_use]
pub fn free_port() -> u16 {
    loop {
        let port = fastrand::u16(15_000..32_000);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}
