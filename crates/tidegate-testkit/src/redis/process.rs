//! A process that ends with the test that started it, however the test ends.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::wait_for;
use crate::folder::new_folder;

/// Runs the program until standard input closes, then kills it and deletes its folder. Standard
/// input closes when the test's process ends for any reason.
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

pub(crate) struct Process {
    watchdog: Child,
    pid: u32,
}

impl Process {
    /// Starts a program in its own folder.
    pub(crate) fn start(
        program: &str,
        arguments: &[String],
        environment: &[(String, String)],
    ) -> Self {
        Self::start_in(&new_folder(), program, arguments, environment)
    }

    /// Starts a program in a folder, which is deleted when the program ends.
    pub(crate) fn start_in(
        folder: &Path,
        program: &str,
        arguments: &[String],
        environment: &[(String, String)],
    ) -> Self {
        let mut watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .arg(folder)
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
            .expect("the watchdog prints the pid");
        let pid = line.trim().parse().expect("a pid is a number");
        Self { watchdog, pid }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn signal(&self, signal: &str) {
        let kill = format!("kill -{signal} {}", self.pid);
        let status = Command::new("sh")
            .args(["-c", &kill])
            .stderr(Stdio::null())
            .status();
        assert!(status.is_ok(), "a shell can be started");
    }

    pub(crate) fn is_running(&self) -> bool {
        // A process that has ended is listed as a zombie until its parent waits for it.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        stat.rsplit(") ")
            .next()
            .is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
    }

    pub(crate) fn wait_until_gone(&self) {
        assert!(
            wait_for(Duration::from_secs(10), || !self.is_running()),
            "a killed process is still running"
        );
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Closing standard input makes the watchdog kill the program.
        drop(self.watchdog.stdin.take());
        let _ = self.watchdog.wait();
    }
}
