//! Configuration reloads under load. A new configuration applies as a whole or not at all.
// Test helpers panic when they fail.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{ServerProcess, TIMEOUT};
use tidegate_testkit::Folder;
use tidegate_testkit::http::HttpAnswer;
use tidegate_testkit::redis::{TlsFiles, wait_for};

/// Two configurations that differ in everything that a response shows.
const ONE: &str = "http.headers = \"draft-11\"\n[policies.api]\nlimits = \"fixed_window 100000000/300 days\"\n[policies.one]\nlimits = \"1/s\"\n";
const OTHER: &str = "http.headers = \"legacy-delta\"\n[policies.api]\nlimits = \"fixed_window 200000000/300 days\"\n[policies.other]\nlimits = \"1/s\"\n";

/// Replaces a file by a rename, as editors and deployments do.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, path).unwrap();
}

/// Returns `true` if the first configuration decided, `false` if the second did. Panics on a mix of
/// both.
fn decided_by_one(response: &HttpAnswer) -> bool {
    assert_eq!(response.status, 200, "{response:?}");
    let limit = response.json()["limit"].as_u64().unwrap();
    match (
        limit,
        response.field("ratelimit"),
        response.field("x-ratelimit-limit"),
    ) {
        (100_000_000, Some(_), None) => true,
        (200_000_000, None, Some(_)) => false,
        _ => panic!("a mix of both configurations: {response:?}"),
    }
}

