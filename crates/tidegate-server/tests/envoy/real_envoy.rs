//! A real Envoy 1.40 in front of the server, with every kind of route.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_server::config::{ConfigDuration, TlsConfig};
use tidegate_server::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate_server::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tidegate_server::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tidegate_testkit::Folder;
use tidegate_testkit::gateway::{App, Gateway, GatewayProgram, tool};
use tidegate_testkit::http::HttpAnswer;
use tidegate_testkit::redis::{TlsFiles, wait_for};

use crate::cases::with_rules;
use crate::common::{GrpcClient, TestServer};

const ENVOY: &str = include_str!("../../../../deploy/gateways/envoy.yaml");
const RULES: &str = include_str!("../../../../deploy/gateways/ratelimit.yaml");
const LONG: Duration = Duration::from_secs(20);

fn start_envoy(text: &str, service: SocketAddr, app: &App) -> Gateway {
    let arguments = [
        "-c",
        "envoy.yaml",
        "--concurrency",
        "1",
        "--disable-hot-restart",
        "-l",
        "error",
    ];
    Gateway::start(&GatewayProgram {
        program: tool("envoy"),
        arguments: &arguments,
        files: &[("envoy.yaml", text)],
        addresses: &[
            ("127.0.0.1:10000", None),
            ("127.0.0.1:10001", Some(app.address())),
            ("127.0.0.1:18081", Some(service)),
            ("127.0.0.1:19901", None),
        ],
        listens_at: "127.0.0.1:10000",
    })
}

/// The configuration without its own application: the tests bring one.
fn envoy_yaml() -> String {
    let (before, rest) = ENVOY.split_once("  - name: app\n    address:").unwrap();
    let (_, after) = rest.split_once("  clusters:\n").unwrap();
    format!("{before}  clusters:\n{after}")
}

fn start() -> (TestServer, App, Gateway) {
    let folder = Folder::new();
    folder.write("rules.yaml", RULES);
    let server = TestServer::start(with_rules(&folder, ""));
    let app = App::start();
    let envoy = start_envoy(&envoy_yaml(), server.grpc.unwrap(), &app);
    (server, app, envoy)
}

fn assert_denied(answer: &HttpAnswer) {
    assert_eq!(answer.status, 429, "{answer:?}");
    assert_eq!(
        answer.field("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(answer.field("x-envoy-ratelimited"), Some("true"));
    let retry_after: u64 = answer.field("retry-after").unwrap().parse().unwrap();
    assert!((1..=366 * 86_400).contains(&retry_after), "{answer:?}");
    assert_eq!(answer.json()["status"], 429);
    assert_eq!(answer.json()["retry_after"], retry_after);
    assert_eq!(answer.field("x-ratelimit-remaining"), Some("0"));
    assert_eq!(
        answer.field("x-ratelimit-reset").unwrap(),
        retry_after.to_string()
    );
}

/// Sends requests that must pass, and one that must not.
fn limit_passes(envoy: &Gateway, path: &str, fields: &str, limit: usize) -> HttpAnswer {
    for number in 0..limit {
        let answer = envoy.get(path, fields);
        assert_eq!(answer.status, 200, "{path} {number}: {answer:?}");
    }
    let answer = envoy.get(path, fields);
    assert_denied(&answer);
    answer
}

#[test]
fn each_route_passes_its_limit_and_then_denies() {
    let (server, _app, envoy) = start();
    // The address has 3 a day, and the denied request takes none of them.
    let denied = limit_passes(&envoy, "/user", "x-user: ann\r\n", 2);
    assert!(denied.body.contains("per-user"), "{denied:?}");
    let denied = limit_passes(&envoy, "/ip", "", 1);
    let limit = denied.field("x-ratelimit-limit").unwrap();
    assert_eq!(limit, "3, 3;w=86400;name=\"per-address\"");
    limit_passes(&envoy, "/override", "", 2);
    limit_passes(&envoy, "/cost", "", 2);
    // The charge that denied counts: 15 of 10. Two refunds of 5 make room for one more charge.
    assert_eq!(envoy.get("/refund", "").status, 200);
    assert_eq!(envoy.get("/refund", "").status, 200);
    limit_passes(&envoy, "/cost", "", 1);
    limit_passes(&envoy, "/bytes", "x-cost: 60\r\n", 1);
    for path in ["/direct", "/", "/other"] {
        assert_eq!(envoy.get(path, "").status, 200, "{path}");
    }
    let answer = envoy.get("/ip", "content-type: application/grpc\r\nte: trailers\r\n");
    assert_eq!(
        (answer.status, answer.field("grpc-status")),
        (200, Some("8")),
        "{answer:?}"
    );
    assert_eq!(server.metric("tidegate_panics_total"), 0);
}

#[test]
fn tokens_are_charged_at_the_end_of_the_stream() {
    let (server, _app, envoy) = start();
    for charged in [400, 800, 1_200] {
        assert_eq!(envoy.get("/tokens", "").status, 200);
        let line = format!("rl.budget_tokens.total_hits: {charged}\n");
        let is_charged = || server.admin().get("/stats").unwrap().body.contains(&line);
        assert!(wait_for(LONG, is_charged), "{line}");
    }
    assert_denied(&envoy.get("/tokens", ""));
}

#[test]
fn never_more_streams_in_flight_than_the_limit() {
    let (server, app, envoy) = start();
    let (mut passed, mut denied) = (0, 0);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let answers = (0..25).map(|_| envoy.get("/inflight", "").status);
                    answers.partition::<Vec<u16>, _>(|status| *status == 200)
                })
            })
            .collect();
        for client in clients {
            let (ok, over) = client.join().unwrap();
            assert!(over.iter().all(|status| *status == 429), "{over:?}");
            passed += ok.len();
            denied += over.len();
        }
    });
    assert_eq!(passed + denied, 200);
    assert_eq!(app.served(), passed);
    assert!(passed > 0 && denied > 0, "{passed} passed, {denied} denied");
    assert!(app.most_at_a_time() <= 2, "{}", app.most_at_a_time());
    let mut client = GrpcClient::connect(&server);
    let look = RateLimitRequest {
        domain: "rl".to_owned(),
        descriptors: vec![RateLimitDescriptor {
            entries: vec![Entry {
                key: "inflight".to_owned(),
                value: "all".to_owned(),
            }],
            hits_addend: Some(0),
            ..RateLimitDescriptor::default()
        }],
        hits_addend: 0,
    };
    let is_empty = || {
        let answer = client.should_rate_limit(look.clone()).unwrap();
        answer.statuses[0].limit_remaining == 2
    };
    assert!(wait_for(LONG, is_empty), "the count does not return to 0");
}

