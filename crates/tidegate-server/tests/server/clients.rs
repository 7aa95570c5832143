//! Real clients, used as their users run them: redis-cli, redis-py, ioredis, node-redis, curl,
//! promtool and schemathesis.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{TestServer, command, config, on_redis};
use tidegate_testkit::Folder;
use tidegate_testkit::redis::{RedisServer, TlsFiles};
use tidegate_testkit::tools;

const POLICIES: &str = r#"
[policies.api]
limits = "100/minute"
tiers = { premium = "1000/minute" }
candidate = "50/minute"
exceptions = [{ key = "root", unlimited = true }, { key = "evil", blocked = true }]
[policies.slow]
limits = "1000/hour burst=1000; 5000/300 days"
[policies.shadowed]
limits = "1/hour"
shadow = true
"#;

/// Runs a program, asserts that it succeeds and returns its standard output.
fn output(command: &mut Command) -> String {
    let output = command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (text, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "{command:?}: {}\n{text}\n{errors}",
        output.status
    );
    text.into_owned()
}

fn redis_cli(server: &TestServer, arguments: &[&str]) -> String {
    let port = server.resp.port().to_string();
    output(
        Command::new("redis-cli")
            .args(["-p", &port])
            .args(arguments),
    )
}

#[test]
fn redis_cli_works_unmodified() {
    let server = TestServer::start_frozen("");
    assert_eq!(redis_cli(&server, &["PING"]), "PONG\n");
    assert_eq!(
        redis_cli(&server, &["CL.THROTTLE", "user123", "15", "30", "60"]),
        "0\n16\n15\n-1\n2\n"
    );
    assert_eq!(
        redis_cli(
            &server,
            &["-3", "cl.throttle", "other", "0", "1", "60", "1"]
        ),
        "0\n1\n0\n-1\n60\n"
    );
    assert_eq!(
        redis_cli(
            &server,
            &["-3", "cl.throttle", "other", "0", "1", "60", "1"]
        ),
        "1\n1\n0\n60\n60\n"
    );
    assert_eq!(redis_cli(&server, &["DEL", "other"]), "1\n");
    assert_eq!(
        redis_cli(&server, &["CL.THROTTLE", "other", "0", "1", "60"]),
        "0\n1\n0\n-1\n60\n"
    );
    assert_eq!(
        redis_cli(&server, &["GCRA", "g", "5", "10", "60", "TOKENS", "3"]),
        "0\n6\n3\n-1\n18\n"
    );
    assert!(redis_cli(&server, &["FLUSHALL"]).starts_with("ERR unknown command 'FLUSHALL'"));
    // In interactive mode, redis-cli first requests the documentation of all commands.
    let typed = "printf 'PING\\nCL.THROTTLE typed 15 30 60\\nquit\\n' | redis-cli -p $0";
    let shown = output(Command::new("bash").args(["-c", typed, &server.resp.port().to_string()]));
    assert_eq!(shown, "PONG\n0\n16\n15\n-1\n2\n");
}

#[test]
fn redis_benchmark_is_allowed_exactly_the_limit() {
    let server = TestServer::start(config(""));
    let port = server.resp.port().to_string();
    let arguments = ["-p", &port, "-n", "20000", "-c", "20", "-P", "16", "-q"];
    output(Command::new("redis-benchmark").args(arguments).args([
        "CL.THROTTLE",
        "k",
        "999",
        "1",
        "86400",
    ]));
    assert_eq!(
        server.metric("tidegate_inline_checks_total{outcome=\"allowed\"}"),
        1_000
    );
    // redis-benchmark rounds the number of requests up to whole pipelines.
    assert!(server.metric("tidegate_inline_checks_total{outcome=\"denied\"}") >= 19_000);
}

const REDIS_PY: &str = r#"
import sys, redis
port, token = int(sys.argv[1]), sys.argv[2] or None
for protocol in (2, 3):
    r = redis.Redis(port=port, protocol=protocol, password=token)
    assert r.ping()
    key = f"py:{protocol}"
    assert r.execute_command("CL.THROTTLE", key, 15, 30, 60) == [0, 16, 15, -1, 2]
    with r.pipeline(transaction=False) as p:
        for _ in range(1000):
            p.execute_command("CL.THROTTLE", key, 15, 30, 60)
        answers = p.execute()
    assert [a[0] for a in answers] == [0] * 15 + [1] * 985, answers[:20]
    try:
        r.execute_command("CL.THROTTLE", key, "abc", 30, 60)
        raise SystemExit("no error")
    except redis.ResponseError as error:
        assert str(error) == "Cell error: Couldn't parse as integer: abc", error
    assert r.execute_command("CL.THROTTLE", key, 15, 30, 60, 0)[2] == 0
    with r.pipeline() as p:
        # A transaction, which is the default.
        for _ in range(3):
            p.execute_command("CL.THROTTLE", key + ":multi", 1, 30, 60)
        answers = p.execute()
    assert [a[0] for a in answers] == [0, 0, 1], answers
    with r.pipeline() as p:
        p.execute_command("CL.THROTTLE", key + ":aborted", 1, 30, 60)
        p.execute_command("NO.SUCH", "command")
        try:
            p.execute()
            raise SystemExit("no error")
        except redis.ResponseError as error:
            assert "NO.SUCH" in str(error), error
    assert r.execute_command("CL.THROTTLE", key + ":aborted", 1, 30, 60, 0)[2] == 2
