//! Clients in processes of their own, which a test kills and stops.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tidegate_testkit::Folder;

const URL: &str = "TIDEGATE_FLEET_URL";
const FILE: &str = "TIDEGATE_FLEET_FILE";

/// Processes of this test program. Each runs only the test `client`, which writes a line for each
/// admission immediately, so that a kill loses none.
pub struct Clients {
    url: String,
    folder: Folder,
    running: Vec<Child>,
    started: usize,
}

/// Returns the URL of Redis and the file to write to, or `None` outside a client process.
pub fn client_settings() -> Option<(String, PathBuf)> {
    Some((std::env::var(URL).ok()?, std::env::var_os(FILE)?.into()))
}

impl Clients {
    pub fn start(url: String, count: usize) -> Self {
        let mut clients = Self {
            url,
            folder: Folder::new(),
            running: Vec::new(),
            started: 0,
        };
        (0..count).for_each(|_| clients.start_one());
        clients
    }

    fn start_one(&mut self) {
        let file = self.folder.path().join(format!("client-{}", self.started));
        self.started += 1;
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "client", "--nocapture"])
            .env(URL, &self.url)
            .env(FILE, file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        self.running.push(child);
    }

    /// Returns the number of clients started so far.
    pub fn started(&self) -> usize {
        self.started
    }

    /// Kills the oldest client with SIGKILL and starts a new one.
    pub fn replace_oldest(&mut self) {
        let mut oldest = self.running.remove(0);
        oldest.kill().unwrap();
        oldest.wait().unwrap();
        self.start_one();
    }

    /// Sends a signal to the newest client.
    pub fn signal_newest(&self, signal: &str) {
        let newest = self.running.last().unwrap().id().to_string();
        let status = Command::new("kill").args([signal, &newest]).status();
        assert!(status.unwrap().success());
    }

    /// Returns the lines that all clients have written. The last one of a killed client may be
    /// incomplete, and is left out.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for entry in std::fs::read_dir(self.folder.path()).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            let whole = text
                .split_inclusive('\n')
                .filter_map(|line| line.strip_suffix('\n'));
            lines.extend(whole.map(str::to_owned));
        }
        lines
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        for client in &mut self.running {
            // The client may have exited already.
            let _ = client.kill();
            let _ = client.wait();
        }
    }
}
