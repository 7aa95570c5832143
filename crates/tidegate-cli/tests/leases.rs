//! Quota leases of a server: settings, what clients and operators see, and a clean shutdown.
// Test helpers panic when they fail.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod common;

use common::{ServerProcess, TIMEOUT, failure, success};
use tidegate_testkit::Folder;
use tidegate_testkit::redis::{RedisServer, wait_for};

const CHECK: &str = r#"{"policy": "api", "key": "k"}"#;

fn config(redis: &RedisServer, policy: &str) -> String {
    let port = redis.port();
    format!(
        "store.url = \"redis://127.0.0.1:{port}/?lease=60s&timeout=5s\"\n[policies.api]\n{policy}\n"
    )
}

fn remaining(redis: &RedisServer) -> u64 {
    let store = format!("redis://127.0.0.1:{}/", redis.port());
    let folder = Folder::new();
    let text = format!(
        "store.url = \"{store}\"\n[policies.api]\nlimits = \"fixed_window 2000/300 days\"\n"
    );
    let path = folder.write("plain.toml", &text);
    let server = ServerProcess::start(&["--config", &path]);
    let look = r#"{"policy": "api", "key": "k", "cost": 0}"#;
    let peek = server.post("/v1/peek", look).json();
    assert!(peek["leased"].is_null(), "{peek}");
    peek["remaining"].as_u64().unwrap()
}

#[test]
fn a_server_admits_from_leased_quota_and_gives_it_back_when_it_ends() {
    let (redis, folder) = (RedisServer::start(), Folder::new());
    let text = config(&redis, "limits = \"fixed_window 2000/300 days\"");
    let path = folder.write("serve.toml", &text);
    let mut server = ServerProcess::start(&["--config", &path]);
    let mut client = server.client();
    let mut sent = 0;
    let mut check = || {
        sent += 1;
        let answer = client.post("/v1/check", CHECK).unwrap();
        assert_eq!(answer.status, 200);
        answer.json()
    };
    let holds_quota = || {
        let answer = check();
        answer["leased"] == true && server.metric("tidegate_leased_units") > 0
    };
    assert!(wait_for(TIMEOUT, holds_quota));
    assert_eq!(server.metric("tidegate_leased_keys"), 1);
    let held = server.metric("tidegate_leased_units");
    assert!(server.metric("tidegate_lease_granted_units_total") >= held);
    assert!(held <= 200, "more than the share is held: {held}");
    assert_eq!(remaining(&redis), 2_000 - sent - held);
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    assert_eq!(remaining(&redis), 2_000 - sent);
}

#[test]
fn a_policy_that_cannot_be_leased_is_an_error_unless_it_is_exempt() {
    let (redis, folder) = (RedisServer::start(), Folder::new());
    let limits = "limits = \"sliding_window_log 5/hour\"";
    let bad = folder.write("bad.toml", &config(&redis, limits));
    let error = failure(&["config", "check", &bad]);
    for part in [
        "policy `api`",
        "sliding_window_log 5/hour",
        "cannot be leased",
        "lease = false",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let exempt = config(&redis, &format!("{limits}\nlease = false"));
    let good = folder.write("good.toml", &exempt);
    success(&["config", "check", &good]);
    let server = ServerProcess::start(&["--config", &good]);
    let answer = server.post("/v1/check", CHECK).json();
    assert_eq!(
        (&answer["allowed"], &answer["leased"]),
        (&true.into(), &serde_json::Value::Null)
    );
}