print("good")
"#;

#[test]
fn redis_py_works_unmodified() {
    let server = TestServer::start_frozen("");
    let port = server.resp.port().to_string();
    assert_eq!(
        output(Command::new(tools::python()).args(["-c", REDIS_PY, &port, ""])),
        "good\n"
    );
}

const NODE: &str = r#"
const [port, token] = [Number(process.argv[2]), process.argv[3] || undefined];
const assert = require('assert');
(async () => {
  const Redis = require('ioredis');
  const io = new Redis({ port, password: token });
  assert.deepEqual(await io.call('CL.THROTTLE', 'io', 15, 30, 60), [0, 16, 15, -1, 2]);
  const pipeline = io.pipeline();
  for (let i = 0; i < 1000; i++) pipeline.call('CL.THROTTLE', 'io', 15, 30, 60);
  const answers = await pipeline.exec();
  assert.equal(answers.filter(([error, [limited]]) => !error && limited === 0).length, 15);
  await assert.rejects(io.call('CL.THROTTLE', 'io', 1), /Cell error: Usage/);
  await io.quit();
  for (const RESP of [2, 3]) {
    const { createClient } = require('redis');
    const client = createClient({ socket: { port }, password: token, RESP });
    await client.connect();
    assert.deepEqual(await client.sendCommand(['CL.THROTTLE', `node:${RESP}`, '15', '30', '60']), [0, 16, 15, -1, 2]);
    await client.close();
  }
  console.log('good');
})();
"#;

fn node(server: &TestServer, token: &str) -> String {
    let port = server.resp.port().to_string();
    let mut command = Command::new("node");
    // The script is an argument, because a script on standard input has no folder of its own.
    command
        .env("NODE_PATH", tools::node_modules())
        .args(["-e", NODE, "--", "node", &port, token]);
    output(&mut command)
}

#[test]
fn ioredis_and_node_redis_work_unmodified() {
    let server = TestServer::start_frozen("");
    assert_eq!(node(&server, ""), "good\n");
}

#[test]
fn requests_without_a_token_are_rejected() {
    let folder = Folder::new();
    let (check, admin) = (
        folder.write("check", "c-secret-long-enough\n"),
        folder.write("admin", "a-secret-long-enough\n"),
    );
    let text = format!(
        "[[token]]\nscopes = [\"check\"]\nfile = \"{check}\"\n[[token]]\nscopes = [\"admin\"]\nfile = \"{admin}\"\n{POLICIES}"
    );
    let server = TestServer::start_frozen(&text);
    let body = r#"{"policy": "api", "key": "k"}"#;
    let ask = |fields: &str| {
        server
            .client()
            .post_with("/v1/check", fields, body)
            .unwrap()
    };
    let twice = "authorization: Bearer c-secret-long-enough\r\nauthorization: Bearer x\r\n";
    for fields in [
        "",
        "authorization: Bearer\r\n",
        "authorization: Bearer x\r\n",
        "authorization: Basic c-secret-long-enough\r\n",
        twice,
    ] {
        let response = ask(fields);
        assert_eq!(
            (response.status, response.field("www-authenticate")),
            (401, Some("Bearer")),
            "{fields}"
        );
    }
    assert_eq!(
        ask("authorization: bearer c-secret-long-enough\r\n").json()["remaining"],
        99
    );
    assert_eq!(
        ask("authorization: Bearer a-secret-long-enough\r\n").status,
        403
    );
    assert_eq!(server.admin().get("/metrics").unwrap().status, 401);
    assert_eq!(server.admin().get("/healthz").unwrap().status, 200);
    let reset = |fields: &str| server.admin().post_with("/v1/reset", fields, body).unwrap();
    assert_eq!(
        reset("authorization: Bearer c-secret-long-enough\r\n").status,
        403
    );
    assert_eq!(
        reset("authorization: Bearer a-secret-long-enough\r\n").json()["remaining"],
        100
    );

    let mut client = server.resp();
    client.expect(b"PING\r\n", "-NOAUTH Authentication required.\r\n");
    client.expect(
        b"CL.THROTTLE k 1 1 1\r\n",
        "-NOAUTH Authentication required.\r\n",
    );
    client.expect(b"DEL k\r\n", "-NOAUTH Authentication required.\r\n");
    client.expect(
        b"AUTH wrong\r\n",
        "-WRONGPASS invalid username-password pair or user is disabled.\r\n",
    );
    client.expect(b"AUTH default c-secret-long-enough\r\n", "+OK\r\n");
    client.expect(b"PING\r\n", "+PONG\r\n");
    client.expect(
        b"DEL k\r\n",
        "-NOPERM resets are not allowed: expected a token of scope admin\r\n",
    );
    client.expect(b"RESET\r\n", "+RESET\r\n");
    client.expect(b"PING\r\n", "-NOAUTH Authentication required.\r\n");
    client.expect(b"AUTH a-secret-long-enough\r\nDEL k\r\n", "+OK\r\n:0\r\n");
    client.expect(
        b"CL.THROTTLE k 1 1 1\r\n",
        "-NOPERM the token lacks the scope: expected one with scope check\r\n",
    );

    let port = server.resp.port().to_string();
    assert_eq!(
        output(Command::new(tools::python()).args(["-c", REDIS_PY, &port, "c-secret-long-enough"])),
        "good\n"
    );
    assert_eq!(node(&server, "c-secret-long-enough"), "good\n");
    assert_eq!(
        redis_cli(
            &server,
            &["--no-auth-warning", "-a", "c-secret-long-enough", "PING"]
        ),
        "PONG\n"
    );
}

