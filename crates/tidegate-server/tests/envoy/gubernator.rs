//! Gubernator's messages over gRPC and HTTP.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate::ManualClock;
use tidegate_server::Config;
use tidegate_server::config::Listen;
use tidegate_server::proto::pb::gubernator::v1_client::V1Client;
use tidegate_server::proto::pb::gubernator::{
    Algorithm, Behavior, GetRateLimitsReq, HealthCheckReq, LiveCheckReq, RateLimitReq,
    RateLimitResp, Status,
};
use tidegate_testkit::redis::RedisServer;

use crate::common::{GrpcClient, TestServer, config, on_redis};

fn enabled(more: &str) -> Config {
    let mut config = config(&format!("{more}\n[gubernator]\nenabled = true\n"));
    config.grpc.listen = Listen::local(0);
    config
}

fn request(key: &str, hits: i64, limit: i64) -> RateLimitReq {
    RateLimitReq {
        name: "requests".to_owned(),
        unique_key: key.to_owned(),
        hits,
        limit,
        duration: 60_000,
        ..RateLimitReq::default()
    }
}

fn leaky(key: &str, hits: i64, limit: i64) -> RateLimitReq {
    RateLimitReq {
        algorithm: Algorithm::LeakyBucket.into(),
        ..request(key, hits, limit)
    }
}

fn with(behavior: Behavior, request: RateLimitReq) -> RateLimitReq {
    RateLimitReq {
        behavior: behavior.into(),
        ..request
    }
}

struct Client(GrpcClient);

impl Client {
    fn batch(&self, requests: Vec<RateLimitReq>) -> Result<Vec<RateLimitResp>, tonic::Status> {
        let mut client = V1Client::new(self.0.channel.clone());
        let answer = self
            .0
            .run(client.get_rate_limits(GetRateLimitsReq { requests }))?;
        Ok(answer.into_inner().responses)
    }

    fn one(&self, request: RateLimitReq) -> RateLimitResp {
        self.batch(vec![request]).unwrap().remove(0)
    }

    /// Returns whether the request is over the limit, and what remains.
    fn check(&self, request: RateLimitReq) -> (bool, i64) {
        let answer = self.one(request);
        assert_eq!(answer.error, "", "{answer:?}");
        (answer.status() == Status::OverLimit, answer.remaining)
    }
}

fn windows(client: &Client) {
    assert_eq!(client.check(request("a", 0, 10)), (false, 10));
    assert_eq!(client.check(request("a", 4, 10)), (false, 6));
    // Over, without draining.
    assert_eq!(client.check(request("a", 7, 10)), (true, 6));
    assert_eq!(client.check(request("a", 6, 10)), (false, 0));
    assert_eq!(client.check(request("a", 1, 10)), (true, 0));
    assert_eq!(client.check(request("a", 0, 10)), (false, 0));
    // Negative hits give back.
    assert_eq!(client.check(request("a", -3, 10)), (false, 3));
    // A changed limit changes the rest by the difference.
    assert_eq!(client.check(request("a", 0, 12)), (false, 5));
    assert_eq!(client.check(request("a", 0, 5)), (false, 0));
    assert_eq!(client.check(request("a", 0, 10)), (false, 3));
    let drain = with(Behavior::DrainOverLimit, request("a", 5, 10));
    assert_eq!(client.check(drain), (true, 0));
    assert_eq!(client.check(request("a", 1, 10)), (true, 0));
    let reset = client.one(with(Behavior::ResetRemaining, request("a", 5, 10)));
    assert_eq!((reset.remaining, reset.reset_time), (10, 0));
    assert_eq!(client.check(request("a", 0, 10)), (false, 10));
    // A reset of a new key takes its hits.
    let reset = with(Behavior::ResetRemaining, request("fresh", 2, 10));
    assert_eq!(client.check(reset), (false, 8));
    // Too large for a new key: nothing is taken, also with DRAIN.
    let drain = with(Behavior::DrainOverLimit, request("new", 11, 10));
    assert_eq!(client.check(drain), (true, 10));
    assert_eq!(client.check(request("zero", 1, 0)), (true, 0));
    // Names and keys do not run together.
    let named = |name: &str, key: &str| RateLimitReq {
        name: name.to_owned(),
        ..request(key, 1, 2)
    };
    assert_eq!(client.check(named("x_y", "z")), (false, 1));
    assert_eq!(client.check(named("x", "y_z")), (false, 1));
}

