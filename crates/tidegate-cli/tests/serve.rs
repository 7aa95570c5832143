//! `tidegate serve`: startup, requests and shutdown.
// Test helpers panic when they fail.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{ServerProcess, TIMEOUT, tidegate};
use tidegate_testkit::Folder;
use tidegate_testkit::http::HttpClient;
use tidegate_testkit::redis::{RedisServer, TlsFiles, wait_for};

#[test]
fn serve_without_options_prints_a_command_to_try() {
    let server = ServerProcess::start(&[]);
    assert!(
        server.greeting.starts_with("tidegate 0.1.0 on memory://\n"),
        "{}",
        server.greeting
    );
    let curl = server
        .greeting
        .lines()
        .find_map(|line| line.strip_prefix("Try: "))
        .unwrap();
    let output = Command::new("bash")
        .args(["-c", &format!("{curl} --silent")])
        .output()
        .unwrap();
    let decision: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&decision["allowed"], &decision["remaining"]),
        (&true.into(), &4.into())
    );
    // No key is logged.
    server.post("/v1/check", r#"{"limits": "1/hour", "key": "user-secret"}"#);
    server.post("/v1/check", r#"{"limits": "1/hour", "key": "user-secret"}"#);
    assert!(!server.log().contains("secret"), "{}", server.log());
}

#[test]
fn invalid_settings_fail_at_startup() {
    let folder = Folder::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let bad = folder.write(
        "bad.toml",
        "[http]\nlisten = \"127.0.0.1:0\"\nheader = \"draft-11\"\n",
    );
    let damaged = folder.write("damaged", "this is not a snapshot, whatever it is");
    let cases: [(&[&str], &str); 10] = [
        (
            &[
                "--snapshot",
                "/dev/zero",
                "--http",
                "127.0.0.1:0",
                "--admin",
                "off",
            ],
            "/dev/zero: it is not a file",
        ),
        (&["--http", &taken], "http cannot listen on"),
        (
            &["--http", "0.0.0.0:0"],
            "http.listen = 0.0.0.0:0 would accept unauthenticated clients",
        ),
        (
            &["--http", "127.0.0.1:0", "--admin", "[::]:0"],
            "admin.listen = [::]:0 would accept unauthenticated clients",
        ),
        (
            &["--http", "off"],
            "http.listen, resp.listen and grpc.listen are all off",
        ),
        (&["--http", "8080"], "is not an address"),
        (
            &[
                "--store",
                "redis://127.0.0.1:1/",
                "--admin",
                "off",
                "--http",
                "127.0.0.1:0",
            ],
            "the store cannot be reached (store.lazy = true",
        ),
        (&["--config", &bad], "TOML parse error at line 3, column 1"),
        (
            &["--config", "/nowhere/at/all"],
            "/nowhere/at/all: No such file",
        ),
        (
            &[
                "--snapshot",
                &damaged,
                "--http",
                "127.0.0.1:0",
                "--admin",
                "off",
            ],
            "not a snapshot, or a damaged one",
        ),
    ];
    for (arguments, expected) in cases {
        let output = tidegate().arg("serve").args(arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    assert_eq!(
        std::fs::read_to_string(&damaged).unwrap(),
        "this is not a snapshot, whatever it is"
    );
    // With `--insecure` the server starts.
    let server = ServerProcess::start(&["--insecure"]);
    assert_eq!(server.client().get("/healthz").unwrap().status, 200);
}

/// Sends requests on persistent connections until the server announces its shutdown. Returns the
/// number of responses.
fn send_until_shutdown(server: &ServerProcess, threads: usize, ended: impl FnOnce()) -> u64 {
    let answered = AtomicU64::new(0);
    let address = server.http;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let answered = &answered;
            scope.spawn(move || {
                let mut client = HttpClient::connect(address).unwrap();
                let body = format!(r#"{{"limits": "1000000/hour", "key": "{thread}"}}"#);
                loop {
                    let response = client
                        .post("/v1/check", &body)
                        .expect("every request gets a response");
                    assert_eq!(response.status, 200, "{response:?}");
                    answered.fetch_add(1, Ordering::Relaxed);
                    if response.field("connection") == Some("close") {
                        assert!(client.is_ended());
                        return;
                    }
                }
            });
        }
        assert!(wait_for(TIMEOUT, || answered.load(Ordering::Relaxed) > 2_000));
        ended();
    });
    answered.into_inner()
}

#[test]
fn a_shutdown_under_load_fails_no_request() {
    let mut server = ServerProcess::start(&[]);
    // An idle connection, one in the middle of a request, and a Redis client with a pipeline.
    let mut idle = server.client();
    assert_eq!(idle.get("/healthz").unwrap().status, 200);
    let mut halfway = server.client();
    let body = r#"{"limits": "5/minute", "key": "halfway"}"#;
    halfway
        .send(
            format!(
                "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
                body.len()
            )
            .as_bytes(),
        )
        .unwrap();
    let mut redis = TcpStream::connect(server.resp).unwrap();
    redis.set_read_timeout(Some(TIMEOUT)).unwrap();
    let pipelining = std::thread::spawn(move || {
        let command = b"CL.THROTTLE k 5 1 60\r\n".repeat(20);
        let mut replies = Vec::new();
        while redis.write_all(&command).is_ok() {
            let mut buffer = [0; 4096];
            match redis.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(read) => replies.extend_from_slice(&buffer[..read]),
            }
        }
        let _ = redis.read_to_end(&mut replies);
        String::from_utf8(replies).unwrap()
    });
    let answered = send_until_shutdown(&server, 8, || {
        server.signal("-TERM");
        server.wait_for_log("shutting down");
        halfway.send(body.as_bytes()).unwrap();
        assert_eq!(halfway.receive().unwrap().status, 200);
    });
    assert!(answered > 2_000);
    assert!(idle.is_ended());
    assert!(HttpClient::connect(server.http).is_err());
    let replies = pipelining.join().unwrap();
    assert!(
        replies.ends_with("\r\n")
            && replies.matches("*5\r\n").count() * 6 == replies.lines().count()
    );
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    assert!(server.log().contains("shut down"));
}

