//! `tidegate top`, completions and manual pages, and the help of every command.
// Helpers panic when a test should fail.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod common;

use std::process::Command;

use serde_json::Value;
use tidegate_testkit::Folder;
use tidegate_testkit::redis::wait_for;

use common::{ServerProcess, TIMEOUT, failure, success};

fn limited_server(folder: &Folder) -> ServerProcess {
    let config = folder.write(
        "tidegate.toml",
        "[admin]\nshow_keys = true\n[policies.login]\nlimits = \"sliding_window_log 2/hour\"\n",
    );
    let server = ServerProcess::start(&["--config", &config]);
    for _ in 0..5 {
        server.post("/v1/check", r#"{"policy":"login","key":"user:42"}"#);
    }
    server
}

#[test]
fn figures_are_printed_once_without_a_terminal() {
    let folder = Folder::new();
    let server = limited_server(&folder);
    let url = format!("http://{}", server.admin);
    let mut text = String::new();
    let is_seen = wait_for(TIMEOUT, || {
        text = success(&["top", &url]);
        text.contains("sliding_window_log 2/hour")
    });
    assert!(is_seen, "{text}");
    assert!(
        text.contains("sliding_window_log 2/hour") && text.contains("59 min"),
        "{text}"
    );
    assert!(!text.contains('\x1b'), "no colours in a pipe");
    let json: Value =
        serde_json::from_str(&success(&["top", &url, "--once", "-o", "json"])).unwrap();
    assert_eq!(json["denied"][0]["key"], "user:42");
}

/// In a real terminal it draws, selects and quits, and leaves the terminal as it was.
#[test]
fn the_screen_is_drawn_in_a_terminal() {
    let folder = Folder::new();
    let server = limited_server(&folder);
    let program = env!("CARGO_BIN_EXE_tidegate");
    let session = format!("tidegate-top-{}", std::process::id());
    let tmux = |arguments: &[&str]| {
        let output = Command::new("tmux")
            .args(["-L", &session])
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let command = format!(
        "{program} top http://{}; echo ended $?; sleep 60",
        server.admin
    );
    tmux(&["new-session", "-d", "-x", "120", "-y", "40", &command]);
    let mut screen = String::new();
    let mut shows = |wanted: &str| {
        let is_shown = wait_for(TIMEOUT, || {
            screen = tmux(&["capture-pane", "-p"]);
            screen.contains(wanted)
        });
        assert!(is_shown, "no {wanted} in {screen}");
    };
    shows("user:42");
    tmux(&["send-keys", "Down"]);
    shows("sends before it may");
    tmux(&["send-keys", "Tab"]);
    shows("busiest keys");
    tmux(&["send-keys", "q"]);
    shows("ended 0");
    tmux(&["kill-server"]);
}

#[test]
fn errors_say_what_to_do() {
    let folder = Folder::new();
    let token = folder.write("token", "a-token-for-operators");
    let config = folder.write(
        "tidegate.toml",
        &format!("[[token]]\nscopes = [\"admin\"]\nfile = {token:?}\n"),
    );
    let server = ServerProcess::start(&["--config", &config]);
    let admin = format!("http://{}", server.admin);
    assert!(failure(&["top", &admin]).contains("set TIDEGATE_TOKEN"));
    assert!(success(&["top", &admin, "--token-file", &token]).contains("per second"));
    let checks = format!("http://{}", server.http);
    assert!(failure(&["top", &checks]).contains("expected the admin listener"));
    assert!(failure(&["top", "http://127.0.0.1:1"]).contains("refused"));
    assert!(failure(&["top", "localhost"]).contains("expected the URL"));
}

#[test]
fn completions_and_manual_pages_are_generated() {
    for (shell, expected) in [
        ("bash", "_tidegate()"),
        ("zsh", "#compdef tidegate"),
        ("fish", "complete -c tidegate"),
    ] {
        assert!(
            success(&["completions", shell]).contains(expected),
            "{shell}"
        );
    }
    let folder = Folder::new();
    success(&["completions", "--write", folder.path().to_str().unwrap()]);
    for page in ["tidegate.1", "tidegate-replay.1", "tidegate-config-check.1"] {
        let text = std::fs::read_to_string(folder.path().join("man/man1").join(page)).unwrap();
        assert!(text.contains(".SH SYNOPSIS"), "{page}");
    }
    assert!(failure(&["completions"]).contains("Usage"));
    assert!(failure(&["completions", "tcsh"]).contains("possible values"));
}

/// Every command explains itself, with its exit code and examples.
#[test]
fn every_command_has_help_with_examples() {
    for command in [
        "serve",
        "check",
        "peek",
        "charge",
        "refund",
        "explain",
        "simulate",
        "replay",
        "top",
        "bench",
        "doctor",
        "verify",
        "completions",
    ] {
        let help = success(&[command, "--help"]);
        assert!(help.contains("Examples:"), "{command}");
        let is_plain = matches!(command, "serve" | "completions");
        assert!(
            is_plain || help.to_lowercase().contains("exit code"),
            "{command}"
        );
        assert!(
            help.lines().all(|line| line.chars().count() <= 110),
            "{command}"
        );
    }
}