fn buckets(client: &Client) {
    assert_eq!(client.check(leaky("b", 10, 10)), (false, 0));
    assert_eq!(client.check(leaky("b", 1, 10)), (true, 0));
    let reset = with(Behavior::ResetRemaining, leaky("b", 4, 10));
    assert_eq!(client.check(reset), (false, 6));
    let drain = with(Behavior::DrainOverLimit, leaky("b", 7, 10));
    assert_eq!(client.check(drain), (true, 0));
    // Too large for a new key: it is drained. Not so after a reset.
    assert_eq!(client.check(leaky("b2", 11, 10)), (true, 0));
    let reset = |key: &str| with(Behavior::ResetRemaining, leaky(key, 11, 10));
    assert_eq!(client.check(reset("b2")), (true, 10));
    assert_eq!(client.check(reset("b3")), (true, 0));
    let burst = RateLimitReq {
        burst: 20,
        ..leaky("c", 15, 10)
    };
    assert_eq!(client.check(burst), (false, 5));
}

#[test]
fn limits_in_memory() {
    let clock = ManualClock::new();
    let server = TestServer::start_at(&clock, enabled(""));
    let client = Client(GrpcClient::connect(&server));
    windows(&client);
    buckets(&client);
    // A window opens with the first hit.
    assert_eq!(client.check(request("w", 10, 10)), (false, 0));
    let reset_at = client.one(request("w", 1, 10)).reset_time;
    clock.advance(Duration::from_millis(59_999));
    assert_eq!(client.check(request("w", 1, 10)), (true, 0));
    clock.advance(Duration::from_millis(1));
    assert_eq!(client.check(request("w", 1, 10)), (false, 9));
    let later = client.one(request("w", 0, 10)).reset_time;
    assert_eq!(later - reset_at, 60_000);
    // A bucket refills evenly: one of 10 a minute every 6 s.
    assert_eq!(client.check(leaky("e", 10, 10)), (false, 0));
    clock.advance(Duration::from_secs(6));
    assert_eq!(client.check(leaky("e", 0, 10)), (false, 1));
}

#[test]
fn limits_on_redis() {
    let redis = RedisServer::start();
    let server = TestServer::start(enabled(&on_redis(&redis)));
    let client = Client(GrpcClient::connect(&server));
    windows(&client);
    buckets(&client);
    let many = (0..1_000).map(|number| request(&format!("k{number}"), 1, 5));
    let answers = client.batch(many.collect()).unwrap();
    assert_eq!(answers.len(), 1_000);
    assert!(
        answers
            .iter()
            .all(|answer| answer.remaining == 4 && answer.error.is_empty())
    );
}

#[test]
fn calendar_units_end_with_the_clock() {
    let clock = ManualClock::new();
    let server = TestServer::start_at(&clock, enabled(""));
    let client = Client(GrpcClient::connect(&server));
    let gregorian = |duration: i64| {
        let request = RateLimitReq {
            duration,
            ..request(&format!("g{duration}"), 1, 2)
        };
        with(Behavior::DurationIsGregorian, request)
    };
    for (duration, unit_ms) in [(0, 60_000), (1, 3_600_000), (2, 86_400_000)] {
        let answer = client.one(gregorian(duration));
        assert_eq!(answer.remaining, 1, "{answer:?}");
        assert_eq!(answer.reset_time % unit_ms, 0, "{answer:?}");
    }
    for duration in [4, 5] {
        let answer = client.one(gregorian(duration));
        assert_eq!(answer.remaining, 1, "{answer:?}");
        assert_eq!(answer.reset_time % 86_400_000, 0, "{answer:?}");
        let now = client.one(request("now", 0, 1)).reset_time;
        clock.advance(Duration::from_millis(
            u64::try_from(answer.reset_time - now).unwrap(),
        ));
        assert_eq!(client.one(gregorian(duration)).remaining, 1);
    }
    for duration in [3, 6, -1] {
        assert_ne!(client.one(gregorian(duration)).error, "");
    }
}