#[test]
fn two_servers_on_one_redis_share_one_limit() {
    let redis = RedisServer::start();
    let store = format!("redis://127.0.0.1:{}/?timeout=5s", redis.port());
    let servers = [
        ServerProcess::start(&["--store", &store]),
        ServerProcess::start(&["--store", &store]),
    ];
    let allowed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (server, allowed) = (&servers[thread % 2], &allowed);
            scope.spawn(move || {
                let mut client = server.client();
                let mut redis = TcpStream::connect(server.resp).unwrap();
                redis.set_nodelay(true).unwrap();
                for _ in 0..100 {
                    let decision = client
                        .post(
                            "/v1/check",
                            r#"{"limits": "fixed_window 150/300 days", "key": "k"}"#,
                        )
                        .unwrap()
                        .json();
                    allowed.fetch_add(u64::from(decision["allowed"] == true), Ordering::Relaxed);
                    redis.write_all(b"CL.THROTTLE r 149 1 86400\r\n").unwrap();
                    let mut reply = [0; 8];
                    redis.read_exact(&mut reply).unwrap();
                    allowed.fetch_add(u64::from(reply == *b"*5\r\n:0\r\n"), Ordering::Relaxed);
                    let mut rest = [0; 256];
                    let mut seen = 2;
                    while seen < 6 {
                        let read = redis.read(&mut rest).unwrap();
                        seen += rest[..read].iter().filter(|byte| **byte == b'\n').count();
                    }
                }
            });
        }
    });
    assert_eq!(allowed.into_inner(), 300);
}