#[test]
fn resets_are_forbidden_if_no_token_has_the_admin_scope() {
    let folder = Folder::new();
    let check = folder.write("check", "c-secret-long-enough\n");
    let text = format!("[[token]]\nscopes = [\"check\"]\nfile = \"{check}\"\n");
    let server = TestServer::start_frozen(&text);
    let mut client = server.resp();
    client.expect(b"DEL k\r\n", "-NOAUTH Authentication required.\r\n");
    client.expect(b"AUTH c-secret-long-enough\r\n", "+OK\r\n");
    client.expect(
        b"CL.THROTTLE k 0 1 60\r\n",
        "*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:60\r\n",
    );
    assert_eq!(
        server.metric("tidegate_requests_refused_total{protocol=\"resp\"}"),
        1
    );
    client.expect(
        b"DEL k\r\n",
        "-NOPERM resets are not allowed: expected a token of scope admin\r\n",
    );
    client.expect(
        b"CL.THROTTLE k 0 1 60\r\n",
        "*5\r\n:1\r\n:1\r\n:0\r\n:60\r\n:60\r\n",
    );
}

/// A reset also clears the denial that any thread has cached locally.
#[test]
fn a_reset_on_redis_takes_effect_at_once() {
    let redis = RedisServer::start();
    let server = TestServer::start(config(&on_redis(&redis)));
    let check = r#"{"limits": "fixed_window 1/300 days", "key": "k"}"#;
    for round in 0..20 {
        let mut client = server.resp();
        client.expect(b"CL.THROTTLE k 0 1 86400\r\n", "*5\r\n:0\r\n");
        client.rest_of_five();
        client.send(b"CL.THROTTLE k 0 1 86400\r\nDEL k\r\n");
        assert_eq!(client.five()[0], 1, "round {round}");
        assert_eq!(client.line(), ":1");
        assert_eq!(
            server.post("/v1/check", check).json()["allowed"],
            true,
            "round {round}"
        );
        assert_eq!(
            server.post("/v1/check", check).json()["allowed"],
            false,
            "round {round}"
        );
        assert_eq!(
            server.admin().post("/v1/reset", check).unwrap().json()["remaining"],
            1,
            "round {round}"
        );
    }
}

