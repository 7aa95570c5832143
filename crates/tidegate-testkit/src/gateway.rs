//! Real gateways in front of a server, and a small application behind them. All end with the test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::folder::new_folder;
use crate::http::{HttpAnswer, HttpClient};
use crate::redis::process::Process;
use crate::redis::{free_port, wait_for};

/// A gateway: Envoy, nginx, Caddy, HAProxy or Traefik.
pub struct Gateway {
    address: SocketAddr,
    /// Ends it.
    _process: Process,
}

/// A program with its configuration files.
pub struct GatewayProgram<'a> {
    /// The program.
    pub program: PathBuf,
    /// Its arguments. It runs in the folder with its files.
    pub arguments: &'a [&'a str],
    /// The files, by name.
    pub files: &'a [(&'a str, &'a str)],
    /// Addresses in the files, and those to use instead. `None` is a free port.
    pub addresses: &'a [(&'a str, Option<SocketAddr>)],
    /// The address in the files at which clients reach it.
    pub listens_at: &'a str,
}

impl Gateway {
    /// Starts a gateway and waits until it accepts connections.
    #[must_use]
    pub fn start(gateway: &GatewayProgram<'_>) -> Self {
        // Another process may take a port after it was found free.
        for _ in 0..5 {
            if let Some(started) = Self::try_start(gateway) {
                return started;
            }
        }
        panic!("{} did not start", gateway.program.display());
    }

    fn try_start(gateway: &GatewayProgram<'_>) -> Option<Self> {
        let folder = new_folder();
        let mut address = None;
        let replaced: Vec<(&str, SocketAddr)> = gateway
            .addresses
            .iter()
            .map(|(text, wanted)| {
                let free = || SocketAddr::from(([127, 0, 0, 1], free_port()));
                let used = wanted.unwrap_or_else(free);
                if *text == gateway.listens_at {
                    address = Some(used);
                }
                (*text, used)
            })
            .collect();
        for (name, text) in gateway.files {
            let text = with_addresses(text, &replaced);
            std::fs::write(folder.join(name), text).expect("a file can be written");
        }
        let program = gateway.program.display().to_string();
        let arguments: Vec<String> = gateway
            .arguments
            .iter()
            .map(|text| (*text).to_owned())
            .collect();
        let process = Process::start_in(&folder, &program, &arguments, &[]);
        let address = address.expect("the gateway's address is one of those replaced");
        let is_up = wait_for(Duration::from_secs(20), || {
            !process.is_running() || TcpStream::connect(address).is_ok()
        });
        let is_running = process.is_running();
        if !is_running {
            eprintln!(
                "{}",
                std::fs::read_to_string(folder.join("log")).unwrap_or_default()
            );
        }
        (is_up && is_running).then_some(Self {
            address,
            _process: process,
        })
    }

    /// Returns the address of the gateway.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a request on a new connection. `fields` are header lines that end with `\r\n`.
    #[must_use]
    pub fn get(&self, path: &str, fields: &str) -> HttpAnswer {
        let mut client =
            HttpClient::connect(self.address).expect("the gateway accepts connections");
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: {}\r\n{fields}\r\n",
            self.address
        );
        client
            .send(head.as_bytes())
            .expect("the gateway reads requests");
        client.receive().expect("the gateway answers")
    }
}

/// Replaces addresses, and the forms of Envoy and Caddy.
fn with_addresses(text: &str, replaced: &[(&str, SocketAddr)]) -> String {
    let mut text = text.to_owned();
    for (old, new) in replaced {
        let port = old.rsplit(':').next().unwrap_or_default();
        text = text
            .replace(
                &format!("port_value: {port} "),
                &format!("port_value: {} ", new.port()),
            )
            .replace(
                &format!("http://:{port} "),
                &format!("http://:{} ", new.port()),
            )
            .replace(old, &new.to_string());
    }
    text
}

/// Returns a program that `cargo xtask test` installs in target/tools.
#[must_use]
pub fn tool(name: &str) -> PathBuf {
    crate::tools::folder().join("python/bin").join(name)
}

/// Returns a program of the system.
#[must_use]
pub fn system_program(name: &str) -> PathBuf {
    let folders = ["/usr/sbin", "/usr/bin", "/usr/local/bin"];
    let found = folders
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is missing: `cargo xtask test` installs it"))
}

/// An application that answers every request with 200 and `app`, and counts requests at a time.
pub struct App {
    address: SocketAddr,
    counts: Arc<AppCounts>,
}

#[derive(Default)]
struct AppCounts {
    now: AtomicUsize,
    most: AtomicUsize,
    served: AtomicUsize,
}

/// The time that a request takes.
const WORK: Duration = Duration::from_millis(2);

impl App {
    /// Starts the application on a free port. Its threads end with the test.
    #[must_use]
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("the address is known");
        let counts = Arc::new(AppCounts::default());
        let shared = Arc::clone(&counts);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let counts = Arc::clone(&shared);
                std::thread::spawn(move || serve(stream, &counts));
            }
        });
        Self { address, counts }
    }

    /// Returns its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the largest number of requests at a time.
    #[must_use]
    pub fn most_at_a_time(&self) -> usize {
        self.counts.most.load(Ordering::SeqCst)
    }

    /// Returns the number of requests.
    #[must_use]
    pub fn served(&self) -> usize {
        self.counts.served.load(Ordering::SeqCst)
    }
}

fn serve(mut stream: TcpStream, counts: &AppCounts) {
    let Ok(reader) = stream.try_clone() else {
        return;
    };
    let mut reader = BufReader::new(reader);
    loop {
        let mut length = 0;
        let mut line = String::new();
        loop {
            line.clear();
            match reader.read_line(&mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) if line == "\r\n" => break,
                Ok(_) => {
                    let field = line.to_ascii_lowercase();
                    if let Some(text) = field.strip_prefix("content-length:") {
                        length = text.trim().parse().unwrap_or(0);
                    }
                }
            }
        }
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        let now = counts.now.fetch_add(1, Ordering::SeqCst) + 1;
        counts.most.fetch_max(now, Ordering::SeqCst);
        counts.served.fetch_add(1, Ordering::SeqCst);
        std::thread::park_timeout(WORK);
        counts.now.fetch_sub(1, Ordering::SeqCst);
        let answer = b"HTTP/1.1 200 OK\r\nx-tokens: 400\r\ncontent-length: 4\r\n\r\napp\n";
        if stream.write_all(answer).is_err() {
            return;
        }
    }
}