#[test]
fn a_killed_server_resumes_from_its_snapshot() {
    let folder = Folder::new();
    let snapshot = folder.path().join("counts");
    let shown = snapshot.display().to_string();
    let config = folder.write(
        "serve.toml",
        "[store]\nsnapshot_interval = \"100ms\"\n[policies.api]\nlimits = \"fixed_window 1000/300 days\"\n",
    );
    let arguments = ["--config", &config, "--snapshot", &shown];
    let check = r#"{"policy": "api", "key": "k"}"#;
    let used = |server: &ServerProcess| {
        let look = r#"{"policy": "api", "key": "k", "cost": 0}"#;
        1_000
            - server.post("/v1/peek", look).json()["remaining"]
                .as_u64()
                .unwrap()
    };

    let mut server = ServerProcess::start(&arguments);
    for _ in 0..10 {
        server.post("/v1/check", check);
    }
    // Waits for two more snapshots, because the first may have begun before the checks.
    let written = server.metric("tidegate_snapshots_total");
    assert!(wait_for(TIMEOUT, || server
        .metric("tidegate_snapshots_total")
        >= written + 2));
    server.signal("-KILL");
    server.wait();

    let mut server = ServerProcess::start(&arguments);
    server.wait_for_log("snapshot restored");
    assert_eq!(used(&server), 10);
    server.post("/v1/check", check);
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0));
    // The last check is in the snapshot. Only its owner can read the file, and no temporary file is
    // left.
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(
        std::fs::metadata(&snapshot).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let names = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, ["counts", "counts.lock", "serve.toml"]);
    let server = ServerProcess::start(&arguments);
    assert_eq!(used(&server), 11);
    drop(server);

    let good = std::fs::read(&snapshot).unwrap();
    for bad in [&good[..good.len() / 2], &good[..good.len() - 1], b""] {
        std::fs::write(&snapshot, bad).unwrap();
        let output = tidegate()
            .args(["serve", "--http", "127.0.0.1:0", "--admin", "off"])
            .args(arguments)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(
            stderr.contains("counts: not a snapshot, or a damaged one")
                && stderr.contains("delete the file"),
            "{stderr}"
        );
        assert_eq!(std::fs::read(&snapshot).unwrap(), bad);
    }
}

