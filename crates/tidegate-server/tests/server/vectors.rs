//! The decisions of the test vectors through each protocol, on memory and on Redis.

use std::collections::HashMap;

use crate::common::{TestServer, command, config, on_redis};
use tidegate::store::Record;
use tidegate::{Cost, ManualClock, Policy, Timestamp};
use tidegate_server::Config;
use tidegate_testkit::http::HttpClient;
use tidegate_testkit::redis::RedisServer;
use tidegate_testkit::vectors::{self, Case, Step};
use tidegate_testkit::{Act, Answer};

fn on(url: &str) -> Config {
    config(&format!("store.url = \"{url}\"\n"))
}

fn set(clock: &ManualClock, step: &Step) {
    clock.set(Timestamp::from_micros(step.at_us).unwrap());
}

/// Runs every case through HTTP, with the limits written as in the case. Each case has its own
/// tenant.
fn through_http(config: Config) {
    let clock = ManualClock::new();
    let server = TestServer::start_at(&clock, config);
    let mut client = server.client();
    for (number, case) in vectors::all().iter().enumerate() {
        let mut receipts = HashMap::new();
        for step in &case.steps {
            set(&clock, step);
            let answer = send_http(&mut client, &mut receipts, case, number, step);
            assert_eq!(answer, step.expected(), "{} {}", case.place, case.policy);
        }
    }
}

