//! `tidegate serve`, as it is started, asked and ended.
// Helpers of a test fail by a panic, too.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{PATIENCE, ServerProcess, tidegate};
use tidegate_testkit::Folder;
use tidegate_testkit::http::HttpClient;
use tidegate_testkit::redis::{RedisServer, TlsFiles, wait_for};

#[test]
fn started_bare_it_says_what_to_type() {
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
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&told["allowed"], &told["remaining"]),
        (&true.into(), &4.into())
    );
    // Nobody is logged.
    server.post(
        "/v1/check",
        r#"{"limits": "1/hour", "key": "somebody-secret"}"#,
    );
    server.post(
        "/v1/check",
        r#"{"limits": "1/hour", "key": "somebody-secret"}"#,
    );
    assert!(!server.log().contains("secret"), "{}", server.log());
}

#[test]
fn what_it_cannot_do_it_says_at_once() {
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
            "http.listen and resp.listen are both off",
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
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
    assert_eq!(
        std::fs::read_to_string(&damaged).unwrap(),
        "this is not a snapshot, whatever it is"
    );
    // Told that it is meant, it does.
    let server = ServerProcess::start(&["--insecure"]);
    assert_eq!(server.client().get("/healthz").unwrap().status, 200);
}

/// Keeps asking on connections that are kept until the server says that it ends; then stops. Answers how many were answered.
fn ask_until_told(server: &ServerProcess, threads: usize, ended: impl FnOnce()) -> u64 {
    let answered = AtomicU64::new(0);
    let address = server.http;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let answered = &answered;
            scope.spawn(move || {
                let mut client = HttpClient::connect(address).unwrap();
                let body = format!(r#"{{"limits": "1000000/hour", "key": "{thread}"}}"#);
                loop {
                    let answer = client
                        .post("/v1/check", &body)
                        .expect("every request that is sent is answered");
                    assert_eq!(answer.status, 200, "{answer:?}");
                    answered.fetch_add(1, Ordering::Relaxed);
                    if answer.field("connection") == Some("close") {
                        assert!(client.is_ended());
                        return;
                    }
                }
            });
        }
        assert!(wait_for(PATIENCE, || answered.load(Ordering::Relaxed) > 2_000));
        ended();
    });
    answered.into_inner()
}

