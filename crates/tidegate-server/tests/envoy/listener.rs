//! The gRPC listener: tokens, health, reflection, Unix sockets, bounds, outages and shutdown.

use std::time::Duration;

use tidegate::ManualClock;
use tidegate_server::Config;
use tidegate_server::config::{ConfigDuration, Listen};
use tidegate_server::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate_server::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tidegate_server::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tidegate_testkit::Folder;
use tidegate_testkit::redis::RedisServer;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::cases::with_rules;
use crate::common::{GrpcClient, TestServer};

const RULES: &str = "domain: rl\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 1000000}\n- key: small\n  rate_limit: {unit: day, requests_per_unit: 2}\n";

fn with(more: &str) -> (Folder, Config) {
    let folder = Folder::new();
    folder.write("rules.yaml", RULES);
    let config = with_rules(&folder, more);
    (folder, config)
}

fn start() -> TestServer {
    let (_folder, config) = with("");
    TestServer::start(config)
}

fn descriptor(key: &str, value: &str) -> RateLimitDescriptor {
    RateLimitDescriptor {
        entries: vec![Entry {
            key: key.to_owned(),
            value: value.to_owned(),
        }],
        ..RateLimitDescriptor::default()
    }
}

fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest {
        domain: "rl".to_owned(),
        descriptors,
        hits_addend: 0,
    }
}

fn simple() -> RateLimitRequest {
    request(vec![descriptor("k", "v")])
}

#[test]
fn a_token_is_needed_where_one_is_configured() {
    let folder = Folder::new();
    let secret = "a-token-of-at-least-sixteen-characters";
    let file = folder.write("token", secret);
    let (_rules, config) = with(&format!(
        "[[token]]\nfile = {file:?}\nscopes = [\"check\"]\n"
    ));
    let server = TestServer::start(config);
    let client = GrpcClient::connect(&server);
    let call = |token: Option<&str>, message: RateLimitRequest| {
        let mut request = tonic::Request::new(message);
        if let Some(token) = token {
            let value = format!("Bearer {token}").parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        let mut service = RateLimitServiceClient::new(client.channel.clone());
        let answer = client.run(service.should_rate_limit(request));
        answer.map(drop).map_err(|status| status.code())
    };
    assert_eq!(call(None, simple()), Err(tonic::Code::Unauthenticated));
    assert_eq!(
        call(Some("wrong"), simple()),
        Err(tonic::Code::Unauthenticated)
    );
    assert_eq!(call(Some(secret), simple()), Ok(()));
    // Giving back needs another scope.
    let refund = RateLimitDescriptor {
        hits_addend: Some(1),
        is_negative_hits: true,
        ..descriptor("k", "v")
    };
    let refund = call(Some(secret), request(vec![refund]));
    assert_eq!(refund, Err(tonic::Code::PermissionDenied));
}

fn health(client: &GrpcClient, service: &str) -> Result<ServingStatus, tonic::Code> {
    let mut health = HealthClient::new(client.channel.clone());
    let service = service.to_owned();
    let answer = client.run(health.check(HealthCheckRequest { service }));
    match answer {
        Ok(answer) => Ok(answer.into_inner().status()),
        Err(status) => Err(status.code()),
    }
}

#[test]
fn health_and_reflection() {
    let server = start();
    let client = GrpcClient::connect(&server);
    for service in [
        "",
        "ratelimit",
        "envoy.service.ratelimit.v3.RateLimitService",
    ] {
        assert_eq!(
            health(&client, service),
            Ok(ServingStatus::Serving),
            "{service}"
        );
    }
    assert_eq!(health(&client, "other"), Err(tonic::Code::NotFound));
    // These services need no token, so their messages are small.
    let large = "x".repeat(8_192);
    assert_eq!(health(&client, &large), Err(tonic::Code::OutOfRange));
    let mut reflection = ServerReflectionClient::new(client.channel.clone());
    let ask = |message_request: MessageRequest| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(message_request),
    };
    let requests = [
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol(
            "envoy.service.ratelimit.v3.RateLimitService".to_owned(),
        )),
    ];
    let answers = client.run(async {
        let requests = futures_util::stream::iter(requests);
        let mut stream = reflection
            .server_reflection_info(requests)
            .await
            .unwrap()
            .into_inner();
        let mut answers = Vec::new();
        while let Some(answer) = stream.message().await.unwrap() {
            answers.push(answer.message_response.unwrap());
        }
        answers
    });
    let MessageResponse::ListServicesResponse(list) = &answers[0] else {
        panic!("{answers:?}");
    };
    let names: Vec<&str> = list.service.iter().map(|one| one.name.as_str()).collect();
    assert!(
        names.contains(&"envoy.service.ratelimit.v3.RateLimitService"),
        "{names:?}"
    );
    assert!(
        matches!(&answers[1], MessageResponse::FileDescriptorResponse(files) if !files.file_descriptor_proto.is_empty())
    );
}

