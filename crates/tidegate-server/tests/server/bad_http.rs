//! Malformed and oversized HTTP requests. Each gets the documented error, changes no counter and
//! harms no other connection.

use std::net::Shutdown;

use crate::common::{RespClient, TestServer, assert_unharmed, canary_server, config};
use tidegate_testkit::http::HttpClient;

/// Posts a body and asserts the status and the problem document of the error response.
fn assert_refused(
    server: &TestServer,
    client: &mut HttpClient,
    path: &str,
    body: &str,
    status: u16,
) {
    let shown = &body[..body.char_indices().nth(80).map_or(body.len(), |(at, _)| at)];
    let response = client
        .post(path, body)
        .unwrap_or_else(|error| panic!("{path} {shown}: {error}"));
    assert_eq!(response.status, status, "{path} {shown}: {}", response.body);
    assert_eq!(
        response.field("content-type"),
        Some("application/problem+json"),
        "{path} {shown}"
    );
    let problem = response.json();
    assert_eq!(problem["status"], status, "{path} {shown}");
    assert!(
        problem["detail"]
            .as_str()
            .is_some_and(|detail| detail.len() > 10),
        "{path} {shown}: {problem}"
    );
    // A request that is rejected before its body is read ends the connection.
    if response.field("connection") == Some("close") || status == 413 {
        *client = server.client();
    }
}