#[test]
fn without_the_service_requests_fail_or_pass() {
    let (server, app, closed) = start();
    let open_yaml = envoy_yaml().replace("failure_mode_deny: true", "failure_mode_deny: false");
    let open = start_envoy(&open_yaml, server.grpc.unwrap(), &app);
    assert_eq!(closed.get("/ip", "").status, 200);
    assert_eq!(open.get("/ip", "").status, 200);
    drop(server);
    assert_eq!(closed.get("/ip", "").status, 503);
    assert_eq!(open.get("/ip", "").status, 200);
}

#[test]
fn envoy_connects_with_mutual_tls() {
    let (folder, files) = (Folder::new(), TlsFiles::make());
    folder.write("rules.yaml", RULES);
    let mut config = with_rules(&folder, "");
    config.grpc.tls = Some(TlsConfig {
        cert: files.path("redis.crt").into(),
        key: files.path("redis.key").into(),
        client_ca: Some(files.path("ca.crt").into()),
    });
    let server = TestServer::start(config);
    let app = App::start();
    let with_tls = |own: &str| {
        let (ca, cert, key) = (
            files.path("ca.crt"),
            files.path("redis.crt"),
            files.path("redis.key"),
        );
        let own = own.replace("CERT", &cert).replace("KEY", &key);
        let socket = format!(
            "    connect_timeout: 0.25s\n    transport_socket:\n      name: envoy.transport_sockets.tls\n      typed_config:\n        \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext\n        common_tls_context:\n          alpn_protocols: [h2]\n          validation_context: {{ trusted_ca: {{ filename: {ca} }} }}\n{own}"
        );
        let yaml = envoy_yaml().replace("    connect_timeout: 0.25s\n", &socket);
        start_envoy(&yaml, server.grpc.unwrap(), &app)
    };
    let own = "          tls_certificates: [ { certificate_chain: { filename: CERT }, private_key: { filename: KEY } } ]\n";
    limit_passes(&with_tls(own), "/ip", "", 3);
    // Without a certificate there is no connection, so the request is denied.
    assert_eq!(with_tls("").get("/ip", "").status, 503);
}

#[test]
fn old_connections_end_without_failing_requests() {
    let folder = Folder::new();
    folder.write(
        "rules.yaml",
        &RULES.replace("requests_per_unit: 3,", "requests_per_unit: 100000,"),
    );
    let mut config = with_rules(&folder, "");
    // Envoy is asked to connect again many times during the test.
    config.grpc.max_connection_age = Some(ConfigDuration(Duration::from_millis(20)));
    let server = TestServer::start(config);
    let app = App::start();
    let envoy = start_envoy(&envoy_yaml(), server.grpc.unwrap(), &app);
    for number in 0..200 {
        let answer = envoy.get("/ip", "");
        assert_eq!(answer.status, 200, "{number}: {answer:?}");
    }
}