#[test]
fn health_ends_when_the_server_drains() {
    let (_folder, mut config) = with("");
    config.bounds.drain_delay = Some(ConfigDuration(Duration::from_secs(5)));
    let mut server = TestServer::start(config);
    let client = GrpcClient::connect(&server);
    let mut watch = HealthClient::new(client.channel.clone());
    let service = "ratelimit".to_owned();
    let answer = client.run(watch.watch(HealthCheckRequest { service }));
    let mut changes = answer.unwrap().into_inner();
    let mut next = || client.run(changes.message()).unwrap().unwrap().status();
    assert_eq!(next(), ServingStatus::Serving);
    server.begin_end();
    assert_eq!(next(), ServingStatus::NotServing);
    // Requests are still answered.
    let mut service = RateLimitServiceClient::new(client.channel.clone());
    client.run(service.should_rate_limit(simple())).unwrap();
    assert_eq!(server.client().get("/healthcheck").unwrap().status, 500);
}

#[test]
fn a_unix_socket() {
    let (folder, mut config) = with("");
    let path = folder.path().join("grpc.sock");
    config.grpc.socket = Some(path.clone());
    config.grpc.listen = Listen::Off;
    let server = TestServer::start(config);
    let mut client = GrpcClient::connect_to(&format!("unix://{}", path.display()));
    let answer = client.should_rate_limit(simple()).unwrap();
    assert_eq!(answer.overall_code(), Code::Ok);
    drop((client, server));
    assert!(!path.exists(), "the socket is removed at the end");
}

#[test]
fn invalid_requests_are_refused() {
    let server = start();
    let mut client = GrpcClient::connect(&server);
    let with_limit = |requests_per_unit, unit| RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit,
            unit,
            unit_multiplier: None,
        }),
        ..descriptor("small", "v")
    };
    let no_domain = RateLimitRequest {
        domain: String::new(),
        ..simple()
    };
    for (message, expected) in [
        (no_domain, "rate limit domain must not be empty"),
        (
            request(Vec::new()),
            "rate limit descriptor list must not be empty",
        ),
        (request(vec![descriptor("k", "v"); 33]), "33 descriptors"),
        // The first descriptor would take, but the second is invalid.
        (
            request(vec![descriptor("small", "v"), with_limit(1, 0)]),
            "unit of a descriptor's limit is unknown",
        ),
        (
            request(vec![with_limit(1, 99)]),
            "unit of a descriptor's limit",
        ),
    ] {
        let refused = client.should_rate_limit(message).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains(expected), "{refused}");
    }
    let answer = client.should_rate_limit(request(vec![descriptor("small", "v")]));
    assert_eq!(
        answer.unwrap().statuses[0].limit_remaining,
        1,
        "nothing was taken"
    );
    // A message that is too large.
    let large = request(vec![descriptor("k", &"x".repeat(1 << 20))]);
    let refused = client.should_rate_limit(large).unwrap_err();
    assert_ne!(refused.code(), tonic::Code::Unknown, "{refused}");
    assert_eq!(server.metric("tidegate_panics_total"), 0);
}