#[test]
fn systemd_is_notified() {
    let folder = Folder::new();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut server =
        ServerProcess::start_command(tidegate().arg("serve").env("NOTIFY_SOCKET", &path), &[]);
    let receive = || {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    assert!(receive().contains("READY=1"));
    server.signal("-TERM");
    assert!(receive().contains("STOPPING=1"));
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn every_line_of_a_json_log_is_valid() {
    let mut command = tidegate();
    command.args([
        "serve",
        "--log-format",
        "json",
        "--http",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
    ]);
    let mut child = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    let first: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(
        (&first["level"], &first["message"], &first["store"]),
        (
            &"INFO".into(),
            &"server started".into(),
            &"memory://".into()
        )
    );
    assert_eq!(first["version"], env!("CARGO_PKG_VERSION"));
    assert!(first["hash"].is_string() && first["policies"].is_string());
    let second: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(
        (&second["level"], &second["message"], &second["listener"]),
        (&"INFO".into(), &"listening".into(), &"http".into())
    );
    Command::new("kill")
        .arg(child.id().to_string())
        .status()
        .unwrap();
    for line in lines {
        let line = line.unwrap();
        assert!(
            serde_json::from_str::<serde_json::Value>(&line).is_ok(),
            "{line}"
        );
    }
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_redis_outage_is_logged_once_and_requests_are_answered() {
    let mut redis = RedisServer::start();
    let store = format!("redis://127.0.0.1:{}/?timeout=200ms", redis.port());
    let server = ServerProcess::start(&["--store", &store]);
    let body = r#"{"limits": "1000/hour", "key": "k"}"#;
    assert_eq!(
        server.post("/v1/check", body).json()["degraded"],
        serde_json::Value::Null
    );
    redis.kill();
    let mut client = server.client();
    let degraded = || {
        let response = client.post("/v1/check", body).unwrap();
        assert_eq!(response.status, 200);
        response.json()["degraded"].is_string()
    };
    assert!(wait_for(TIMEOUT, degraded));
    for _ in 0..50 {
        assert!(client.post("/v1/check", body).unwrap().json()["degraded"].is_string());
    }
    server.wait_for_log("store unavailable");
    assert_eq!(
        server.client().get("/readyz").unwrap().json()["store"],
        "degraded"
    );
    redis.restart();
    server.wait_for_log("store available again");
    assert_eq!(
        server.log().matches("store unavailable").count(),
        1,
        "{}",
        server.log()
    );
    assert!(wait_for(TIMEOUT, || client
        .post("/v1/check", body)
        .unwrap()
        .json()["degraded"]
        .is_null()));
}

#[test]
fn check_peek_and_reset_work_against_a_server() {
    let folder = Folder::new();
    let token = folder.write("secret-value", "shell-secret-long-enough\n");
    let config = folder.write(
        "serve.toml",
        &format!(
            "[[token]]\nscopes = [\"check\", \"admin\"]\nfile = \"{token}\"\n\
             [policies.api]\nlimits = \"fixed_window 3/300 days\"\ntiers = {{ premium = \"fixed_window 30/300 days\" }}\n\
             exceptions = [{{ key = \"user:42\", tenant = \"evil\", blocked = true }}]\n\
             [policies.watched]\nlimits = \"fixed_window 1/300 days\"\nshadow = true\n"
        ),
    );
    let server = ServerProcess::start(&["--config", &config]);
    let (http, admin) = (
        format!("http://{}", server.http),
        format!("http://{}", server.admin),
    );
    let ask = |command: &str, url: &str, arguments: &[&str]| {
        let fixed = [command, "user:42", "--server", url];
        let output = tidegate()
            .args(fixed)
            .args(arguments)
            .env("TIDEGATE_TOKEN", "shell-secret-long-enough")
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code().unwrap(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    };
    let (code, output) = ask("check", &http, &["-p", "api", "--cost", "2.5"]);
    assert!(
        code == 0 && output.starts_with("allowed; 0 of 3 left, reset in "),
        "{output}"
    );
    let (code, output) = ask("check", &http, &["-p", "api"]);
    assert!(
        code == 1 && output.starts_with("denied, retry in ") && output.contains("0 of 3 left"),
        "{output}"
    );
    let (code, output) = ask("peek", &http, &["-p", "api"]);
    assert!(
        code == 1 && output.starts_with("denied, retry in ") && output.contains("0 of 3 left"),
        "{output}"
    );
    let (code, output) = ask("peek", &http, &["-p", "api", "--cost", "0.5"]);
    assert!(
        code == 0 && output.starts_with("allowed; 0 of 3 left"),
        "{output}"
    );
    assert_eq!(
        ask(
            "check",
            &http,
            &["-p", "api", "--tier", "premium", "-o", "json"]
        )
        .0,
        0
    );
    assert_eq!(ask("check", &http, &["-p", "api", "--tenant", "acme"]).0, 0);
    // A policy in shadow mode denies no request.
    assert_eq!(
        (0..2)
            .map(|_| ask("check", &http, &["-p", "watched"]).0)
            .sum::<i32>(),
        0
    );
    let (code, output) = ask("peek", &http, &["-p", "watched"]);
    assert!(
        code == 0 && output.starts_with("allowed; 0 of 1 left"),
        "{output}"
    );
    let (code, output) = ask("charge", &http, &["-p", "api", "--cost", "1"]);
    assert!(code == 0 && output.starts_with("0 of 3 left"), "{output}");
    let (code, output) = ask("refund", &http, &["-p", "api", "--cost", "1"]);
    assert!(code == 2 && output.contains("scope refund"), "{output}");
    let (code, output) = ask("reset", &admin, &["-p", "api"]);
    assert!(
        code == 0 && output.starts_with("reset; 3 of 3 left"),
        "{output}"
    );
    let (code, output) = ask("reset", &admin, &["-p", "api", "--tenant", "new"]);
    assert!(
        code == 0 && output.starts_with("nothing to reset; 3 of 3 left"),
        "{output}"
    );
    let (code, output) = ask("check", &http, &["-p", "5/minute", "-o", "json"]);
    assert!(code == 0 && output.contains("\"remaining\":4"), "{output}");
    let (code, output) = ask("reset", &http, &["-p", "api"]);
    assert!(
        code == 2 && output.contains("expected the admin listener"),
        "{output}"
    );
    let (code, output) = ask("check", &http, &["-p", "missing"]);
    assert!(
        code == 2 && output.contains("unknown policy `missing`: expected one of api"),
        "{output}"
    );
    let (code, output) = ask("check", "http://127.0.0.1:1", &["-p", "api"]);
    assert!(
        code == 2 && output.contains("--server http://127.0.0.1:1"),
        "{output}"
    );
    // With `--server`, the store in the environment is ignored.
    let store = ("TIDEGATE_STORE", "redis://127.0.0.1:1/");
    let beside = tidegate()
        .args(["peek", "user:42", "-p", "api", "--server", &http])
        .envs([store, ("TIDEGATE_TOKEN", "shell-secret-long-enough")])
        .output()
        .unwrap();
    assert_eq!(beside.status.code(), Some(0), "{beside:?}");
    let (code, output) = ask("check", &http, &["-p", "api", "--tenant", "evil"]);
    assert!(code == 1 && output.contains("blocked"), "{output}");
    let without = tidegate()
        .args(["check", "k", "-p", "api", "--server", &http])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&without.stderr).contains("401"));
    let file = tidegate()
        .args([
            "check",
            "k",
            "-p",
            "api",
            "--server",
            &http,
            "--token-file",
            &token,
        ])
        .output()
        .unwrap();
    assert_eq!(file.status.code(), Some(0));
}

#[test]
fn a_second_signal_ends_the_server_at_once() {
    let mut server = ServerProcess::start(&[]);
    // A client that never finishes its request.
    let mut slow = server.client();
    slow.send(b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\n")
        .unwrap();
    assert!(wait_for(TIMEOUT, || server.metric("tidegate_connections") >= 1));
    server.signal("-INT");
    server.wait_for_log("shutting down");
    // Signals that arrive together count as one, so the signal is repeated.
    let is_ended = || {
        server.signal("-INT");
        server.log().contains("second signal, ending at once")
    };
    assert!(wait_for(TIMEOUT, is_ended), "{}", server.log());
    assert_eq!(server.wait().code(), Some(130));
}

#[test]
fn an_unfinished_request_does_not_delay_shutdown() {
    let folder = Folder::new();
    let text = "[bounds]\nbody_timeout = \"10m\"\ndrain_timeout = \"300ms\"\n[policies.api]\nlimits = \"fixed_window 9/300 days\"\n";
    let config = folder.write("serve.toml", text);
    let snapshot = folder.path().join("counts").display().to_string();
    let arguments = ["--config", &config, "--snapshot", &snapshot];
    let mut server = ServerProcess::start(&arguments);
    let mut slow = server.client();
    slow.send(b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\n{")
        .unwrap();
    let mut redis = TcpStream::connect(server.resp).unwrap();
    redis.write_all(b"PI").unwrap();
    let check = r#"{"policy": "api", "key": "k"}"#;
    server.post("/v1/check", check);
    // `timeout` sends the signal twice: to the process and to its group.
    server.signal("-TERM");
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0));
    assert!(server.log().contains("drain timeout, dropping connections"));
    // The snapshot includes the check before the shutdown.
    let again = ServerProcess::start(&arguments);
    let look = r#"{"policy": "api", "key": "k", "cost": 0}"#;
    assert_eq!(again.post("/v1/peek", look).json()["remaining"], 8);
}

#[test]
fn many_different_limits_on_redis_use_little_memory() {
    let redis = RedisServer::start();
    let server =
        ServerProcess::start(&["--store", &format!("redis://127.0.0.1:{}/", redis.port())]);
    let mut client = server.client();
    let mut ask = |number: usize| {
        let body = format!(
            r#"{{"limits": "fixed_window {}/day", "key": "k", "cost": {}}}"#,
            number + 1,
            number + 1
        );
        client.post("/v1/check", &body).unwrap();
        client.post("/v1/check", &body).unwrap()
    };
    (0..10).for_each(|number| drop(ask(number)));
    let before = server.memory();
    (10..500).for_each(|number| drop(ask(number)));
    assert!(server.metric("tidegate_inline_checks_total{outcome=\"denied\"}") > 400);
    let each = server.memory().saturating_sub(before) / 490;
    assert!(each < 64 * 1024, "{each} bytes each");
}

#[test]
fn a_snapshot_file_belongs_to_one_server() {
    let folder = Folder::new();
    let path = folder.path().join("counts").display().to_string();
    let mut server = ServerProcess::start(&["--snapshot", &path]);
    let refused = |path: &str| {
        let arguments = [
            "serve",
            "--http",
            "127.0.0.1:0",
            "--admin",
            "off",
            "--snapshot",
            path,
        ];
        let output = tidegate().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&path).contains("another server uses the file"));
    // A symbolic link to the same file is refused, too.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(
        refused(&link.display().to_string()).contains("it is a symbolic link: expected a file")
    );
    assert!(refused("/nowhere/counts").contains("/nowhere/counts: the directory does not exist"));
    // The server exits with code 2 if it cannot write the last snapshot.
    std::fs::remove_dir_all(folder.path()).unwrap();
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(2), "{}", server.log());
    assert!(server.log().contains("cannot write snapshot"));
}

