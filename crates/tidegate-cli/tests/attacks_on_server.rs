//! Attacks by hostile clients on a server. Each test is named after the finding that it reproduces.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use common::{ServerProcess, TIMEOUT, tidegate};
use tidegate_testkit::Folder;
use tidegate_testkit::redis::{TlsFiles, wait_for};

/// Sends raw bytes and returns the reply, up to the end of the connection or a pause of one second.
fn raw(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(1)))
        .unwrap();
    stream.write_all(bytes).unwrap();
    let mut reply = Vec::new();
    let mut chunk = [0; 4_096];
    while let Ok(read @ 1..) = stream.read(&mut chunk) {
        reply.extend_from_slice(&chunk[..read]);
        if reply.windows(4).any(|window| window == b"\r\n\r\n") && reply.ends_with(b"}") {
            break;
        }
    }
    String::from_utf8_lossy(&reply).into_owned()
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Standard error is a pipe that nothing reads, and the libraries have much to log.
#[test]
fn b1_an_unread_log_does_not_block_the_server() {
    let mut command = tidegate();
    command.args([
        "serve",
        "--http",
        "127.0.0.1:0",
        "--resp",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
    ]);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The pipe stays open and is never read.
    let _stderr = child.stderr.take().unwrap();
    let mut greeting = String::new();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    while !greeting.contains("Try: ") {
        assert!(
            std::io::BufRead::read_line(&mut stdout, &mut greeting).unwrap() > 0,
            "{greeting}"
        );
    }
    let address = |name: &str| {
        let line = greeting
            .lines()
            .find(|line| line.starts_with(&format!("  {name}")))
            .unwrap();
        let text = line
            .split_whitespace()
            .nth(1)
            .unwrap()
            .trim_start_matches("http://");
        text.trim_end_matches("/metrics")
            .parse::<SocketAddr>()
            .unwrap()
    };
    let (http, resp, admin) = (address("http"), address("resp"), address("admin"));
    // Acknowledgements of pings that were never sent.
    let mut stream = TcpStream::connect(http).unwrap();
    stream.write_all(PREFACE).unwrap();
    let acks = [0, 0, 8, 6, 1, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8].repeat(1_000);
    for _ in 0..200 {
        if stream.write_all(&acks).is_err() {
            break;
        }
    }
    // Events of Tidegate itself, more than any pipe holds.
    let mut client = tidegate_testkit::http::HttpClient::connect(admin).unwrap();
    for _ in 0..3_000 {
        assert_eq!(
            client
                .post("/v1/reset", r#"{"limits": "1/s", "key": "k"}"#)
                .unwrap()
                .status,
            200
        );
    }
    let mut client = tidegate_testkit::http::HttpClient::connect(http).unwrap();
    assert_eq!(
        client
            .post("/v1/check", r#"{"limits": "9/s", "key": "k"}"#)
            .unwrap()
            .status,
        200
    );
    assert!(raw(resp, b"PING\r\nQUIT\r\n").starts_with("+PONG"));
    let metrics = tidegate_testkit::http::HttpClient::connect(admin)
        .unwrap()
        .get("/metrics")
        .unwrap()
        .body;
    let dropped = metrics
        .lines()
        .find_map(|line| line.strip_prefix("tidegate_log_lines_dropped_total "))
        .unwrap();
    assert!(dropped.parse::<u64>().unwrap() > 2_000, "{dropped}");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Only Tidegate's own crates are logged, and a repeated event only now and then.
#[test]
fn b1_hostile_bytes_and_repeated_events_do_not_flood_the_log() {
    let server = ServerProcess::start(&[]);
    let mut stream = TcpStream::connect(server.http).unwrap();
    stream.write_all(PREFACE).unwrap();
    let acks = [0, 0, 8, 6, 1, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8].repeat(1_000);
    for _ in 0..100 {
        if stream.write_all(&acks).is_err() {
            break;
        }
    }
    let mut client = tidegate_testkit::http::HttpClient::connect(server.admin).unwrap();
    for _ in 0..1_000 {
        assert_eq!(
            client
                .post("/v1/reset", r#"{"limits": "1/s", "key": "k"}"#)
                .unwrap()
                .status,
            200
        );
    }
    assert!(
        server.log().lines().count() < 500,
        "{} lines",
        server.log().lines().count()
    );
    assert!(server.metric("tidegate_log_lines_dropped_total") > 500);
}

/// Returns the HTTP/2 frames of a request. The header block has literals without indexing.
fn h2_request(stream: u32, path: &str, body: &[u8]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
    ] {
        block.extend([0, name.len() as u8]);
        block.extend(name.as_bytes());
        block.push(value.len() as u8);
        block.extend(value.as_bytes());
    }
    let frame = |kind: u8, flags: u8, payload: &[u8]| {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        bytes
    };
    [frame(1, 4, &block), frame(0, 1, body)].concat()
}

#[test]
fn b3_unread_responses_are_dropped() {
    let folder = Folder::new();
    let config = folder.write(
        "serve.toml",
        "bounds = { write_timeout = \"1s\", body_timeout = \"1s\" }\n",
    );
    // Without this, the allocator keeps freed responses, and the test would measure the allocator.
    let mut command = tidegate();
    command.arg("serve").env("MALLOC_MMAP_THRESHOLD_", "65536");
    let server = ServerProcess::start_command(&mut command, &["--config", &config]);
    let checks = vec![r#"{"limits":"9/s","key":"k"}"#; 500].join(",");
    let body = format!(r#"{{"checks":[{checks}]}}"#);
    let before = server.memory();
    let mut streams = Vec::new();
    // Together, the responses exceed the budget for all connections.
    for _ in 0..16 {
        let mut stream = TcpStream::connect(server.http).unwrap();
        // SETTINGS_INITIAL_WINDOW_SIZE = 0, for every stream.
        stream
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0")
            .unwrap();
        // Reads the server's SETTINGS, its acknowledgement and its WINDOW_UPDATE. From here on the
        // client may send a megabyte.
        stream.read_exact(&mut [0; 9 + 24 + 9 + 13]).unwrap();
        for number in 0..50_u32 {
            let mut bytes = h2_request(2 * number + 1, "/v1/check:batch", b"");
            bytes.truncate(bytes.len() - 9);
            for (index, chunk) in body.as_bytes().chunks(16_000).enumerate() {
                let is_last = (index + 1) * 16_000 >= body.len();
                let mut frame = (chunk.len() as u32).to_be_bytes()[1..].to_vec();
                frame.extend([0, u8::from(is_last)]);
                frame.extend((2 * number + 1).to_be_bytes());
                frame.extend(chunk);
                bytes.extend(frame);
            }
            if stream.write_all(&bytes).is_err() {
                break;
            }
        }
        streams.push(stream);
    }
    let answered = || server.metric("tidegate_request_duration_seconds_count{protocol=\"http\"}");
    assert!(wait_for(TIMEOUT, || answered() >= 800), "{}", answered());
    assert!(server.metric("tidegate_requests_refused_total{protocol=\"http\"}") > 0);
    // Healthy clients are served, over HTTP/2 too, and unread responses are dropped.
    assert_eq!(
        server
            .post("/v1/check", r#"{"limits": "9/s", "key": "k"}"#)
            .status,
        200
    );
    for number in 0..5 {
        let (body, url) = (
            format!(r#"{{"limits": "1/s", "key": "{number}"}}"#),
            format!("http://{}/v1/check", server.http),
        );
        let arguments = [
            "-s",
            "--http2-prior-knowledge",
            "-w",
            "%{http_code}",
            "-o",
            "/dev/null",
            "-d",
            &body,
            &url,
        ];
        let output = std::process::Command::new("curl")
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "200");
    }
    let grown = || server.memory().saturating_sub(before);
    assert!(
        wait_for(TIMEOUT, || grown() < 40 << 20),
        "{} MiB",
        grown() >> 20
    );
    drop(streams);
}

#[test]
fn b4_an_unauthenticated_client_gets_a_small_buffer() {
    let folder = Folder::new();
    let token = folder.write("token", "a-token-that-is-long-enough\n");
    let config = folder.write(
        "serve.toml",
        &format!("[[token]]\nscopes = [\"check\", \"admin\"]\nfile = \"{token}\"\n"),
    );
    let server = ServerProcess::start(&["--config", &config]);
    let large = [
        &b"*16\r\n$8192\r\n"[..],
        &[b'x'; 8_192],
        b"\r\n$8192\r\n",
        &[b'x'; 8_000],
    ]
    .concat();
    assert!(
        raw(server.resp, &large)
            .starts_with("-ERR Protocol error: too big request before authentication")
    );
    // An authenticated client may send a command of the full size.
    let auth = b"AUTH a-token-that-is-long-enough\r\n";
    let key = [b'k'; 8_000];
    let command = [
        &auth[..],
        b"*5\r\n$11\r\nCL.THROTTLE\r\n$8000\r\n",
        &key,
        b"\r\n$1\r\n4\r\n$1\r\n5\r\n$2\r\n60\r\n",
    ]
    .concat();
    assert!(raw(server.resp, &command).starts_with("+OK\r\n*5\r\n:0"));
    let before = server.memory();
    let held: Vec<TcpStream> = (0..500)
        .map(|_| {
            let mut stream = TcpStream::connect(server.resp).unwrap();
            let _ = stream.write_all(&large);
            stream
        })
        .collect();
    assert_eq!(
        raw(server.resp, b"PING\r\n"),
        "-NOAUTH Authentication required.\r\n"
    );
    assert!(server.memory().saturating_sub(before) < 20 << 20);
    drop(held);
}

#[test]
fn b5_requests_from_web_pages_are_rejected() {
    let server = ServerProcess::start(&[]);
    let body = r#"{"limits": "fixed_window 5/300 days", "key": "k"}"#;
    let post = |fields: &str| {
        let length = body.len();
        raw(
            server.http,
            format!(
                "POST /v1/check HTTP/1.1\r\n{fields}content-type: text/plain\r\ncontent-length: {length}\r\n\r\n{body}"
            )
            .as_bytes(),
        )
    };
    assert!(post("host: localhost\r\n").starts_with("HTTP/1.1 200"));
    for page in [
        "host: 127.0.0.1\r\norigin: https://evil.example\r\n",
        "host: 127.0.0.1\r\norigin: null\r\n",
        "host: 127.0.0.1\r\nsec-fetch-site: cross-site\r\n",
        "host: 127.0.0.1\r\nsec-fetch-site: same-site\r\n",
    ] {
        assert!(
            post(page).starts_with("HTTP/1.1 403"),
            "{page}: {}",
            post(page)
        );
    }
    // A host name that an attacker pointed at this machine.
    assert!(post("host: evil.example\r\n").starts_with("HTTP/1.1 421"));
    let metrics = raw(
        server.admin,
        b"GET /metrics HTTP/1.1\r\nhost: evil.example:9090\r\n\r\n",
    );
    assert!(metrics.starts_with("HTTP/1.1 421"), "{metrics}");
    // A check would leave three of five.
    let left = server.post("/v1/peek", body).json()["remaining"].as_u64();
    assert_eq!(left, Some(3));
    // An HTTP request to the RESP port runs no command.
    assert!(raw(server.resp, b"CL.THROTTLE key 0 1 3600\r\n").contains(":0\r\n:1\r\n:0"));
    for request in [
        "POST / HTTP/1.1\r\n",
        "Host: 127.0.0.1\r\n",
        "host: evil.example\r\n",
    ] {
        let reply = raw(
            server.resp,
            format!("{request}DEL key\r\nPING\r\n").as_bytes(),
        );
        assert!(
            reply.starts_with("-ERR ") && !reply.contains("PONG"),
            "{reply}"
        );
    }
    // TLS with a chosen session ticket runs no command either, nor does any other invalid input.
    for junk in [
        &b"\x16\x03\x01\x02R \r\n"[..],
        b"post / http/1.1\r\n",
        b"USER x\r\n",
        b"a \xff\r\n",
    ] {
        let reply = raw(server.resp, &[junk, b"DEL key\r\nPING\r\n"].concat());
        assert!(
            reply.starts_with("-ERR ") && !reply.contains("PONG"),
            "{reply}"
        );
    }
    // A client that speaks RESP may use any key.
    let named_so = b"*3\r\n$3\r\nDEL\r\n$1\r\na\r\n$9\r\nHTTP/user\r\nPING\r\n";
    assert_eq!(raw(server.resp, named_so), ":0\r\n+PONG\r\n");
    assert!(raw(server.resp, b"CL.THROTTLE key 0 1 3600\r\n").starts_with("*5\r\n:1"));
    // A host name in the configuration is accepted.
    let folder = Folder::new();
    let config = folder.write("serve.toml", "http.hosts = [\"limits.internal\"]\n");
    let server = ServerProcess::start(&["--config", &config]);
    let response = raw(
        server.http,
        b"GET /healthz HTTP/1.1\r\nhost: limits.internal\r\n\r\n",
    );
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
}

#[test]
fn b6_short_tokens_and_removed_client_cas_are_rejected() {
    let folder = Folder::new();
    let token = folder.write("token", "short\n");
    let config = folder.write(
        "short.toml",
        &format!("[[token]]\nscopes = [\"check\"]\nfile = \"{token}\"\n"),
    );
    let output = tidegate()
        .args(["serve", "--config", &config, "--http", "127.0.0.1:0"])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && stderr.contains("expected 16 to 4096 characters"),
        "{stderr}"
    );
    let files = TlsFiles::make();
    let tls = |ca: &str| {
        let (cert, key) = (files.path("redis.crt"), files.path("redis.key"));
        format!("[admin.tls]\ncert = \"{cert}\"\nkey = \"{key}\"\n{ca}")
    };
    let with_ca = tls(&format!("client_ca = \"{}\"\n", files.path("ca.crt")));
    let config = folder.write("serve.toml", &with_ca);
    let server = ServerProcess::start(&["--config", &config]);
    std::fs::write(&config, tls("")).unwrap();
    server.signal("-HUP");
    server.wait_for_log("admin.tls.client_ca would be removed");
}

#[test]
fn b6_failed_authentication_is_slow() {
    let folder = Folder::new();
    let token = folder.write("token", "a-token-that-is-long-enough\n");
    let config = folder.write(
        "serve.toml",
        &format!("[[token]]\nscopes = [\"check\"]\nfile = \"{token}\"\n"),
    );
    let server = ServerProcess::start(&["--config", &config]);
    let reply = raw(
        server.resp,
        b"AUTH wrong-one\r\nAUTH wrong-two\r\nAUTH a-token-that-is-long-enough\r\nQUIT\r\n",
    );
    assert_eq!(reply.matches("-WRONGPASS").count(), 2, "{reply}");
    assert!(reply.contains("+OK"), "{reply}");
}

/// A few wrong passwords end the connection, even if many more are in the pipeline. The client may
/// have closed it long ago.
#[test]
fn b6_a_few_wrong_passwords_end_the_connection() {
    let folder = Folder::new();
    let token = folder.write("token", "a-token-that-is-long-enough\n");
    let config = folder.write(
        "serve.toml",
        &format!("[[token]]\nscopes = [\"check\"]\nfile = \"{token}\"\n"),
    );
    let server = ServerProcess::start(&["--config", &config]);
    let reply = raw(server.resp, &b"AUTH x\r\n".repeat(500));
    assert_eq!(reply.matches("-WRONGPASS").count(), 3, "{reply}");
    for _ in 0..50 {
        TcpStream::connect(server.resp)
            .unwrap()
            .write_all(&b"AUTH x\r\n".repeat(500))
            .unwrap();
    }
    // One connection is the one that reads this metric.
    assert!(wait_for(TIMEOUT, || server.metric("tidegate_connections") <= 1));
}

/// TLS alone does not authenticate a client.
#[test]
fn b6_a_public_listener_without_authentication_is_rejected() {
    let (folder, files) = (Folder::new(), TlsFiles::make());
    let [cert, key, ca] = ["redis.crt", "redis.key", "ca.crt"].map(|name| files.path(name));
    for (extra, is_good) in [
        (String::new(), false),
        (format!("client_ca = \"{ca}\"\n"), true),
    ] {
        let text = format!(
            "[http]\nlisten = \"0.0.0.0:0\"\n[http.tls]\ncert = \"{cert}\"\nkey = \"{key}\"\n{extra}"
        );
        let output = tidegate()
            .args(["config", "check", &folder.write("serve.toml", &text)])
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), is_good, "{stderr}");
        assert!(
            is_good || stderr.contains("[http.tls] with client_ca"),
            "{stderr}"
        );
    }
}

#[test]
fn b7_a_response_to_head_over_http2_has_no_body() {
    let server = ServerProcess::start(&[]);
    let url = format!("http://{}/healthz", server.http);
    let arguments = [
        "-s",
        "-I",
        "--http2-prior-knowledge",
        "-w",
        "%{http_version} %{size_download}",
        "-o",
        "-",
        &url,
    ];
    let output = std::process::Command::new("curl")
        .args(arguments)
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && stdout.contains("HTTP/2 200") && !stdout.contains('{'),
        "{stdout}"
    );
}

#[test]
fn b7_no_part_of_a_mistyped_url_is_printed() {
    let folder = Folder::new();
    for url in [
        "redis://u:hunter2@h:bad/",
        "redis://u:hunter2/x@h/",
        "reds://u:hunter2@h",
        "redis:u:hunter2@h://",
        "redis://u:hunter2",
        "redis://h/hunter2@x",
        "redis//u:hunter2@h",
        " u:hunter2@h",
        "redis://a:b:hunter2",
        "redis://[u:hunter2@h",
        "redis://u:%ffhunter2@h",
        "redis://h/0?hunter2",
        "redis://h/0?timeout=hunter2",
        "redis://h/0?max_waiting=hunter2",
        "rediss://h/0?insecure=hunter2",
        "memory://?hunter2",
    ] {
        let config = folder.write("serve.toml", &format!("[store]\nurl = \"{url}\"\n"));
        for arguments in [
            &[
                "serve",
                "--http",
                "127.0.0.1:0",
                "--admin",
                "off",
                "--store",
                url,
            ][..],
            &["config", "check", &config],
            &["check", "k", "--policy", "1/s", "--store", url],
            &[
                "simulate",
                "--policy",
                "1/s",
                "--trace",
                "/dev/null",
                "--store",
                url,
            ],
        ] {
            let output = tidegate().args(arguments).output().unwrap();
            let printed = [output.stdout, output.stderr].concat();
            let printed = String::from_utf8_lossy(&printed);
            assert!(!printed.contains("hunter2"), "{arguments:?}: {printed}");
        }
    }
}

#[test]
fn b7_symbolic_links_are_rejected_as_snapshots_and_locks() {
    let folder = Folder::new();
    let target = folder.write("target", "precious");
    for name in ["counts", "other.lock"] {
        std::os::unix::fs::symlink(&target, folder.path().join(name)).unwrap();
    }
    for snapshot in ["counts", "other"] {
        let path = folder.path().join(snapshot).display().to_string();
        let arguments = [
            "serve",
            "--http",
            "127.0.0.1:0",
            "--admin",
            "off",
            "--snapshot",
            &path,
        ];
        let output = tidegate().args(arguments).output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(2),
            "{snapshot}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
}

/// Opening a FIFO in place of the lock would block forever, waiting for a reader.
#[test]
fn b7_a_lock_is_a_regular_file_that_only_its_owner_can_access() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let path = folder.path().join("counts").display().to_string();
    let lock = format!("{path}.lock");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&lock)
            .status()
            .unwrap()
            .success()
    );
    let arguments = [
        "serve",
        "--http",
        "127.0.0.1:0",
        "--admin",
        "off",
        "--snapshot",
        &path,
    ];
    let output = tidegate().args(arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2)
            && stderr.contains("counts.lock")
            && stderr.contains("expected a file"),
        "{stderr}"
    );
    std::fs::remove_file(&lock).unwrap();
    std::fs::write(&lock, "").unwrap();
    std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(0o644)).unwrap();
    let _server = ServerProcess::start(&["--snapshot", &path]);
    assert_eq!(
        std::fs::metadata(&lock).unwrap().permissions().mode() & 0o777,
        0o600
    );
}

#[test]
fn b7_a_misplaced_token_is_never_printed() {
    let folder = Folder::new();
    for wrong in [
        "env = \"hunter2-token-of-mine\"",
        "token = \"hunter2\"",
        "file = \"hunter2",
        "env = hunter2",
    ] {
        let config = folder.write(
            "serve.toml",
            &format!("[[token]]\nscopes = [\"check\"]\n{wrong}\n"),
        );
        let output = tidegate()
            .args(["serve", "--config", &config, "--http", "127.0.0.1:0"])
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && !stderr.contains("hunter2"),
            "{wrong}: {stderr}"
        );
    }
}
