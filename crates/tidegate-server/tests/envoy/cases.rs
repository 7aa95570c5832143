//! The public cases of envoyproxy/ratelimit and our own, in both modes, in memory and on Redis.

use serde_json::Value;
use tidegate::ManualClock;
use tidegate_server::config::Listen;
use tidegate_server::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate_server::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use tidegate_server::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tidegate_server::proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus,
};
use tidegate_server::proto::envoy::r#type::v3::RateLimitUnit;
use tidegate_server::{Config, Listeners, run};
use tidegate_testkit::Folder;
use tidegate_testkit::redis::{RedisServer, ShiftedClock};

use crate::common::{GrpcClient, TestServer, config, on_redis};

/// Returns all cases of a kind.
pub(crate) fn cases(kinds: &[&str]) -> Vec<Value> {
    let files = [
        include_str!("public_cases.jsonl"),
        include_str!("own_cases.jsonl"),
    ];
    let lines = files.iter().flat_map(|file| file.lines());
    let cases = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
    let is_wanted = |case: &Value| kinds.contains(&case["kind"].as_str().unwrap());
    cases.filter(is_wanted).collect()
}

/// Writes the files of a case.
fn write(folder: &Folder, case: &Value) {
    let id = case["id"].as_str().unwrap();
    match case["files"].as_array() {
        None => drop(folder.write(&format!("{id}.yaml"), case["yaml"].as_str().unwrap())),
        Some(files) => {
            for file in files {
                let name = file["name"].as_str().unwrap();
                folder.write(&format!("{id}-{name}"), file["yaml"].as_str().unwrap());
            }
        }
    }
}

/// Returns a configuration with the rules in a folder.
pub(crate) fn with_rules(folder: &Folder, more: &str) -> Config {
    let path = folder.path().display();
    let mut config = config(&format!("{more}\n[envoy]\nconfig = \"{path}\"\n"));
    config.grpc.listen = Listen::local(0);
    config
}

#[test]
fn invalid_rules_have_the_messages_of_ratelimit() {
    let cases = cases(&["error"]);
    assert!(cases.len() >= 35);
    for case in cases {
        let folder = Folder::new();
        write(&folder, &case);
        let config = with_rules(&folder, "");
        let listeners = Listeners::bind(&config).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let ran = runtime.block_on(run(config, listeners, None, || {}, async {}));
        let error = ran.expect_err(case["id"].as_str().unwrap()).to_string();
        let expected = case["expected_error"].as_str().unwrap();
        assert!(error.contains(expected), "{}: {error}", case["id"]);
    }
}

#[test]
fn cases_all_or_nothing_in_memory() {
    let server = start_in_memory("all_or_nothing");
    run_all(&server, true);
}

#[test]
fn cases_independent_in_memory() {
    let server = start_in_memory("independent");
    run_all(&server, false);
}

#[test]
fn cases_all_or_nothing_on_redis() {
    let (redis, _clock) = redis_at_noon();
    let server = start_on_redis("all_or_nothing", &redis);
    run_all(&server, true);
}

#[test]
fn cases_independent_on_redis() {
    let (redis, _clock) = redis_at_noon();
    let server = start_on_redis("independent", &redis);
    run_all(&server, false);
}

/// Starts a Redis whose clock is near noon, far from the end of an hour or a day.
fn redis_at_noon() -> (RedisServer, ShiftedClock) {
    let clock = ShiftedClock::make();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_micros();
    let day = 86_400_000_000;
    // 12:10:20, in the middle of a minute.
    let wanted = i64::try_from(now / day * day + 43_820_000_000).unwrap();
    clock.shift_micros(wanted - i64::try_from(now).unwrap());
    (RedisServer::start_with_clock(&clock), clock)
}

/// The rules of all cases together: each has its own domain.
fn all_rules(mode: &str, more: &str) -> (Folder, Config) {
    let folder = Folder::new();
    cases(&["lookup", "count"])
        .iter()
        .for_each(|case| write(&folder, case));
    let mut config = with_rules(&folder, more);
    config.envoy.merge_domains = true;
    config.envoy.descriptors = serde_json::from_value(mode.into()).unwrap();
    (folder, config)
}

fn start_in_memory(mode: &str) -> TestServer {
    let (_folder, config) = all_rules(mode, "");
    TestServer::start_at(&ManualClock::new(), config)
}

fn start_on_redis(mode: &str, redis: &RedisServer) -> TestServer {
    let (_folder, config) = all_rules(mode, &on_redis(redis));
    TestServer::start(config)
}

fn run_all(server: &TestServer, is_all_or_nothing: bool) {
    let cases = cases(&["lookup", "count"]);
    assert!(cases.len() >= 80);
    run_cases(server, &cases, is_all_or_nothing);
}