#[test]
fn invalid_requests_have_an_error_of_their_own() {
    let server = TestServer::start(enabled(""));
    let client = Client(GrpcClient::connect(&server));
    let good = request("a", 1, 10);
    let invalid = [
        (request("", 1, 10), "field 'unique_key' cannot be empty"),
        (
            RateLimitReq {
                name: String::new(),
                ..good.clone()
            },
            "field 'namespace' cannot be empty",
        ),
        (
            RateLimitReq {
                duration: 0,
                ..good.clone()
            },
            "field 'duration' is invalid",
        ),
        (request("a", 1, i64::MAX), "field 'limit' is too large"),
        (request("a", i64::MAX, 10), "field 'hits' is too large"),
        (request("a", i64::MIN, 10), "field 'hits' is too large"),
        (
            RateLimitReq {
                algorithm: 7,
                ..good.clone()
            },
            "invalid rate limit algorithm '7'",
        ),
    ];
    let mut requests: Vec<RateLimitReq> = invalid.iter().map(|(one, _)| one.clone()).collect();
    requests.push(good.clone());
    let answers = client.batch(requests).unwrap();
    for ((_, expected), answer) in invalid.iter().zip(&answers) {
        assert!(answer.error.contains(expected), "{expected}: {answer:?}");
    }
    assert_eq!(answers.last().unwrap().remaining, 9);
    let refused = client.batch(vec![good; 1_001]).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::OutOfRange);
}

#[test]
fn health_http_and_tokens() {
    let server = TestServer::start(enabled(""));
    let client = GrpcClient::connect(&server);
    let mut gubernator = V1Client::new(client.channel.clone());
    let health = client
        .run(gubernator.health_check(HealthCheckReq {}))
        .unwrap();
    assert_eq!(health.into_inner().status, "healthy");
    client.run(gubernator.live_check(LiveCheckReq {})).unwrap();
    let health = server.client().get("/v1/HealthCheck").unwrap();
    assert_eq!(health.json()["status"], "healthy");
    assert_eq!(
        server.client().get("/v1/LiveCheck").unwrap().json(),
        json!({})
    );
    let body = json!({ "requests": [
        { "name": "n", "uniqueKey": "k", "hits": "1", "limit": "10", "duration": "60000" },
        { "name": "n", "unique_key": "k", "hits": 2, "limit": 10, "duration": 60000,
          "algorithm": "TOKEN_BUCKET", "behavior": "NO_BATCHING" },
    ]});
    let answer = server.post("/v1/GetRateLimits", &body.to_string());
    assert_eq!(answer.status, 200, "{answer:?}");
    let responses = &answer.json()["responses"];
    assert_eq!(responses[0]["status"], "UNDER_LIMIT");
    assert_eq!(responses[0]["remaining"], "9");
    assert_eq!(responses[1]["remaining"], "7");
    assert_eq!(responses[1]["error"], "");
    assert_eq!(responses[1]["metadata"], json!({}));
    assert!(matches!(&responses[1]["reset_time"], Value::String(_)));
    for bad in [
        "",
        "{\"requests\":1}",
        "{\"requests\":[{\"hits\":\"x\"}]}",
        "{\"x\":1}",
    ] {
        assert_eq!(server.post("/v1/GetRateLimits", bad).status, 400, "{bad}");
    }
    // It is off by default.
    let off = TestServer::start(config(""));
    assert_eq!(off.post("/v1/GetRateLimits", &body.to_string()).status, 404);
}

#[test]
fn giving_back_and_resetting_need_their_scopes() {
    let folder = tidegate_testkit::Folder::new();
    let secret = "a-token-of-at-least-sixteen-characters";
    let file = folder.write("token", secret);
    let token = format!("[[token]]\nfile = {file:?}\nscopes = [\"check\"]\n");
    let server = TestServer::start(enabled(&token));
    let body = |hits: i64, behavior: i32| {
        json!({ "requests": [{ "name": "n", "uniqueKey": "k", "hits": hits, "limit": 10, "duration": 60000, "behavior": behavior }] })
            .to_string()
    };
    let post = |token: Option<&str>, body: &str| {
        let mut client = server.client();
        let field = token.map_or_else(String::new, |token| {
            format!("authorization: Bearer {token}\r\n")
        });
        let length = body.len();
        let head = format!(
            "POST /v1/GetRateLimits HTTP/1.1\r\nhost: localhost\r\n{field}content-length: {length}\r\n\r\n{body}"
        );
        client.send(head.as_bytes()).unwrap();
        client.receive().unwrap().status
    };
    let token = Some(secret);
    assert_eq!(post(None, &body(1, 0)), 401);
    assert_eq!(post(token, &body(1, 0)), 200);
    assert_eq!(post(token, &body(-1, 0)), 403);
    assert_eq!(post(token, &body(1, 8)), 403);
}
