//! limitador's file, its RLS, Kuadrant's two calls, and its HTTP endpoints.

use serde_json::json;
use tidegate::ManualClock;
use tidegate_server::config::Listen;
use tidegate_server::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate_server::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tidegate_server::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tidegate_server::proto::kuadrant::service::ratelimit::v1::rate_limit_service_client::RateLimitServiceClient;
use tidegate_server::{Config, Listeners, run};
use tidegate_testkit::Folder;
use tidegate_testkit::redis::RedisServer;

use crate::common::{GrpcClient, TestServer, config, on_redis};

/// The limits of limitador's own example, and some more.
const LIMITS: &str = r#"
- namespace: test_namespace
  max_value: 10
  seconds: 60
  conditions:
    - "descriptors[0]['req.method'] == 'GET'"
  variables:
    - descriptors[0].user_id
- namespace: test_namespace
  name: posts
  max_value: 5
  seconds: 60
  conditions:
    - "descriptors[0]['req.method'] == 'POST'"
  variables:
    - descriptors[0].user_id
- namespace: all
  max_value: 3
  seconds: 3600
  conditions:
  variables:
- namespace: blocked
  seconds: 60
  conditions: []
  variables: []
- namespace: http
  id: by-method
  name: gets
  max_value: 2
  seconds: 60
  conditions: ["method == 'GET' && limit.name == 'gets'"]
  variables: [user]
"#;

fn with_limits(folder: &Folder, more: &str) -> Config {
    let path = folder.write("limits.yaml", LIMITS);
    let mut config = config(&format!("{more}\n[limitador]\nconfig = {path:?}\n"));
    config.grpc.listen = Listen::local(0);
    config
}

fn start() -> TestServer {
    let folder = Folder::new();
    TestServer::start_at(&ManualClock::new(), with_limits(&folder, ""))
}

fn request(domain: &str, hits: u32, entries: &[(&str, &str)]) -> RateLimitRequest {
    let entries = entries.iter().map(|(key, value)| Entry {
        key: (*key).to_owned(),
        value: (*value).to_owned(),
    });
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: vec![RateLimitDescriptor {
            entries: entries.collect(),
            ..RateLimitDescriptor::default()
        }],
        hits_addend: hits,
    }
}

fn is_over(answer: &RateLimitResponse) -> bool {
    assert_ne!(answer.overall_code(), Code::Unknown, "{answer:?}");
    assert_eq!(answer.statuses.len(), 1, "{answer:?}");
    assert_eq!(answer.statuses[0].code, answer.overall_code, "{answer:?}");
    answer.overall_code() == Code::OverLimit
}

fn example(server: &TestServer) {
    let mut client = GrpcClient::connect(server);
    for (method, user, limit) in [("GET", "a", 10), ("GET", "b", 10), ("POST", "a", 5)] {
        let entries = [("req.method", method), ("user_id", user)];
        for number in 1..=limit {
            let answer = client
                .should_rate_limit(request("test_namespace", 0, &entries))
                .unwrap();
            assert!(!is_over(&answer), "{method} {user} {number}");
            let status = &answer.statuses[0];
            assert_eq!(status.limit_remaining, limit - number);
            assert_eq!(
                status.current_limit.as_ref().unwrap().requests_per_unit,
                limit
            );
        }
        let answer = client
            .should_rate_limit(request("test_namespace", 0, &entries))
            .unwrap();
        assert!(is_over(&answer), "{method} {user}");
        assert!(!answer.raw_body.is_empty());
    }
    // A missing variable, another method, another namespace: no limit applies.
    for (domain, entries) in [
        ("test_namespace", &[("req.method", "GET")][..]),
        ("test_namespace", &[("req.method", "PUT"), ("user_id", "a")]),
        ("test_namespace", &[]),
        ("unknown", &[("a", "b")]),
    ] {
        for _ in 0..20 {
            let answer = client
                .should_rate_limit(request(domain, 0, entries))
                .unwrap();
            assert!(!is_over(&answer));
        }
    }
    let answer = client
        .should_rate_limit(request("blocked", 0, &[]))
        .unwrap();
    assert!(is_over(&answer));
    let refused = client.should_rate_limit(request("", 0, &[])).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
}

#[test]
fn the_example_in_memory() {
    example(&start());
}

#[test]
fn the_example_on_redis() {
    let (folder, redis) = (Folder::new(), RedisServer::start());
    example(&TestServer::start(with_limits(&folder, &on_redis(&redis))));
}

#[test]
fn checks_are_recorded() {
    let folder = Folder::new();
    let trace = folder.path().join("trace.jsonl");
    let record = format!("[record]\nfile = {trace:?}\nsample = 1\nplain_keys = true\n");
    let server = TestServer::start_at(&ManualClock::new(), with_limits(&folder, &record));
    let mut client = GrpcClient::connect(&server);
    let entries = [("req.method", "POST"), ("user_id", "a")];
    for hits in [5, 1] {
        let asked = request("test_namespace", hits, &entries);
        client.should_rate_limit(asked).unwrap();
    }
    drop((client, server));
    let lines = std::fs::read_to_string(&trace).unwrap();
    let lines: Vec<serde_json::Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let seen = lines.iter().map(|line| {
        let [policy, key] = ["policy", "key"].map(|name| line[name].as_str().unwrap());
        (
            policy,
            key,
            line["cost"].as_u64().unwrap(),
            line["allowed"].as_bool().unwrap(),
        )
    });
    let expected = [("posts", "a", 5, true), ("posts", "a", 1, false)];
    assert!(seen.eq(expected), "{lines:?}");
}

