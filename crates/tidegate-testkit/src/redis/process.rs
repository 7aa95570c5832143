//! A process that ends with the test that started it, however the test ends.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::wait_for;
use crate::folder::new_folder;

/// Waits until its standard input closes, which it does when the test's process is gone for any reason, and then ends the
/// program and takes its folder away.
const WATCHDOG: &str = r#"
dir=$1; shift
cd "$dir" || exit 1
"$@" </dev/null >"$dir/log" 2>&1 &
pid=$!
echo $pid
read -r _
kill -9 $pid 2>/dev/null
wait $pid 2>/dev/null
rm -rf "$dir"
"#;

pub(super) struct Process {
    watchdog: Child,
    pid: u32,
}

impl Process {
    /// Starts a program in a folder of its own.
    pub(super) fn start(
        program: &str,
        arguments: &[String],
        environment: &[(String, String)],
    ) -> Self {
        let folder = new_folder();
        let mut watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .arg(&folder)
            .arg(program)
            .args(arguments)
            .envs(environment.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell can be started");
        let mut line = String::new();
        let stdout = watchdog.stdout.take().expect("its output is piped");
        BufReader::new(stdout)
            .read_line(&mut line)
            .expect("the watchdog tells the pid");
        let pid = line.trim().parse().expect("a pid is a number");
        Self { watchdog, pid }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn signal(&self, signal: &str) {
        let kill = format!("kill -{signal} {}", self.pid);
        let status = Command::new("sh")
            .args(["-c", &kill])
            .stderr(Stdio::null())
            .status();
        assert!(status.is_ok(), "a shell can be started");
    }

    pub(super) fn is_running(&self) -> bool {
        // One that has ended and that nobody has waited for yet is still listed, as a zombie.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        stat.rsplit(") ")
            .next()
            .is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
    }

    pub(super) fn wait_until_gone(&self) {
        assert!(
            wait_for(Duration::from_secs(10), || !self.is_running()),
            "a killed process is still there"
        );
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Tells the watchdog, which does the rest.
        drop(self.watchdog.stdin.take());
        let _ = self.watchdog.wait();
    }
}