#[test]
fn a_batch_on_redis_is_decided_in_order() {
    let redis = RedisServer::start();
    let server = TestServer::start(config(&format!("{}{POLICIES}", on_redis(&redis))));
    let expected = |number: usize| number.is_multiple_of(2) || number / 2 < 40;
    for round in 0..20 {
        // After the flush, some checks of the batch may have to be retried and others not.
        redis.command(&["SCRIPT", "FLUSH"]);
        let one = format!(
            r#"{{"policy": "api", "key": "{round}"}}, {{"limits": "fixed_window 40/300 days", "key": "{round}"}}"#
        );
        let body = format!(r#"{{"checks": [{}]}}"#, vec![&one[..]; 100].join(","));
        let response = server.post("/v1/check:batch", &body).json();
        let results = response["results"].as_array().unwrap();
        let allowed: Vec<bool> = results
            .iter()
            .map(|decision| decision["allowed"] == true)
            .collect();
        assert_eq!(
            allowed,
            (0..200).map(expected).collect::<Vec<bool>>(),
            "round {round}"
        );
    }
    // The reset time of a joint check is that of the slowest policy. A null tier or tenant means
    // none.
    let both = r#"{"checks": [{"policy": "api", "key": "b", "tier": null, "tenant": null}, {"policy": "slow", "key": "b"}],
                   "together": true}"#;
    let reset_after_us = server.post("/v1/check:batch", both).json()["reset_after_us"].as_u64();
    assert!(
        reset_after_us.unwrap() > 3_000_000_000,
        "{reset_after_us:?}"
    );
    let together = r#"{"checks": [{"policy": "api", "key": "new"}, {"policy": "api", "key": "evil"}], "together": true}"#;
    assert_eq!(
        server.post("/v1/check:batch", together).json()["allowed"],
        false
    );
    assert_eq!(
        server
            .post("/v1/peek", r#"{"policy": "api", "key": "new", "cost": 0}"#)
            .json()["remaining"],
        100
    );
}

/// The two commands alternate. They describe one bucket at one rate in two ways.
#[test]
fn a_pipeline_on_redis_is_decided_in_order() {
    let redis = RedisServer::start();
    let server = TestServer::start(config(&on_redis(&redis)));
    let mut client = server.resp();
    for round in 0..20 {
        redis.command(&["SCRIPT", "FLUSH"]);
        let pair = format!("CL.THROTTLE {round} 39 1 86400\r\nCL.THROTTLE {round} 39 2 172800\r\n");
        client.send(pair.repeat(100).as_bytes());
        let limited: Vec<i64> = (0..200).map(|_| client.five()[0]).collect();
        assert_eq!(
            limited,
            (0..200)
                .map(|number| i64::from(number >= 40))
                .collect::<Vec<i64>>(),
            "round {round}"
        );
    }
}

#[test]
fn curl_works_over_plain_http_1_and_http_2() {
    let server = TestServer::start_frozen(POLICIES);
    let url = format!("http://{}/v1/check?status=429", server.http);
    let body = r#"{"policy": "api", "key": "curl", "cost": 40}"#;
    let status_of = |arguments: &[&str]| {
        let shown = "%{http_code} %{http_version} %header{retry-after} %header{ratelimit}\n";
        let fixed = ["-s", "-o", "/dev/null", "-w", shown, "-d", body];
        output(Command::new("curl").args(fixed).args(arguments).arg(&url))
    };
    assert_eq!(status_of(&[]), "200 1.1  \"api\";r=60;t=1\n");
    assert_eq!(
        status_of(&["--http2-prior-knowledge"]),
        "200 2  \"api\";r=20;t=1\n"
    );
    let denied = status_of(&[]);
    assert!(
        denied.starts_with("429 1.1 12 \"api\";r=20;t=12"),
        "{denied}"
    );
    // curl sends several requests on one connection.
    let shown = "%{num_connects} ";
    let again = output(Command::new("curl").args([
        "-s",
        "-w",
        shown,
        "-o",
        "/dev/null",
        "-o",
        "/dev/null",
        &url,
        &url,
    ]));
    assert_eq!(again, "1 0 ");
}

#[test]
fn tls_and_client_certificates_are_enforced() {
    let files = TlsFiles::make();
    let [ca, cert, key] = ["ca.crt", "redis.crt", "redis.key"].map(|name| files.path(name));
    let tls = format!("cert = \"{cert}\", key = \"{key}\"");
    let text = format!(
        "http.tls = {{ {tls} }}\nresp.tls = {{ {tls}, client_ca = \"{ca}\" }}\nadmin.tls = {{ {tls}, client_ca = \"{ca}\" }}\n"
    );
    let mut config = config(&text);
    config.http.tls.as_mut().unwrap().client_ca = None;
    let server = TestServer::start_tls(config);
    let https = format!("https://{}/v1/check", server.http);
    let body = r#"{"limits": "5/minute", "key": "k"}"#;
    let shown = output(Command::new("curl").args([
        "-s",
        "--cacert",
        &ca,
        "-d",
        body,
        "-w",
        " %{http_version}",
        &https,
    ]));
    assert!(
        shown.contains("\"remaining\":4") && shown.ends_with(" 2"),
        "{shown}"
    );
    // Plain HTTP fails, and so does a certificate whose CA is unknown to curl.
    for arguments in [
        &["-s", &https.replace("https", "http")][..],
        &["-s", &https],
    ] {
        assert!(
            !Command::new("curl")
                .args(arguments)
                .output()
                .unwrap()
                .status
                .success()
        );
    }
    let admin = format!("https://{}/healthz", server.admin);
    assert!(
        !Command::new("curl")
            .args(["-s", "--cacert", &ca, &admin])
            .output()
            .unwrap()
            .status
            .success()
    );
    let known = ["-s", "--cacert", &ca, "--cert", &cert, "--key", &key];
    assert_eq!(
        output(Command::new("curl").args(known).arg(&admin)),
        "{\"status\":\"ok\"}"
    );
    let with_certificate = ["--tls", "--cacert", &ca, "--cert", &cert, "--key", &key];
    assert_eq!(
        redis_cli(&server, &[&with_certificate[..], &["PING"]].concat()),
        "PONG\n"
    );
    let port = server.resp.port().to_string();
    let without = Command::new("redis-cli")
        .args(["-p", &port, "--tls", "--cacert", &ca, "PING"])
        .output()
        .unwrap();
    assert!(!String::from_utf8_lossy(&without.stdout).contains("PONG"));
}

#[test]
fn promtool_accepts_the_metrics() {
    let server = TestServer::start(config(POLICIES));
    server.post("/v1/check", r#"{"policy": "api", "key": "k"}"#);
    server.post("/v1/check", r#"{"limits": "5/minute", "key": "k"}"#);
    let script = "curl -s $0 | promtool check metrics";
    let url = format!("http://{}/metrics", server.admin);
    let output = Command::new("bash")
        .args(["-o", "pipefail", "-c", script, &url])
        .output()
        .unwrap();
    let printed = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success() && printed.is_empty(),
        "{}",
        String::from_utf8_lossy(&printed)
    );
    // A client that accepts OpenMetrics receives OpenMetrics.
    let open = "curl -s -H 'accept: application/openmetrics-text' $0 | tail -1";
    assert_eq!(
        self::output(Command::new("bash").args(["-c", open, &url])),
        "# EOF\n"
    );
}

#[test]
fn the_number_of_series_does_not_depend_on_the_number_of_keys() {
    let server = TestServer::start(config(POLICIES));
    let series = || {
        let text = server.admin().get("/metrics").unwrap().body;
        text.lines().filter(|line| !line.starts_with('#')).count()
    };
    server.post("/v1/check", r#"{"policy": "api", "key": "k"}"#);
    let before = series();
    let mut client = server.client();
    for number in 0..200 {
        client
            .post(
                "/v1/check",
                &format!(r#"{{"policy": "api", "key": "{number}", "tenant": "{number}"}}"#),
            )
            .unwrap();
        client
            .post(
                "/v1/check",
                &format!(
                    r#"{{"limits": "{}/minute", "key": "{number}"}}"#,
                    number + 1
                ),
            )
            .unwrap();
    }
    assert_eq!(series(), before);
    assert!(before < 500);
}

#[test]
fn schemathesis_finds_no_error() {
    let server = TestServer::start(config(POLICIES));
    let settings = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schemathesis.toml");
    for address in [server.http, server.admin] {
        let url = format!("http://{address}/openapi.json");
        let mut command = Command::new(tools::schemathesis());
        // schemathesis writes its notes to the working directory.
        command
            .current_dir(tools::folder())
            .arg("--config-file")
            .arg(&settings);
        output(command.args([
            "run",
            "--seed",
            "1",
            "--max-examples",
            "50",
            "--no-color",
            &url,
        ]));
    }
    assert_eq!(server.metric("tidegate_panics_total"), 0);
}

/// A client that is still sending its body receives the error response.
#[test]
fn curl_receives_every_error_response_over_http_2() {
    let folder = Folder::new();
    let check = folder.write("check", "c-secret-long-enough\n");
    let text = format!("[[token]]\nscopes = [\"check\"]\nfile = \"{check}\"\n");
    let server = TestServer::start(config(&text));
    let body = format!(
        "{{\"limits\": \"5/minute\", \"key\": \"{}\"}}",
        "k".repeat(4_000)
    );
    let status_of = |path: &str| {
        let url = format!("http://{}{path}", server.http);
        let fixed = [
            "-s",
            "--http2-prior-knowledge",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "-d",
            &body,
        ];
        output(Command::new("curl").args(fixed).arg(url))
    };
    for _ in 0..20 {
        assert_eq!(
            (
                status_of("/v1/check"),
                status_of("/nope"),
                status_of("/healthz")
            ),
            ("401".into(), "404".into(), "405".into())
        );
    }
}

#[test]
fn a_peek_reports_if_the_next_check_would_be_allowed() {
    let server = TestServer::start(config(POLICIES));
    let ask = |path: &str, body: &str| server.post(path, body).json();
    let inline = r#"{"limits": "fixed_window 1/300 days", "key": "k"}"#;
    assert_eq!(ask("/v1/peek", inline)["allowed"], true);
    assert_eq!(ask("/v1/check", inline)["allowed"], true);
    let decision = ask("/v1/peek", inline);
    assert_eq!(
        (
            &decision["allowed"],
            &decision["reason"],
            &decision["denied_by"]
        ),
        (
            &false.into(),
            &"limited".into(),
            &"fixed_window 1/300 days".into()
        )
    );
    let wait = decision["retry_after_us"].as_u64().unwrap();
    assert!(wait > 0, "an exhausted key tells when");
    for (key, allowed) in [("root", true), ("evil", false), ("new", true)] {
        assert_eq!(
            ask(
                "/v1/peek",
                &format!(r#"{{"policy": "api", "key": "{key}"}}"#)
            )["allowed"],
            allowed,
            "{key}"
        );
    }
    // A policy in shadow mode denies no request.
    let shadowed = r#"{"policy": "shadowed", "key": "k"}"#;
    assert_eq!(ask("/v1/check", shadowed)["shadow"], "allowed");
    assert_eq!(
        (
            &ask("/v1/check", shadowed)["shadow"],
            &ask("/v1/peek", shadowed)["allowed"]
        ),
        (&"denied".into(), &true.into())
    );
    // Peeks, resets and refunds are not counted as checks.
    assert_eq!(
        server.metric("tidegate_checks_total{policy=\"api\",outcome=\"allowed\"}"),
        0
    );
    assert_eq!(
        server.metric("tidegate_checks_total{policy=\"api\",outcome=\"blocked\"}"),
        0
    );
    assert_eq!(
        ask("/v1/refund", r#"{"policy": "api", "key": "new"}"#)["policy"],
        "api"
    );
}

#[test]
fn unknown_values_are_null_while_the_store_is_down() {
    let mut redis = RedisServer::start();
    let store = format!(
        "store.url = \"redis://127.0.0.1:{}/?failure=closed\"\n",
        redis.port()
    );
    let policies = "[policies.watched]\nlimits = \"5/minute\"\nshadow = true\n[policies.api]\nlimits = \"5/minute\"\n\
                    candidate = \"3/minute\"\nfailure = \"open\"\n";
    let server = TestServer::start(config(&format!("{store}{policies}")));
    redis.kill();
    // The shadow and candidate decisions are unknown, too.
    for policy in ["watched", "api"] {
        let decision = server
            .post(
                "/v1/check",
                &format!(r#"{{"policy": "{policy}", "key": "k"}}"#),
            )
            .json();
        assert!(
            decision["allowed"] == true && decision["degraded"].is_string(),
            "{decision}"
        );
        assert!(
            decision["shadow"].is_null() && decision["candidate"].is_null(),
            "{decision}"
        );
    }
    assert_eq!(
        server.metric("tidegate_checks_total{policy=\"watched\",outcome=\"shadow_denied\"}"),
        0
    );
    assert_eq!(
        server
            .post("/v1/refund", r#"{"limits": "5/minute", "key": "k"}"#)
            .status,
        503
    );
    let decision = server
        .post("/v1/check", r#"{"limits": "5/minute", "key": "k"}"#)
        .json();
    assert_eq!(
        (&decision["allowed"], &decision["limit"]),
        (&false.into(), &5.into())
    );
    for field in [
        "remaining",
        "retry_after",
        "retry_after_us",
        "reset_after_us",
    ] {
        assert!(decision[field].is_null(), "{field}: {decision}");
    }
    // promtool also accepts the metrics of a server on Redis.
    let url = format!("http://{}/metrics", server.admin);
    let checked = Command::new("bash")
        .args(["-c", "curl -s $0 | promtool check metrics", &url])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&[checked.stdout, checked.stderr].concat()),
        ""
    );
    assert!(
        server
            .admin()
            .get("/metrics")
            .unwrap()
            .body
            .contains("le=\"+Inf\"")
    );
}

/// The commands for named policies decide like the HTTP operations.
#[test]
fn named_policies_are_reached_by_resp() {
    let server = TestServer::start_frozen(
        "[policies.api]\nlimits = \"10/minute; fixed_window 4/minute debt=2\"\nreject_unknown_tiers = true\n\
         [policies.api.tiers]\ngold = \"20/minute\"\n\
         [[policies.api.exceptions]]\nkey = \"evil\"\nblocked = true\n",
    );
    let mut client = server.resp();
    let ok = |numbers: [i64; 6]| {
        let numbers = numbers.map(|number| format!(":{number}\r\n")).concat();
        format!("*8\r\n{numbers}$-1\r\n$-1\r\n")
    };
    client.expect(
        &command(&["TG.CHECK", "api", "k"]),
        &ok([1, 4, 3, 0, 60_000_000, 0]),
    );
    client.expect(
        &command(&["tg.peek", "api", "k", "COST", "3"]),
        &ok([1, 4, 0, 0, 60_000_000, 0]),
    );
    client.expect(
        &command(&["TG.CHARGE", "api", "k", "COST", "4.5"]),
        "*8\r\n:0\r\n:4\r\n:0\r\n:60000000\r\n:60000000\r\n:0\r\n$7\r\nlimited\r\n$-1\r\n",
    );
    client.expect(
        &command(&["TG.CHECK", "api", "k"]),
        "*8\r\n:0\r\n:4\r\n:0\r\n:60000000\r\n:60000000\r\n:0\r\n$7\r\nlimited\r\n$28\r\nfixed_window 4/minute debt=2\r\n",
    );
    client.expect(
        &command(&["TG.REFUND", "api", "k", "COST", "5"]),
        &ok([1, 4, 3, 0, 60_000_000, 0]),
    );
    client.expect(&command(&["TG.RESET", "api", "k"]), ":1\r\n");
    client.expect(&command(&["TG.RESET", "api", "k"]), ":0\r\n");
    client.expect(
        &command(&["TG.CHECK", "api", "k", "TIER", "gold", "TENANT", "acme"]),
        &ok([1, 20, 19, 0, 3_000_000, 0]),
    );
    client.expect(
        &command(&["TG.CHECK", "api", "evil"]),
        "*8\r\n:0\r\n:-1\r\n:-1\r\n:-1\r\n:0\r\n:0\r\n$7\r\nblocked\r\n$-1\r\n",
    );
    for (words, error) in [
        (
            &["TG.CHECK", "api"][..],
            "-ERR syntax error: expected TG.CHECK",
        ),
        (
            &["TG.CHARGE", "api", "k"],
            "-ERR syntax error: expected TG.CHARGE",
        ),
        (
            &["TG.CHECK", "api", "k", "COST", "-1"],
            "-ERR the cost is negative",
        ),
        (&["TG.CHECK", "api", ""], "-ERR the key is empty"),
        (&["TG.CHECK", "none", "k"], "-ERR unknown policy `none`"),
        (
            &["TG.CHECK", "api", "k", "TIER", "iron"],
            "-ERR unknown tier `iron`",
        ),
        (
            &["TG.CHECK", "api", "k", "COST", "1", "COST", "1"],
            "-ERR syntax error",
        ),
        (&["TG.NOPE", "api", "k"], "-ERR unknown command"),
    ] {
        client.send(&command(words));
        let line = client.line();
        assert!(line.starts_with(error), "{words:?}: {line}");
    }
    assert_eq!(
        server.metric("tidegate_unknown_tiers_total{policy=\"api\"}"),
        1
    );
}

/// A transaction runs its commands in order, or none of them.
#[test]
fn transactions_run_all_commands_or_none() {
    let server = TestServer::start_frozen("[policies.api]\nlimits = \"fixed_window 5/minute\"\n");
    let mut client = server.resp();
    client.expect(b"EXEC\r\n", "-ERR EXEC without MULTI\r\n");
    client.expect(b"MULTI\r\n", "+OK\r\n");
    client.expect(b"MULTI\r\n", "-ERR MULTI calls can not be nested\r\n");
    client.expect(b"CL.THROTTLE k 4 10 60\r\n", "+QUEUED\r\n");
    client.expect(b"DISCARD\r\n", "+OK\r\n");
    client.expect(b"MULTI\r\nCL.THROTTLE k 4 10 60\r\n", "+OK\r\n+QUEUED\r\n");
    client.send(b"CL.THROTTLE k nonsense 10 60\r\n");
    assert!(client.line().starts_with("-Cell error"));
    client.expect(
        b"EXEC\r\n",
        "-EXECABORT Transaction discarded because of previous errors.\r\n",
    );
    // Nothing was charged so far.
    client.expect(
        b"MULTI\r\nCL.THROTTLE k 4 10 60\r\nTG.CHECK api k\r\nPING\r\nEXEC\r\n",
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n*5\r\n:0\r\n:5\r\n:4\r\n:-1\r\n:6\r\n\
         *8\r\n:1\r\n:5\r\n:4\r\n:0\r\n:60000000\r\n:0\r\n$-1\r\n$-1\r\n+PONG\r\n",
    );
    // The queue is bounded.
    client.expect(b"MULTI\r\n", "+OK\r\n");
    let mut refused = 0;
    for _ in 0..1_100 {
        client.send(b"PING\r\n");
        refused += u32::from(client.line().starts_with("-ERR too many commands"));
    }
    assert!(refused >= 100);
    client.send(b"EXEC\r\n");
    assert!(client.line().starts_with("-EXECABORT"));
}

/// Reasons, the denying limit and the figures of every limit over HTTP; charges, and keys of parts.
#[test]
fn http_names_the_limit_and_charges() {
    let server = TestServer::start_frozen(
        "[policies.api]\nlimits = \"5/second; fixed_window 7/minute debt=3\"\n\
         [[policies.api.exceptions]]\nkey = \"evil\"\nblocked = true\n",
    );
    let ask = |path: &str, body: &str| server.post(path, body).json();
    let decision = ask(
        "/v1/check",
        r#"{"policy": "api", "key": "k", "cost": 5, "details": true}"#,
    );
    assert_eq!(decision["reason"], serde_json::Value::Null);
    let limits = decision["limits"].as_array().unwrap();
    assert_eq!(
        (
            &limits[0]["name"],
            &limits[0]["reset_after_us"],
            &limits[0]["nearest"]
        ),
        (
            &"token_bucket 5/second".into(),
            &1_000_000.into(),
            &true.into()
        )
    );
    assert_eq!(
        (&limits[1]["remaining"], &limits[1]["policy"]),
        (&2.into(), &"api".into())
    );
    let denied = ask("/v1/check", r#"{"policy": "api", "key": "k", "cost": 3}"#);
    assert_eq!(
        (&denied["reason"], &denied["denied_by"], &denied["limits"]),
        (
            &"limited".into(),
            &"fixed_window 7/minute debt=3".into(),
            &serde_json::Value::Null
        )
    );
    let never = ask("/v1/check", r#"{"policy": "api", "key": "k", "cost": 6}"#);
    assert_eq!(never["reason"], "cost_above_capacity");
    let blocked = ask("/v1/check", r#"{"policy": "api", "key": "evil"}"#);
    assert_eq!(
        (&blocked["reason"], &blocked["denied_by"]),
        (&"blocked".into(), &serde_json::Value::Null)
    );
    let charged = ask(
        "/v1/charge",
        r#"{"policy": "api", "key": "k", "cost": 100}"#,
    );
    assert_eq!(
        (&charged["allowed"], &charged["retry_after_us"]),
        (&false.into(), &60_000_000.into())
    );
    assert_eq!(
        server.metric("tidegate_dropped_units_total{policy=\"api\"}"),
        100
    );
    // Parts are not joined text.
    let parts = ask(
        "/v1/check",
        r#"{"limits": "1/minute", "key": ["acme", "42"]}"#,
    );
    assert_eq!(parts["allowed"], true);
    assert_eq!(
        ask("/v1/check", r#"{"limits": "1/minute", "key": "acme:42"}"#)["allowed"],
        true
    );
    assert_eq!(
        ask(
            "/v1/check",
            r#"{"limits": "1/minute", "key": ["acme", "42"]}"#
        )["allowed"],
        false
    );
    let receipt = ask(
        "/v1/check",
        r#"{"limits": "9/minute", "key": ["a", "b"], "receipt": true}"#,
    );
    let settle = format!(r#"{{"receipt": {}, "cost": 3}}"#, receipt["receipt"]);
    assert_eq!(ask("/v1/settle", &settle)["remaining"], 6);
    let mut admin = server.admin();
    let mut reset = || {
        admin
            .post("/v1/reset", r#"{"policy": "api", "key": "k"}"#)
            .unwrap()
            .json()
    };
    assert_eq!(reset()["reset"], true);
    assert_eq!(reset()["reset"], false);
}

/// An outage under `closed` is 503 with its own outcome, not a denial.
#[test]
fn an_outage_under_closed_is_not_a_denial() {
    let mut redis = RedisServer::start();
    let server = TestServer::start(config(&format!(
        "[store]\nurl = \"{}\"\nfailure = \"closed\"\n[policies.api]\nlimits = \"5/minute\"\n",
        redis.url()
    )));
    let check = r#"{"policy": "api", "key": "k"}"#;
    assert_eq!(server.post("/v1/check?status=429", check).status, 200);
    redis.kill();
    for path in ["/v1/check", "/v1/check?status=429", "/v1/peek"] {
        let answer = server.post(path, check);
        assert_eq!(answer.status, 503, "{path}: {}", answer.body);
        assert_eq!(answer.json()["reason"], "outage", "{path}");
        assert_eq!(answer.field("retry-after"), None);
    }
    assert_eq!(
        server.metric("tidegate_checks_total{policy=\"api\",outcome=\"outage\"}"),
        2
    );
    assert_eq!(
        server.metric("tidegate_checks_total{policy=\"api\",outcome=\"denied\"}"),
        0
    );
}