/// Sends a body as it is. Returns gRPC's status, from the headers or the trailers.
fn raw(client: &GrpcClient, path: &str, content_type: &str, body: &[u8]) -> (u16, Option<String>) {
    use http_body_util::{BodyExt, Full};
    use tower_service::Service;
    let mut channel = client.channel.clone();
    let body = Full::new(bytes::Bytes::copy_from_slice(body)).map_err(|never| match never {});
    let request = http::Request::post(path)
        .header("content-type", content_type)
        .body(tonic::body::Body::new(
            body.map_err(|error: tonic::Status| error),
        ))
        .unwrap();
    client.run(async {
        std::future::poll_fn(|context| channel.poll_ready(context))
            .await
            .unwrap();
        let response = channel.call(request).await.unwrap();
        let (head, body) = response.into_parts();
        let collected = body.collect().await.unwrap();
        let text = |value: &http::HeaderValue| value.to_str().unwrap().to_owned();
        let status = head.headers.get("grpc-status").map(text);
        let trailer = collected
            .trailers()
            .and_then(|all| all.get("grpc-status"))
            .map(text);
        (head.status.as_u16(), status.or(trailer))
    })
}

#[test]
fn broken_messages_are_refused() {
    let server = start();
    let client = GrpcClient::connect(&server);
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let invalid = Some("3".to_owned());
    let unimplemented = Some("12".to_owned());
    for (body, expected) in [
        (&b""[..], &invalid),
        (b"\0\0\0\0", &invalid),
        (b"\0\0\0\0\x05abc", &invalid),
        (b"\0\0\0\0\x03\xff\xff\xff", &invalid),
        (b"\0\0\0\0\0", &invalid),
        (b"\x01\0\0\0\x01a", &unimplemented),
        // Nested length that exceeds its message.
        (b"\0\0\0\0\x02\x12\x7f", &invalid),
    ] {
        let (status, grpc) = raw(&client, path, "application/grpc", body);
        assert_eq!((status, &grpc), (200, expected), "{body:?}");
    }
    let (_, grpc) = raw(
        &client,
        "/no.Such/Method",
        "application/grpc",
        b"\0\0\0\0\0",
    );
    assert_eq!(grpc, unimplemented);
    let (status, _) = raw(&client, path, "application/json", b"{}");
    assert_eq!(status, 415);
    assert_eq!(server.metric("tidegate_panics_total"), 0);
}

#[test]
fn the_code_is_never_unknown() {
    let mut random = fastrand::Rng::with_seed(14);
    for mode in ["all_or_nothing", "independent"] {
        let (_folder, mut config) = with("");
        config.envoy.descriptors = serde_json::from_value(mode.into()).unwrap();
        config.envoy.quota_mode = random.bool();
        let server = TestServer::start_at(&ManualClock::new(), config);
        let mut client = GrpcClient::connect(&server);
        for _ in 0..1_500 {
            let message = random_request(&mut random);
            let count = message.descriptors.len();
            match client.should_rate_limit(message.clone()) {
                Ok(answer) => check_answer(&answer, count, &message),
                Err(status) => {
                    assert_eq!(
                        status.code(),
                        tonic::Code::InvalidArgument,
                        "{message:?}: {status}"
                    );
                }
            }
        }
        assert_eq!(server.metric("tidegate_panics_total"), 0);
    }
}

fn check_answer(answer: &RateLimitResponse, count: usize, message: &RateLimitRequest) {
    assert_ne!(answer.overall_code(), Code::Unknown, "{message:?}");
    assert_eq!(answer.statuses.len(), count, "{message:?}");
    for status in &answer.statuses {
        assert_ne!(status.code(), Code::Unknown, "{message:?}");
        let reset = status.duration_until_reset.unwrap_or_default();
        assert!(reset.seconds >= 0 && reset.nanos == 0, "{answer:?}");
    }
}