#[test]
fn ended_under_load_it_fails_nobody() {
    let mut server = ServerProcess::start(&[]);
    // One that asks nothing, one in the middle of a request, and Redis clients that pipeline.
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
    redis.set_read_timeout(Some(PATIENCE)).unwrap();
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
    let answered = ask_until_told(&server, 8, || {
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
fn two_servers_on_one_redis_admit_the_limit_together() {
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
                    let told = client
                        .post(
                            "/v1/check",
                            r#"{"limits": "fixed_window 150/300 days", "key": "k"}"#,
                        )
                        .unwrap()
                        .json();
                    allowed.fetch_add(u64::from(told["allowed"] == true), Ordering::Relaxed);
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
fn killed_it_goes_on_from_its_snapshot() {
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
        1_000
            - server.post("/v1/peek", check).json()["remaining"]
                .as_u64()
                .unwrap()
    };

    let mut server = ServerProcess::start(&arguments);
    for _ in 0..10 {
        server.post("/v1/check", check);
    }
    // Two more from now on: the first may have begun before.
    let written = server.metric("tidegate_snapshots_total");
    assert!(wait_for(PATIENCE, || server
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
    // What was counted last is there as well, for its owner only; and nothing is left beside it.
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
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("counts: not a snapshot, or a damaged one")
                && said.contains("delete the file"),
            "{said}"
        );
        assert_eq!(std::fs::read(&snapshot).unwrap(), bad);
    }
}

#[test]
fn systemd_is_told() {
    let folder = Folder::new();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut server =
        ServerProcess::start_command(tidegate().arg("serve").env("NOTIFY_SOCKET", &path), &[]);
    let told = || {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    assert!(told().contains("READY=1"));
    server.signal("-TERM");
    assert!(told().contains("STOPPING=1"));
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn logs_for_machines() {
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
        (&first["level"], &first["message"], &first["listener"]),
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
fn while_redis_is_gone_there_is_one_line_and_an_answer() {
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
        let answer = client.post("/v1/check", body).unwrap();
        assert_eq!(answer.status, 200);
        answer.json()["degraded"].is_string()
    };
    assert!(wait_for(PATIENCE, degraded));
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
    assert!(wait_for(PATIENCE, || client
        .post("/v1/check", body)
        .unwrap()
        .json()["degraded"]
        .is_null()));
}

#[test]
fn asked_from_the_shell() {
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
    let (code, said) = ask("check", &http, &["-p", "api", "--cost", "2.5"]);
    assert!(
        code == 0 && said.starts_with("allowed; 0 of 3 left, all in "),
        "{said}"
    );
    let (code, said) = ask("check", &http, &["-p", "api"]);
    assert!(
        code == 1 && said.starts_with("denied, retry in ") && said.contains("0 of 3 left"),
        "{said}"
    );
    let (code, said) = ask("peek", &http, &["-p", "api"]);
    assert!(code == 1 && said.starts_with("0 of 3 left"), "{said}");
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
    // Who only watches denies nobody.
    assert_eq!(
        (0..2)
            .map(|_| ask("check", &http, &["-p", "watched"]).0)
            .sum::<i32>(),
        0
    );
    let (code, said) = ask("peek", &http, &["-p", "watched"]);
    assert!(code == 0 && said.starts_with("0 of 1 left"), "{said}");
    let (code, said) = ask("reset", &admin, &["-p", "api"]);
    assert!(code == 0 && said.starts_with("3 of 3 left"), "{said}");
    let (code, said) = ask("check", &http, &["-p", "5/minute", "-o", "json"]);
    assert!(code == 0 && said.contains("\"remaining\":4"), "{said}");
    let (code, said) = ask("reset", &http, &["-p", "api"]);
    assert!(
        code == 2 && said.contains("expected the admin listener"),
        "{said}"
    );
    let (code, said) = ask("check", &http, &["-p", "nobody"]);
    assert!(
        code == 2 && said.contains("unknown policy `nobody`: expected one of api"),
        "{said}"
    );
    let (code, said) = ask("check", "http://127.0.0.1:1", &["-p", "api"]);
    assert!(
        code == 2 && said.contains("--server http://127.0.0.1:1"),
        "{said}"
    );
    // What is in the environment for a store is of no concern.
    let store = ("TIDEGATE_STORE", "redis://127.0.0.1:1/");
    let beside = tidegate()
        .args(["peek", "user:42", "-p", "api", "--server", &http])
        .envs([store, ("TIDEGATE_TOKEN", "shell-secret-long-enough")])
        .output()
        .unwrap();
    assert_eq!(beside.status.code(), Some(0), "{beside:?}");
    let (code, said) = ask("check", &http, &["-p", "api", "--tenant", "evil"]);
    assert!(code == 1 && said.contains("blocked"), "{said}");
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
fn a_second_signal_ends_it_at_once() {
    let mut server = ServerProcess::start(&[]);
    // Somebody who never finishes.
    let mut slow = server.client();
    slow.send(b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\n")
        .unwrap();
    assert!(wait_for(PATIENCE, || server.metric("tidegate_connections") >= 1));
    server.signal("-INT");
    server.wait_for_log("shutting down");
    // Not at once: those that come together are one.
    let is_ended = || {
        server.signal("-INT");
        server.log().contains("second signal, ending at once")
    };
    assert!(wait_for(PATIENCE, is_ended), "{}", server.log());
    assert_eq!(server.wait().code(), Some(130));
}

#[test]
fn nobody_holds_up_its_end() {
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
    // As `timeout` does it: to the process, and to its group.
    server.signal("-TERM");
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0));
    assert!(server.log().contains("drain timeout, dropping connections"));
    // What was counted before the end is in the snapshot.
    let again = ServerProcess::start(&arguments);
    assert_eq!(again.post("/v1/peek", check).json()["remaining"], 8);
}

#[test]
fn many_different_limits_on_redis_take_little_memory() {
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
fn a_snapshot_is_one_servers_alone() {
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
    // By whatever name.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(
        refused(&link.display().to_string()).contains("it is a symbolic link: expected a file")
    );
    assert!(refused("/nowhere/counts").contains("/nowhere/counts: the directory does not exist"));
    // The last one that cannot be written is an end that was not good.
    std::fs::remove_dir_all(folder.path()).unwrap();
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(2), "{}", server.log());
    assert!(server.log().contains("cannot write snapshot"));
}

#[test]
fn asked_from_the_shell_by_tls() {
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
    let said = String::from_utf8_lossy(&other_key.stderr);
    assert_eq!(other_key.status.code(), Some(2), "{said}");
    assert!(
        said.contains("--cert") && said.contains("--key") && !said.contains("panicked"),
        "{said}"
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
fn a_variable_with_an_underscore_too_few_is_pointed_at() {
    let mut command = tidegate();
    command.arg("serve").envs([
        ("TIDEGATE_HTTP_LISTEN", "127.0.0.1:1"),
        ("TIDEGATE_SOMETHING", "else"),
    ]);
    let server = ServerProcess::start_command(&mut command, &[]);
    server.wait_for_log("TIDEGATE_HTTP_LISTEN is ignored: did you mean TIDEGATE__HTTP__LISTEN?");
    assert!(!server.log().contains("SOMETHING"));
}