#[test]
fn check_and_reset_work_over_tls() {
    let (folder, files) = (Folder::new(), TlsFiles::make());
    let [ca, cert, key] = ["ca.crt", "redis.crt", "redis.key"].map(|name| files.path(name));
    let tls = format!("{{ cert = \"{cert}\", key = \"{key}\", client_ca = \"{ca}\" }}");
    let config = folder.write(
        "serve.toml",
        &format!("http.tls = {tls}\nadmin.tls = {tls}\n"),
    );
    let server = ServerProcess::start(&["--config", &config]);
    let ask = |command: &str, address: std::net::SocketAddr, arguments: &[&str]| {
        let url = format!("https://{address}");
        let fixed = [command, "k", "-p", "5/minute", "--server", &url];
        tidegate().args(fixed).args(arguments).output().unwrap()
    };
    let known = ["--cacert", &ca, "--cert", &cert, "--key", &key];
    let answered = ask("check", server.http, &known);
    assert_eq!(answered.status.code(), Some(0), "{answered:?}");
    assert_eq!(ask("reset", server.admin, &known).status.code(), Some(0));
    for arguments in [&known[..2], &known[2..], &[]] {
        assert_eq!(
            ask("check", server.http, arguments).status.code(),
            Some(2),
            "{arguments:?}"
        );
    }
    let others = TlsFiles::make();
    let other_key = ask(
        "check",
        server.http,
        &[
            "--cacert",
            &ca,
            "--cert",
            &cert,
            "--key",
            &others.path("redis.key"),
        ],
    );
    let stderr = String::from_utf8_lossy(&other_key.stderr);
    assert_eq!(other_key.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("--cert") && stderr.contains("--key") && !stderr.contains("panicked"),
        "{stderr}"
    );
    let without_scheme = tidegate()
        .args(["check", "k", "-p", "api", "--server", "127.0.0.1:1"])
        .output()
        .unwrap();
    assert!(
        String::from_utf8_lossy(&without_scheme.stderr).contains("expected a URL such as http://")
    );
}