#[test]
fn invalid_costs_are_rejected() {
    let server = canary_server();
    let mut client = server.client();
    let long = "9".repeat(400);
    let costs = [
        "-0",
        "-0.0",
        "-1",
        "-0.5",
        "1e3",
        "1E3",
        "1e400",
        "0x10",
        "\" 5 \"",
        "\"\"",
        "\"5\"",
        "\"nan\"",
        "\"inf\"",
        "NaN",
        "Infinity",
        "-Infinity",
        "1_000",
        "٣",
        "2147483648",
        "4294967296",
        "9007199254740991",
        "9007199254740992",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        &long,
        "null",
        "true",
        "[]",
        "{}",
        "0.0001",
        "1.2345",
        "1.",
        ".5",
        "+1",
        "01",
        "--1",
        "1,5",
        "[1]",
        "1 2",
    ];
    let mut count = 0;
    for cost in costs {
        for (path, body) in [
            (
                "/v1/check",
                format!(r#"{{"policy": "api", "key": "canary", "cost": {cost}}}"#),
            ),
            (
                "/v1/refund",
                format!(r#"{{"policy": "api", "key": "canary", "cost": {cost}}}"#),
            ),
            (
                "/v1/check",
                format!(r#"{{"limits": "5/minute", "key": "new", "cost": {cost}}}"#),
            ),
            (
                "/v1/check:batch",
                format!(
                    r#"{{"checks": [{{"policy": "api", "key": "k"}}, {{"policy": "api", "key": "k", "cost": {cost}}}]}}"#
                ),
            ),
        ] {
            assert_refused(&server, &mut client, path, &body, 400);
            count += 1;
        }
    }
    assert_refused(
        &server,
        &mut client,
        "/v1/check",
        r#"{"policy": "api", "key": "k", "cost": 1, "cost": 1}"#,
        400,
    );
    assert_refused(
        &server,
        &mut client,
        "/v1/charge",
        r#"{"policy": "api", "key": "k"}"#,
        400,
    );
    assert!(count >= 150);
    assert_unharmed(&server, "costs");
    // A cost of zero is valid, with or without decimals.
    for cost in ["0", "0.000"] {
        let body = format!(r#"{{"policy": "api", "key": "canary", "cost": {cost}}}"#);
        assert_eq!(
            server.post("/v1/check", &body).json()["remaining"],
            97,
            "{cost}"
        );
    }
}

#[test]
fn invalid_limits_and_policies_are_rejected() {
    let server = canary_server();
    let mut client = server.client();
    let long = "1".repeat(600);
    let limits = [
        "",
        " ",
        "0/minute",
        "-1/minute",
        "100/",
        "/minute",
        "100",
        "minute",
        "100/fortnight",
        "100 / 0s",
        "１００/minute",
        "1/1ns",
        "1/1us",
        "5000000000/s",
        "1/9223372036854775807s",
        "1/400 days",
        "9007199254740993/day",
        "1.5/minute",
        "1e3/minute",
        "100/minute burst=0",
        "100/minute burst=-1",
        "100/minute burst=",
        "1/day burst=4294967297",
        "100/minute;",
        ";",
        "100/minute; ",
        "100/minute burst=1 burst=2",
        "unknown 1/s",
        "fixed_window 1/s burst=2",
        "token_bucket 1/s anchor=clock",
        "100/minute\u{0}",
        "100/-1s",
        "nan/s",
        "inf/s",
        "0x10/s",
        &long,
        "fixed_window 5/minute anchor=never",
    ];
    for text in limits {
        let limits = serde_json::Value::from(text);
        for path in ["/v1/check", "/v1/peek", "/v1/charge", "/v1/refund"] {
            assert_refused(
                &server,
                &mut client,
                path,
                &format!(r#"{{"limits": {limits}, "key": "k"}}"#),
                400,
            );
        }
    }
    for body in [
        r#"{"key": "k"}"#,
        r#"{"policy": "api", "limits": "1/s", "key": "k"}"#,
        r#"{"limits": "1/s", "tier": "x", "key": "k"}"#,
        r#"{"limits": 5, "key": "k"}"#,
        r#"{"limits": null, "key": "k"}"#,
        r#"{"policy": null, "key": "k"}"#,
        r#"{"policy": ["api"], "key": "k"}"#,
        r#"{"policy": "api", "key": "k", "tier": 1}"#,
        r#"{"policy": "api", "key": "k", "tenant": {}}"#,
        r#"{"policy": "api", "key": "k", "extra": 1}"#,
        r#"{"Policy": "api", "key": "k"}"#,
    ] {
        assert_refused(&server, &mut client, "/v1/check", body, 400);
    }
    for name in ["missing", "API", "", "api ", "../api", "a\\u0000b"] {
        assert_refused(
            &server,
            &mut client,
            "/v1/check",
            &format!(r#"{{"policy": "{name}", "key": "k"}}"#),
            404,
        );
    }
    assert_unharmed(&server, "limits");
}

#[test]
fn invalid_keys_are_rejected_and_unusual_keys_accepted() {
    let server = canary_server();
    let mut client = server.client();
    let (long, longer) = ("k".repeat(8_193), "k".repeat(1 << 20));
    for (key, status) in [
        ("\"\"", 400),
        ("null", 400),
        ("1", 400),
        ("[]", 400),
        ("\"\\ud800\"", 400),
        ("\"a\nb\"", 400),
    ] {
        assert_refused(
            &server,
            &mut client,
            "/v1/check",
            &format!(r#"{{"policy": "api", "key": {key}}}"#),
            status,
        );
    }
    assert_refused(
        &server,
        &mut client,
        "/v1/check",
        &format!(r#"{{"policy": "api", "key": "{long}"}}"#),
        400,
    );
    assert_refused(
        &server,
        &mut client,
        "/v1/check",
        &format!(r#"{{"policy": "api", "key": "{longer}"}}"#),
        413,
    );
    let name = "n".repeat(257);
    for field in ["policy", "tier", "tenant"] {
        let body = format!(r#"{{"policy": "api", "key": "k", "{field}": "{name}"}}"#).replace(
            r#""policy": "api", "key": "k", "policy""#,
            r#""key": "k", "policy""#,
        );
        assert_refused(&server, &mut client, "/v1/check", &body, 400);
    }
    assert_unharmed(&server, "keys");
    // These keys are unusual but valid, and all of them differ.
    let odd = [
        "{",
        "}",
        "{}",
        "{a}",
        "a:b",
        "a_b",
        "a b",
        "\\u0000",
        "\\r\\n",
        "\\u00e9",
        "e\\u0301",
        "\\u202eabc",
        "../",
        "127.0.0.1",
        "::ffff:127.0.0.1",
        "@acme/k",
        "@/k",
        "%7B",
        "%",
        &"k".repeat(8_192),
    ];
    for key in odd {
        let response = client
            .post(
                "/v1/check",
                &format!(r#"{{"policy": "api", "key": "{key}"}}"#),
            )
            .unwrap();
        assert_eq!(
            (response.status, &response.json()["remaining"]),
            (200, &99.into()),
            "{key}"
        );
    }
}

#[test]
fn malformed_bodies_are_rejected() {
    let server = canary_server();
    let mut client = server.client();
    let (deep, deep_objects) = ("[".repeat(10_000), "{\"a\":".repeat(2_000));
    let nested = format!(
        r#"{{"policy": "api", "key": "k", "cost": {}1{}}}"#,
        "[".repeat(5_000),
        "]".repeat(5_000)
    );
    let bodies = [
        "",
        " ",
        "{",
        "}",
        "[]",
        "null",
        "true",
        "1",
        "\"text\"",
        "{}",
        "{\"key\"",
        "{\"key\": }",
        "not json",
        "\u{feff}{}",
        "{\"policy\": \"api\", \"key\": \"k\"} x",
        "{\"policy\": \"api\", \"key\": \"k\"}{}",
        "{'policy': 'api'}",
        "{\"policy\": \"api\", \"policy\": \"api\", \"key\": \"k\"}",
        "policy=api&key=k",
        "<xml/>",
        &deep,
        &deep_objects,
        &nested,
        "{\"policy\": \"api\", \"key\": \"k\",}",
        "// comment\n{}",
    ];
    for body in bodies {
        for path in ["/v1/check", "/v1/peek", "/v1/refund", "/v1/check:batch"] {
            assert_refused(&server, &mut client, path, body, 400);
        }
    }
    for body in [
        r#"{"checks": []}"#,
        r#"{"checks": {}}"#,
        r#"{"checks": [1]}"#,
        r#"{"checks": null}"#,
        r#"{"together": true}"#,
        r#"{"checks": [{"limits": "1/s", "key": "k"}], "together": true}"#,
        r#"{"checks": [{"policy": "api", "key": "k"}, {}]}"#,
        r#"{"checks": [{"policy": "api", "key": "k"}, {"limits": "x", "key": "k"}]}"#,
        r#"{"checks": [{"policy": "api", "key": "k"}], "together": "yes"}"#,
    ] {
        assert_refused(&server, &mut client, "/v1/check:batch", body, 400);
    }
    let body = r#"{"checks": [{"policy": "api", "key": "k"}, {"policy": "missing", "key": "k"}]}"#;
    assert_refused(&server, &mut client, "/v1/check:batch", body, 404);
    let many = vec![r#"{"policy": "api", "key": "k"}"#; 1_001].join(",");
    assert_refused(
        &server,
        &mut client,
        "/v1/check:batch",
        &format!("{{\"checks\": [{many}]}}"),
        400,
    );
    let large = format!(
        r#"{{"policy": "api", "key": "k", "x": "{}"}}"#,
        "x".repeat(20_000)
    );
    assert_refused(&server, &mut client, "/v1/check", &large, 413);
    // A UTF-16 body, and bodies that are not valid UTF-8.
    for bytes in [
        &b"\xff\xfe{\0}\0"[..],
        b"{\"policy\": \"api\", \"key\": \"\xff\xfe\"}",
        b"\0",
        b"{\"key\": \"\xed\xa0\x80\"}",
    ] {
        let mut client = server.client();
        let head = format!(
            "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
            bytes.len()
        );
        client.send(&[head.as_bytes(), bytes].concat()).unwrap();
        assert_eq!(client.receive().unwrap().status, 400);
    }
    assert_unharmed(&server, "bodies");
}

#[test]
fn malformed_heads_are_rejected() {
    let server = canary_server();
    let good = r#"{"policy": "api", "key": "canary"}"#;
    let post = |path: &str, fields: &str| {
        let length = good.len();
        format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n{fields}\r\n{good}"
        )
    };
    let (long_path, long_field) = (
        "/".to_owned() + &"x".repeat(100_000),
        format!("x: {}\r\n", "y".repeat(65_000)),
    );
    let many_fields: String = (0..200)
        .map(|number| format!("x-{number}: 1\r\n"))
        .collect();
    let cases: Vec<(String, &[u16])> = vec![
        (post("/v1/check", "content-encoding: gzip\r\n"), &[415]),
        (post("/v1/check?status=200", ""), &[400]),
        (post("/v1/check?status=abc", ""), &[400]),
        (post("/v1/check?status=429&x=1", ""), &[400]),
        (post("/v1/check?%00", ""), &[400]),
        (post("/v1/peek?x=1", ""), &[400]),
        (post("/v1/check/", ""), &[404]),
        (post("/v1//check", ""), &[404]),
        (post("/v1/CHECK", ""), &[404]),
        (post("/", ""), &[404]),
        (post("/v1/check%3Abatch", ""), &[404]),
        (post("/v1/reset", ""), &[404]),
        (post("/healthz", ""), &[405]),
        (post("/openapi.json", ""), &[405]),
        ("GET /v1/check HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(), &[405]),
        ("PUT /v1/check HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(), &[405]),
        ("DELETE /v1/check HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(), &[405]),
        ("OPTIONS /v1/check HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(), &[405]),
        ("TRACE /v1/check HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(), &[405]),
        ("BREW /v1/check HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(), &[405]),
        ("GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(), &[404]),
        ("GET /healthz?x HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(), &[400]),
        (post(&long_path, ""), &[414, 431]),
        (post("/v1/peek", &long_field), &[431]),
        (post("/v1/peek", &many_fields), &[431, 400]),
        ("\0\0\0\0\r\n\r\n".to_owned(), &[400]),
        ("hello\r\n\r\n".to_owned(), &[400]),
        ("GET\r\n\r\n".to_owned(), &[400]),
        ("GET / HTTP/9.9\r\n\r\n".to_owned(), &[400]),
        ("GET /healthz HTTP/1.1\r\nbad header\r\n\r\n".to_owned(), &[400]),
        ("GET /healthz HTTP/1.1\r\n: empty\r\n\r\n".to_owned(), &[400]),
        ("POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n".to_owned(), &[400]),
        (
            "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx".to_owned(),
            &[400],
        ),
        (
            "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999999999999\r\n\r\n".to_owned(),
            &[400],
        ),
        ("POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 999999999\r\n\r\n".to_owned(), &[413]),
        ("POST /v1/check HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_owned(), &[400]),
        (
            "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n"
                .to_owned(),
            &[400, 413],
        ),
        (
            format!(
                "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n{}",
                "400\r\n".to_owned() + &"x".repeat(0x400) + "\r\n"
            )
            .repeat(1)
                + &("400\r\n".to_owned() + &"x".repeat(0x400) + "\r\n").repeat(20)
                + "0\r\n\r\n",
            &[413],
        ),
        ("POST /v1/check HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: gzip\r\n\r\n".to_owned(), &[400, 501]),
        ("POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n".to_owned(), &[400]),
    ];
    for (bytes, statuses) in cases {
        let shown: String = bytes.chars().take(80).collect();
        let mut client = server.client();
        let _ = client.send(bytes.as_bytes());
        let response = client
            .receive()
            .unwrap_or_else(|error| panic!("{shown:?}: {error}"));
        assert!(
            statuses.contains(&response.status),
            "{shown:?}: {response:?}"
        );
        assert_eq!(
            response.field("content-type"),
            Some("application/problem+json"),
            "{shown:?}: {response:?}"
        );
        assert_eq!(response.json()["status"], response.status, "{shown:?}");
    }
    // A malformed request after a valid one on the same connection.
    let mut client = server.client();
    client
        .send((post("/v1/peek", "") + "hello\r\n\r\n").as_bytes())
        .unwrap();
    assert_eq!(client.receive().unwrap().status, 200);
    let refused = client.receive().unwrap();
    assert_eq!(
        (refused.status, &refused.json()["status"]),
        (400, &400.into())
    );
    assert_unharmed(&server, "heads");
}

#[test]
fn a_body_that_never_arrives_times_out() {
    let server = TestServer::start(config(
        "bounds.body_timeout = \"200ms\"\n[policies.api]\nlimits = \"5/day\"\n",
    ));
    for head in ["", "expect: 100-continue\r\n"] {
        let mut client = server.client();
        let request = format!(
            "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n{head}\r\n"
        );
        client.send(request.as_bytes()).unwrap();
        let response = client.receive().unwrap();
        assert_eq!(
            (response.status, &response.json()["title"]),
            (408, &"Request Timeout".into()),
            "{head}"
        );
    }
    assert_eq!(server.metric("tidegate_memory_keys"), 0);
}

/// Thousands of HTTP/2 requests, each reset as soon as it is sent.
#[test]
fn reset_http_2_streams_do_not_harm_the_server() {
    let server = canary_server();
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    let mut bytes = [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        &frame(4, 0, 0, &[]),
    ]
    .concat();
    for number in 0..5_000 {
        let stream = 2 * number + 1;
        // POST, http and /, by their indexes in the HPACK static table.
        bytes.extend(frame(1, 4, stream, &[0x83, 0x86, 0x84]));
        bytes.extend(frame(3, 0, stream, &8_u32.to_be_bytes()));
    }
    let mut client = RespClient::connect(server.http);
    // The server may close the connection before all frames are sent.
    let _ = std::io::Write::write_all(&mut client.0, &bytes);
    let _ = client.0.shutdown(Shutdown::Write);
    client.rest();
    assert_unharmed(&server, "reset streams");
}