fn send_http(
    client: &mut HttpClient,
    receipts: &mut HashMap<u32, String>,
    case: &Case,
    number: usize,
    step: &Step,
) -> Answer {
    let limits = serde_json::Value::from(case.policy.as_str());
    let key = serde_json::Value::from(step.key.as_str());
    let fields =
        |cost| format!(r#""limits": {limits}, "key": {key}, "tenant": "{number}", "cost": {cost}"#);
    let (path, body) = match step.act() {
        Act::Check(cost) => ("/v1/check", format!("{{{}}}", fields(cost))),
        Act::Refund(cost) => ("/v1/refund", format!("{{{}}}", fields(cost))),
        Act::Charge(cost) => ("/v1/charge", format!("{{{}}}", fields(cost))),
        Act::Admit(cost, _) => (
            "/v1/check",
            format!("{{{}, \"receipt\": true}}", fields(cost)),
        ),
        Act::Settle(name, cost) => (
            "/v1/settle",
            format!(
                r#"{{"receipt": "{}", "cost": {cost}}}"#,
                receipts.get(&name).unwrap()
            ),
        ),
    };
    let mut response = client.post(path, &body).unwrap();
    if let (Act::Settle(..), 409) = (step.act(), response.status) {
        // All usage has expired, and the receipt with it. A check of cost zero returns the same
        // state.
        response = client
            .post("/v1/check", &format!("{{{}}}", fields(Cost::ZERO)))
            .unwrap();
    }
    assert_eq!(response.status, 200, "{} {body}", response.body);
    let json = response.json();
    if let (Act::Admit(_, name), Some(receipt)) = (step.act(), json["receipt"].as_str()) {
        receipts.insert(name, receipt.to_owned());
    }
    let number = |name: &str| {
        json[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name} of {json}"))
    };
    Answer {
        allowed: json["allowed"].as_bool().unwrap(),
        limit: number("limit"),
        remaining: number("remaining"),
        retry_after: json["retry_after_us"].as_u64(),
        reset_after: number("reset_after_us"),
        delay: number("delay_us"),
    }
}

#[test]
fn http_on_memory_matches_the_vectors() {
    through_http(on("memory://"));
}

#[test]
fn http_on_redis_matches_the_vectors() {
    let redis = RedisServer::start();
    through_http(config(&on_redis(&redis)));
}

/// Runs the cases that Redis commands can express: one bucket, whole numbers and whole seconds.
/// Returns the number of cases.
fn through_resp(config: Config) -> usize {
    let clock = ManualClock::new();
    let server = TestServer::start_at(&clock, config);
    let mut client = server.resp();
    let mut count = 0;
    for (number, case) in vectors::all().iter().enumerate() {
        let policy: Policy = case.policy.parse().unwrap();
        let [limit] = policy.limits() else { continue };
        let whole = |step: &Step| matches!(step.act(), Act::Check(cost) if cost.thousandths().is_multiple_of(1_000));
        let is_bucket = matches!(limit.algorithm().name(), "token_bucket" | "gcra");
        if !is_bucket || limit.period().subsec_nanos() > 0 || !case.steps.iter().all(whole) {
            continue;
        }
        count += 1;
        let [burst, rate, period] = [limit.capacity(), limit.limit(), limit.period().as_secs()];
        for step in &case.steps {
            set(&clock, step);
            let Act::Check(cost) = step.act() else {
                continue;
            };
            let quantity = (cost.thousandths() / 1_000).to_string();
            let key = format!("{number}:{}", step.key);
            let [rate, period] = [rate.to_string(), period.to_string()];
            // All three commands use the same bucket. The first two have a quantity of zero, and
            // the third consumes.
            let (cell, crab) = ((burst - 1).to_string(), burst.to_string());
            let expected = step.expected();
            let seconds = |us: u64| i64::try_from(us.div_ceil(1_000_000)).unwrap();
            client.send(&command(&[
                "GCRA", &key, &cell, &rate, &period, "TOKENS", "0",
            ]));
            client.send(&command(&["throttle", &key, &crab, &rate, &period, "0"]));
            client.send(&command(&[
                "CL.THROTTLE",
                &key,
                &cell,
                &rate,
                &period,
                &quantity,
            ]));
            let [gcra, crab, cell] = [client.five(), client.five(), client.five()];
            let retry = match expected.retry_after {
                Some(us) if !expected.allowed => seconds(us),
                _ => -1,
            };
            let [limit, remaining] =
                [expected.limit, expected.remaining].map(|n| i64::try_from(n).unwrap());
            let denied = i64::from(!expected.allowed);
            assert_eq!(
                cell,
                [
                    denied,
                    limit,
                    remaining,
                    retry,
                    seconds(expected.reset_after)
                ],
                "{} {key}",
                case.place
            );
            assert_eq!(
                (gcra[0], gcra[1], gcra[3]),
                (0, limit, -1),
                "{}",
                case.place
            );
            assert_eq!((crab[0], crab[1], crab[4]), (1, limit, 0), "{}", case.place);
            assert_eq!((gcra[2], gcra[4]), (crab[2], crab[3]), "{}", case.place);
        }
    }
    count
}

#[test]
fn resp_on_memory_matches_the_vectors() {
    let config = on("memory://");
    assert!(through_resp(config.clone()) >= 4);
    walk_through_resp(config, 5_000);
}

#[test]
fn resp_on_redis_matches_the_vectors() {
    let redis = RedisServer::start();
    let config = config(&on_redis(&redis));
    through_resp(config.clone());
    walk_through_resp(config, 1_000);
}

/// Sends random requests and compares each reply with the decision of the pure step. Few vectors
/// have whole numbers only.
fn walk_through_resp(config: Config, steps: usize) {
    let clock = ManualClock::at(Timestamp::from_micros(1_750_000_000_000_000).unwrap());
    let server = TestServer::start_at(&clock, config);
    let mut client = server.resp();
    let mut random = fastrand::Rng::with_seed(11);
    let mut keys: Vec<([u64; 3], Record)> = (0..20)
        .map(|_| {
            (
                [random.u64(1..30), random.u64(1..500), random.u64(1..100)],
                Record::default(),
            )
        })
        .collect();
    for step in 0..steps {
        clock.advance(std::time::Duration::from_micros(random.u64(0..2_000_000)));
        let number = random.usize(0..keys.len());
        let ([burst, rate, period], record) = &mut keys[number];
        let quantity = random.u64(0..5);
        let policy: Policy = format!("gcra {rate}/{period}s burst={burst}")
            .parse()
            .unwrap();
        let decision = policy.decide(record, clock.now(), Cost::try_from(quantity).unwrap());
        let seconds = |duration: std::time::Duration| {
            i64::try_from(duration.as_nanos().div_ceil(1_000_000_000)).unwrap()
        };
        let expected = [
            i64::from(decision.is_denied()),
            i64::try_from(decision.limit()).unwrap(),
            i64::try_from(decision.remaining()).unwrap(),
            decision.retry_after().map_or(-1, seconds),
            seconds(decision.reset_after()),
        ];
        let words = [
            (*burst - 1).to_string(),
            rate.to_string(),
            period.to_string(),
            quantity.to_string(),
        ];
        let [burst, rate, period, quantity] = words.each_ref().map(String::as_str);
        client.send(&command(&[
            "CL.THROTTLE",
            &format!("key:{number}"),
            burst,
            rate,
            period,
            quantity,
        ]));
        assert_eq!(client.five(), expected, "step {step}: {policy} {quantity}");
    }
}

/// The cases of redis-cell's own tests, with burst 4 and 1 per second. Each has the time in tenths
/// of a second, the quantity and the five integers of the reply.
const CELL: [(u64, u64, [i64; 5]); 15] = [
    (0, 6, [1, 5, 5, -1, 0]),
    (0, 1, [0, 5, 4, -1, 1]),
    (0, 1, [0, 5, 3, -1, 2]),
    (0, 1, [0, 5, 2, -1, 3]),
    (0, 1, [0, 5, 1, -1, 4]),
    (0, 1, [0, 5, 0, -1, 5]),
    (0, 1, [1, 5, 0, 1, 5]),
    (30, 1, [0, 5, 2, -1, 3]),
    (31, 1, [0, 5, 1, -1, 4]),
    (40, 1, [0, 5, 1, -1, 4]),
    (80, 1, [0, 5, 4, -1, 1]),
    (95, 1, [0, 5, 4, -1, 1]),
    (95, 0, [0, 5, 4, -1, 1]),
    (95, 2, [0, 5, 2, -1, 3]),
    (95, 5, [1, 5, 2, 3, 3]),
];

#[test]
fn replies_match_those_of_redis_cell() {
    let redis = RedisServer::start();
    for config in [on("memory://"), config(&on_redis(&redis))] {
        let clock = ManualClock::new();
        let server = TestServer::start_at(&clock, config);
        let mut client = server.resp();
        for (tenths, quantity, five) in CELL {
            clock.set(Timestamp::from_micros(1_700_000_000_000_000 + tenths * 100_000).unwrap());
            let [a, b, c, d, e] = five;
            client.expect(
                format!("CL.THROTTLE user123 4 1 1 {quantity}\r\n").as_bytes(),
                &format!("*5\r\n:{a}\r\n:{b}\r\n:{c}\r\n:{d}\r\n:{e}\r\n"),
            );
        }
        client.expect(
            &command(&["cl.throttle", "other", "15", "30", "60"]),
            "*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n",
        );
        // A different rate, even with a different period, uses the same bucket. It is full again in
        // 2 s, so at 2 per second 4 tokens are missing.
        client.expect(
            &command(&["CL.THROTTLE", "other", "15", "20", "10", "0"]),
            "*5\r\n:0\r\n:16\r\n:12\r\n:-1\r\n:2\r\n",
        );
        client.expect(&command(&["DEL", "other"]), ":1\r\n");
        client.expect(
            &command(&["CL.THROTTLE", "other", "15", "30", "60", "0"]),
            "*5\r\n:0\r\n:16\r\n:16\r\n:-1\r\n:0\r\n",
        );
    }
}