#[test]
fn a_variable_with_a_missing_underscore_is_reported() {
    let mut command = tidegate();
    command.arg("serve").envs([
        ("TIDEGATE_HTTP_LISTEN", "127.0.0.1:1"),
        ("TIDEGATE_SOMETHING", "else"),
    ]);
    let server = ServerProcess::start_command(&mut command, &[]);
    server.wait_for_log("TIDEGATE_HTTP_LISTEN is ignored: did you mean TIDEGATE__HTTP__LISTEN?");
    assert!(!server.log().contains("SOMETHING"));
}

/// After SIGTERM the server is not ready, and still accepts connections, for `drain_delay`.
#[test]
fn a_server_is_not_ready_before_it_drains() {
    let folder = Folder::new();
    let config = folder.write("serve.toml", "[bounds]\ndrain_delay = \"60s\"\n");
    let server = ServerProcess::start(&["--config", &config]);
    let ready = |server: &ServerProcess| server.client().get("/readyz").unwrap().status;
    assert_eq!(ready(&server), 200);
    server.signal("-TERM");
    assert!(wait_for(TIMEOUT, || ready(&server) == 503));
    let check = server.post("/v1/check", r#"{"limits": "5/minute", "key": "k"}"#);
    assert_eq!(check.status, 200, "new connections are accepted");
    server.wait_for_log("not ready, still accepting connections");
}

/// A fatal error has the format of the log.
#[test]
fn fatal_errors_use_the_log_format() {
    let folder = Folder::new();
    let config = folder.write(
        "serve.toml",
        "[log]\nformat = \"json\"\n[http]\nlisten = \"192.0.2.1:1\"\ninsecure = true\n",
    );
    let unknown = folder.write("unknown.toml", "nonsense = 1\n");
    for arguments in [
        &["serve", "--config", &config][..],
        &["serve", "--log-format", "json", "--config", &unknown],
    ] {
        let output = tidegate().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let errors = String::from_utf8(output.stderr).unwrap();
        let line: serde_json::Value =
            serde_json::from_str(errors.trim()).unwrap_or_else(|error| panic!("{error}: {errors}"));
        assert_eq!(line["level"], "ERROR");
        assert!(
            line["error"].is_string() && line["timestamp"].is_string(),
            "{line}"
        );
    }
    let output = tidegate()
        .args(["serve", "--config", &unknown])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("tidegate: "));
}