fn random_request(random: &mut fastrand::Rng) -> RateLimitRequest {
    let texts = ["", "k", "small", "v", "*", "\u{0}", "é", "a;b=c%"];
    let text = |random: &mut fastrand::Rng| texts[random.usize(..texts.len())].to_owned();
    let numbers = [0, 1, 2, 1_000, u64::from(u32::MAX), u64::MAX];
    let descriptors = (0..random.usize(1..4)).map(|_| {
        let entries = (0..random.usize(0..3)).map(|_| Entry {
            key: text(random),
            value: text(random),
        });
        let entries = entries.collect();
        let limit = (random.u8(..4) == 0).then(|| RateLimitOverride {
            requests_per_unit: numbers[random.usize(..5)] as u32,
            unit: random.i32(0..9),
            unit_multiplier: random.bool().then(|| random.u32(..3)),
        });
        RateLimitDescriptor {
            entries,
            limit,
            hits_addend: random
                .bool()
                .then(|| numbers[random.usize(..numbers.len())]),
            is_negative_hits: random.u8(..4) == 0,
        }
    });
    let descriptors = descriptors.collect();
    RateLimitRequest {
        domain: if random.u8(..8) == 0 { "other" } else { "rl" }.to_owned(),
        descriptors,
        hits_addend: numbers[random.usize(..5)] as u32,
    }
}

#[test]
fn retry_after_waits_for_one_quota_and_every_limit() {
    let folder = Folder::new();
    folder.write(
        "rules.yaml",
        "domain: rl\ndescriptors:\n- {key: s, quota_mode: true, rate_limit: {unit: second, requests_per_unit: 1}}\n- {key: d, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}\n- {key: m, rate_limit: {unit: minute, requests_per_unit: 1}}\n",
    );
    let server = TestServer::start_at(&ManualClock::new(), with_rules(&folder, ""));
    let mut client = GrpcClient::connect(&server);
    let mut retry_after = |keys: &[&str]| {
        let descriptors = keys.iter().map(|key| descriptor(key, "v")).collect();
        let answer = client.should_rate_limit(request(descriptors)).unwrap();
        let mut headers = answer.response_headers_to_add.into_iter();
        let found = headers.find(|header| header.key == "retry-after");
        found.map(|header| header.value.parse::<u64>().unwrap())
    };
    assert_eq!(retry_after(&["s", "d"]), None);
    // One of the quotas is enough.
    assert_eq!(retry_after(&["s", "d"]), Some(1));
    assert_eq!(retry_after(&["m"]), None);
    let minute = retry_after(&["m"]).unwrap();
    assert!((2..=60).contains(&minute));
    assert_eq!(retry_after(&["m", "s", "d"]), Some(minute));
}

#[test]
fn outages_follow_the_failure_policy() {
    for (failure, expected) in [
        ("closed", Err(tonic::Code::Unavailable)),
        ("open", Ok(Code::Ok)),
        ("local", Ok(Code::Ok)),
    ] {
        let redis = RedisServer::start();
        let url = format!("redis://127.0.0.1:{}/?timeout=200ms", redis.port());
        let (_folder, config) = with(&format!(
            "store.url = \"{url}\"\nstore.failure = \"{failure}\"\n"
        ));
        let server = TestServer::start(config);
        let mut client = GrpcClient::connect(&server);
        client.should_rate_limit(simple()).unwrap();
        drop(redis);
        for _ in 0..5 {
            let answer = client.should_rate_limit(simple());
            let answer = answer
                .map(|answer| answer.overall_code())
                .map_err(|status| status.code());
            assert_eq!(answer, expected, "{failure}");
        }
        for is_negative_hits in [false, true] {
            let own_hits = RateLimitDescriptor {
                hits_addend: Some(1),
                is_negative_hits,
                ..descriptor("k", "v")
            };
            let answer = client.should_rate_limit(request(vec![own_hits]));
            let answer = answer
                .map(|answer| answer.overall_code())
                .map_err(|status| status.code());
            assert_eq!(answer, expected, "{failure}");
        }
        // Every decision of the failure policy is counted.
        if expected.is_ok() {
            let metrics = server.admin().get("/metrics").unwrap().body;
            let lines = metrics.lines();
            let counts =
                lines.filter_map(|line| line.strip_prefix("tidegate_rule_degraded_total{"));
            let count = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
            assert_eq!(counts.map(count).sum::<u64>(), 7, "{failure}: {metrics}");
        }
    }
}