#[test]
fn denied_requests_take_nothing() {
    let server = start();
    let mut client = GrpcClient::connect(&server);
    assert!(!is_over(
        &client.should_rate_limit(request("all", 2, &[])).unwrap()
    ));
    for _ in 0..5 {
        assert!(is_over(
            &client.should_rate_limit(request("all", 2, &[])).unwrap()
        ));
    }
    assert!(!is_over(
        &client.should_rate_limit(request("all", 1, &[])).unwrap()
    ));
}

#[test]
fn kuadrant_checks_first_and_reports_later() {
    let server = start();
    let client = GrpcClient::connect(&server);
    let mut kuadrant = RateLimitServiceClient::new(client.channel.clone());
    let mut check = |client: &GrpcClient| {
        let answer = client.run(kuadrant.check_rate_limit(request("all", 0, &[])));
        is_over(&answer.unwrap().into_inner())
    };
    for _ in 0..10 {
        assert!(!check(&client), "a check takes nothing");
    }
    let mut kuadrant = RateLimitServiceClient::new(client.channel.clone());
    // A report counts beyond the limit, and is never over.
    let report = client.run(kuadrant.report(request("all", 5, &[])));
    assert!(!is_over(&report.unwrap().into_inner()));
    assert!(check(&client));
    assert_eq!(
        server.metric("authorized_hits{limitador_namespace=\"all\"}"),
        15
    );
    assert_eq!(
        server.metric("limited_calls{limitador_namespace=\"all\"}"),
        1
    );
}

#[test]
fn http_endpoints_answer_with_the_status() {
    let server = start();
    let body = json!({ "namespace": "http", "values": { "method": "GET", "user": "ann" } });
    let with = |more: serde_json::Value| {
        let mut body = body.clone();
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body.to_string()
    };
    assert_eq!(server.client().get("/status").unwrap().status, 200);
    let limits = server.client().get("/limits/http").unwrap().json();
    assert_eq!(limits[0]["max_value"], 2);
    assert_eq!(limits[0]["id"], "by-method");
    assert_eq!(
        server.client().get("/limits/none").unwrap().json(),
        json!([])
    );
    assert_eq!(server.client().get("/counters/http").unwrap().status, 501);
    for _ in 0..3 {
        assert_eq!(server.post("/check", &body.to_string()).status, 200);
    }
    let headers = with(json!({ "response_headers": "DraftVersion03" }));
    let answer = server.post("/check_and_report", &headers);
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.field("x-ratelimit-limit"),
        Some("2, 2;w=60;name=\"gets\"")
    );
    assert_eq!(answer.field("x-ratelimit-remaining"), Some("1"));
    assert_eq!(
        server
            .post("/check_and_report", &with(json!({ "delta": 2 })))
            .status,
        429
    );
    assert_eq!(
        server.post("/report", &with(json!({ "delta": 5 }))).status,
        200
    );
    assert_eq!(server.post("/check", &body.to_string()).status, 429);
    assert_eq!(
        server.post("/check_and_report", &body.to_string()).status,
        429
    );
    for bad in [
        "",
        "{}",
        "[]",
        "{\"namespace\":\"\"}",
        "{\"namespace\":\"http\",\"x\":1}",
    ] {
        assert_eq!(server.post("/check", bad).status, 400, "{bad}");
    }
}

#[test]
fn invalid_limits_are_refused_with_their_position() {
    for (text, expected) in [
        ("a: 1\n", "expected a list of limits (line 1"),
        ("- 1\n", "expected a limit (line 1"),
        (
            "- {seconds: 1, conditions: [], variables: []}\n",
            "`namespace` is missing",
        ),
        (
            "- {namespace: a, conditions: [], variables: []}\n",
            "`seconds` is missing",
        ),
        (
            "- {namespace: a, seconds: 1, conditions: []}\n",
            "`variables` is missing",
        ),
        (
            "- namespace: a\n  seconds: 1\n  max: 1\n  conditions: []\n  variables: []\n",
            "unknown key 'max': expected id, name, namespace, max_value, seconds, conditions, variables (line 3",
        ),
        (
            "- {namespace: a, seconds: 1, max_value: -1, conditions: [], variables: []}\n",
            "`max_value` is invalid",
        ),
        (
            "- {namespace: a, seconds: 0, max_value: 1, conditions: [], variables: []}\n",
            "the limit is invalid",
        ),
        (
            "- {namespace: a, seconds: 1, max_value: 1, conditions: ['a =='], variables: []}\n",
            "invalid CEL expression 'a =='",
        ),
        (
            "- {namespace: a, seconds: 1, max_value: 1, conditions: x, variables: []}\n",
            "`conditions` is invalid",
        ),
    ] {
        let folder = Folder::new();
        let mut config = with_limits(&folder, "");
        config.limitador.config = Some(folder.write("bad.yaml", text).into());
        let listeners = Listeners::bind(&config).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let ran = runtime.block_on(run(config, listeners, None, || {}, async {}));
        let error = ran.expect_err(text).to_string();
        assert!(error.starts_with("bad.yaml: "), "{error}");
        assert!(error.contains(expected), "{text}: {error}");
        assert!(error.contains("(line "), "{error}");
    }
}

#[test]
fn an_expression_that_fails_is_an_error_and_takes_nothing() {
    let folder = Folder::new();
    let mut config = with_limits(&folder, "");
    let text = "- {namespace: a, seconds: 60, max_value: 1, conditions: ['descriptors[0].n + 1 > 1'], variables: []}\n";
    config.limitador.config = Some(folder.write("odd.yaml", text).into());
    let server = TestServer::start(config);
    let mut client = GrpcClient::connect(&server);
    let refused = client
        .should_rate_limit(request("a", 0, &[("n", "x")]))
        .unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert!(
        refused.message().contains("descriptors[0].n + 1 > 1"),
        "{refused}"
    );
}