fn is_one(server: &ServerProcess) -> bool {
    decided_by_one(&server.post("/v1/peek", r#"{"policy": "api", "key": "unused"}"#))
}

#[test]
fn reloads_under_load_fail_no_request_and_mix_no_configurations() {
    let folder = Folder::new();
    let path = folder.write("serve.toml", ONE);
    let server = ServerProcess::start(&["--config", &path]);
    let (is_over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = server.client();
                while !is_over.load(Ordering::Relaxed) {
                    decided_by_one(
                        &client
                            .post("/v1/check", r#"{"policy": "api", "key": "k"}"#)
                            .unwrap(),
                    );
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 0..6 {
            let is_one_next = round % 2 == 1;
            replace(Path::new(&path), if is_one_next { ONE } else { OTHER });
            // The first reloads are triggered by the signal, the others by the file alone.
            if round < 3 {
                server.signal("-HUP");
            }
            let changed = wait_for(TIMEOUT, || is_one(&server) == is_one_next);
            is_over.store(!changed, Ordering::Relaxed);
            assert!(changed, "round {round}: {}", server.log());
        }
        is_over.store(true, Ordering::Relaxed);
    });
    // No check was lost, and none was counted twice.
    let state = server
        .post("/v1/peek", r#"{"policy": "api", "key": "k", "cost": 0}"#)
        .json();
    assert_eq!(
        state["limit"].as_u64().unwrap() - state["remaining"].as_u64().unwrap(),
        sent.into_inner()
    );
    // The metric is incremented after the configuration is in use.
    assert!(wait_for(TIMEOUT, || server
        .metric("tidegate_config_reloads_total")
        >= 6));
    assert_eq!(server.metric("tidegate_config_reloads_total"), 6);
    assert_eq!(server.metric("tidegate_config_reload_errors_total"), 0);
}

#[test]
fn an_invalid_configuration_changes_nothing() {
    let folder = Folder::new();
    let path = folder.write("serve.toml", ONE);
    let server = ServerProcess::start(&["--config", &path]);
    let hash = server.client().get("/readyz").unwrap().json()["config"].clone();
    let bad = [
        (
            "[policies.api]\nlimits = \"100/fortnight\"\n",
            "line 2, column 10",
        ),
        ("[policies.api\n", "line 1"),
        ("policy.api = 1\n", "unknown field `policy`"),
        ("", "all policies would be removed"),
        (
            &format!("store.url = \"memory://?max_keys=5\"\n{ONE}"),
            "`store` cannot be changed while the server runs",
        ),
        (
            &format!("{ONE}[[token]]\nscopes = [\"check\"]\nfile = \"/nowhere\"\n"),
            "token[0]: /nowhere",
        ),
    ];
    for (number, (text, expected)) in bad.into_iter().enumerate() {
        replace(Path::new(&path), text);
        server.signal("-HUP");
        server.wait_for_log(expected);
        assert!(is_one(&server));
        assert!(server.metric("tidegate_config_reload_errors_total") > number as u64);
    }
    assert_eq!(
        server.client().get("/readyz").unwrap().json()["config"],
        hash
    );
    assert_eq!(server.metric("tidegate_config_last_reload_successful"), 0);
    replace(Path::new(&path), ONE);
    assert!(wait_for(TIMEOUT, || server
        .metric("tidegate_config_last_reload_successful")
        == 1));
    // The file is deleted and created again.
    std::fs::remove_file(&path).unwrap();
    server.wait_for_log("No such file");
    replace(Path::new(&path), OTHER);
    assert!(wait_for(TIMEOUT, || !is_one(&server)));
    assert_ne!(
        server.client().get("/readyz").unwrap().json()["config"],
        hash
    );
}

/// The layout of Kubernetes: the file is a link to a link to a folder, and the link in the middle
/// is swapped.
#[test]
fn a_swapped_link_triggers_a_reload() {
    let folder = Folder::new();
    for (name, text) in [("v1", ONE), ("v2", OTHER)] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
        std::fs::write(folder.path().join(name).join("serve.toml"), text).unwrap();
    }
    let link =
        |to: &str, name: &str| std::os::unix::fs::symlink(to, folder.path().join(name)).unwrap();
    link("v1", "..data");
    link("..data/serve.toml", "serve.toml");
    let path = folder.path().join("serve.toml").display().to_string();
    let server = ServerProcess::start(&["--config", &path]);
    assert!(is_one(&server));
    link("v2", "..data_tmp");
    std::fs::rename(
        folder.path().join("..data_tmp"),
        folder.path().join("..data"),
    )
    .unwrap();
    assert!(wait_for(TIMEOUT, || !is_one(&server)), "{}", server.log());
}

/// The layout of many deployments: a link points at the current release folder.
#[test]
fn a_swapped_release_folder_triggers_a_reload() {
    let folder = Folder::new();
    for (name, text) in [("v1", ONE), ("v2", OTHER)] {
        std::fs::create_dir_all(folder.path().join(name).join("etc")).unwrap();
        std::fs::write(folder.path().join(name).join("etc/serve.toml"), text).unwrap();
    }
    let link =
        |to: &str, name: &str| std::os::unix::fs::symlink(to, folder.path().join(name)).unwrap();
    link("v1", "current");
    let path = folder
        .path()
        .join("current/etc/serve.toml")
        .display()
        .to_string();
    let server = ServerProcess::start(&["--config", &path]);
    assert!(is_one(&server));
    for (to, is_one_next) in [("v2", false), ("v1", true)] {
        link(to, "next");
        std::fs::rename(folder.path().join("next"), folder.path().join("current")).unwrap();
        assert!(
            wait_for(TIMEOUT, || is_one(&server) == is_one_next),
            "{}",
            server.log()
        );
    }
}

#[test]
fn tokens_and_certificates_are_reloaded() {
    let (folder, files, others) = (Folder::new(), TlsFiles::make(), TlsFiles::make());
    for name in ["redis.crt", "redis.key"] {
        std::fs::copy(files.path(name), folder.path().join(name)).unwrap();
    }
    let shown = |name: &str| folder.path().join(name).display().to_string();
    let token = folder.write("token", "the-first-token-of-all");
    let tls = format!(
        "resp.tls = {{ cert = \"{}\", key = \"{}\" }}\n",
        shown("redis.crt"),
        shown("redis.key")
    );
    let policies = ONE.replacen("http.headers = \"draft-11\"\n", "", 1);
    let tokens = format!("[[token]]\nscopes = [\"check\"]\nfile = \"{token}\"\n");
    let path = folder.write("serve.toml", &[&tls[..], &tokens, &policies].concat());
    let server = ServerProcess::start(&["--config", &path]);
    let status = |token: &str| {
        let fields = format!("authorization: Bearer {token}\r\n");
        server
            .client()
            .post_with("/v1/peek", &fields, r#"{"policy": "api", "key": "k"}"#)
            .unwrap()
            .status
    };
    assert_eq!(
        (
            status("the-first-token-of-all"),
            status("the-second-token-of-all")
        ),
        (200, 401)
    );
    folder.write("token", "the-second-token-of-all");
    assert!(
        wait_for(TIMEOUT, || (
            status("the-first-token-of-all"),
            status("the-second-token-of-all")
        ) == (401, 200)),
        "{}",
        server.log()
    );

    let trusts = |files: &TlsFiles| {
        let port = server.resp.port().to_string();
        let ca = files.path("ca.crt");
        let arguments = [
            "-p",
            &port,
            "--tls",
            "--cacert",
            &ca,
            "--no-auth-warning",
            "-a",
            "the-second-token-of-all",
            "PING",
        ];
        let output = std::process::Command::new("redis-cli")
            .args(arguments)
            .output()
            .unwrap();
        output.stdout == b"PONG\n"
    };
    assert!(trusts(&files) && !trusts(&others));
    // A certificate without its key is rejected, and the old one stays in use.
    std::fs::copy(others.path("redis.crt"), folder.path().join("redis.crt")).unwrap();
    server.wait_for_log("configuration rejected");
    assert!(trusts(&files));
    std::fs::copy(others.path("redis.key"), folder.path().join("redis.key")).unwrap();
    assert!(wait_for(TIMEOUT, || trusts(&others)), "{}", server.log());
    assert!(!trusts(&files));
    // A half-written file may lack its tokens, so the removal of all tokens is rejected.
    replace(Path::new(&path), &[tls, policies].concat());
    server.wait_for_log("all tokens of scope check would be removed");
    assert_eq!(status("the-first-token-of-all"), 401);
}