/// Runs cases and compares every status.
pub(crate) fn run_cases(server: &TestServer, cases: &[Value], is_all_or_nothing: bool) {
    let mut client = GrpcClient::connect(server);
    for case in cases {
        let id = case["id"].as_str().unwrap();
        let of_mode = case.get("expected_all_or_nothing");
        // A charge is taken in either mode, so this case has one result.
        let of_mode = of_mode.filter(|_| is_all_or_nothing && id != "envoy-token-quota");
        let expected = of_mode.unwrap_or(&case["expected"]);
        let requests = case["requests"].as_array().unwrap();
        for (number, request) in requests.iter().enumerate() {
            let answer = client.should_rate_limit(message(case, request));
            let answer = answer.unwrap_or_else(|status| panic!("{id} {number}: {status}"));
            let expected = &expected[number];
            let got = answer.overall_code().as_str_name();
            let context = format!("{id}, request {number}: {answer:?}");
            assert_eq!(got, expected["overall"].as_str().unwrap(), "{context}");
            let statuses = expected["statuses"].as_array().unwrap();
            assert_eq!(answer.statuses.len(), statuses.len(), "{context}");
            for (status, expected) in answer.statuses.iter().zip(statuses) {
                check_status(status, expected, &context);
            }
            let is_over = answer.overall_code() == Code::OverLimit;
            assert_eq!(answer.raw_body.is_empty(), !is_over, "{context}");
        }
    }
}

fn check_status(status: &DescriptorStatus, expected: &Value, context: &str) {
    assert_eq!(status.code().as_str_name(), expected["code"], "{context}");
    assert_eq!(
        status.limit_remaining, expected["limit_remaining"],
        "{context}"
    );
    match &status.current_limit {
        None => assert_eq!(expected["no_limit"], true, "{context}"),
        Some(limit) => {
            assert_eq!(
                limit.requests_per_unit, expected["requests_per_unit"],
                "{context}"
            );
            assert_eq!(limit.unit().as_str_name(), expected["unit"], "{context}");
            let name = expected["name"].as_str().unwrap_or_default();
            assert_eq!(limit.name, name, "{context}");
            let reset = status.duration_until_reset.unwrap();
            assert_eq!(reset.nanos, 0, "{context}");
        }
    }
}

/// Returns the message of a request in a case.
fn message(case: &Value, request: &Value) -> RateLimitRequest {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let domain = request.get("domain").unwrap_or(&case["domain"]);
    let descriptors = request["descriptors"].as_array().unwrap().iter();
    let descriptor = |(place, entries): (usize, &Value)| {
        let options = &request["descriptor_options"][place];
        let limit = options.get("limit").map(|limit| RateLimitOverride {
            requests_per_unit: number(&limit["requests_per_unit"]),
            unit: RateLimitUnit::from_str_name(limit["unit"].as_str().unwrap())
                .unwrap()
                .into(),
            unit_multiplier: None,
        });
        let entries = entries.as_array().unwrap().iter();
        RateLimitDescriptor {
            entries: entries
                .map(|entry| Entry {
                    key: text(&entry[0]),
                    value: text(&entry[1]),
                })
                .collect(),
            limit,
            hits_addend: options["hits_addend"].as_u64(),
            is_negative_hits: options["is_negative_hits"] == true,
        }
    };
    RateLimitRequest {
        domain: text(domain),
        descriptors: descriptors.enumerate().map(descriptor).collect(),
        hits_addend: request.get("hits_addend").map_or(0, number),
    }
}

fn number(value: &Value) -> u32 {
    value.as_u64().unwrap().try_into().unwrap()
}

#[test]
fn json_answers_as_ratelimit_does() {
    for case in cases(&["json"]) {
        let folder = Folder::new();
        write(&folder, &case);
        let server = TestServer::start_at(&ManualClock::new(), with_rules(&folder, ""));
        for call in case["http"].as_array().unwrap() {
            let path = call["path"].as_str().unwrap();
            let answer = server.post(path, call["body"].as_str().unwrap());
            assert_eq!(answer.status, call["status"]);
            let mut json = answer.json();
            for status in json["statuses"].as_array_mut().unwrap() {
                assert!(
                    status["durationUntilReset"]
                        .as_str()
                        .unwrap()
                        .ends_with('s')
                );
                status["durationUntilReset"] = "*".into();
            }
            assert_eq!(json, call["json"]);
        }
        let health = server.client().get("/healthcheck").unwrap();
        assert_eq!((health.status, health.body.as_str()), (200, "OK"));
        let rules = server.admin().get("/rlconfig").unwrap().body;
        assert!(
            rules.contains("h155.k: unit=DAY requests_per_unit=1"),
            "{rules}"
        );
        let stats = server.admin().get("/stats").unwrap().body;
        assert!(
            stats.contains("ratelimit.service.rate_limit.h155.k.over_limit: 1"),
            "{stats}"
        );
        for bad in [
            "",
            "{}",
            "{\"domain\":\"h155\"}",
            "{\"domain\":1}",
            "{\"x\":1}",
            "[]",
        ] {
            assert_eq!(server.post("/json", bad).status, 400, "{bad}");
        }
    }
}
