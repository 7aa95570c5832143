//! Rules in the format of envoyproxy/ratelimit: reloads under load, and its environment variables.
// Test helpers panic when they fail.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{ServerProcess, TIMEOUT};
use tidegate_testkit::Folder;
use tidegate_testkit::redis::wait_for;

/// Rules whose two limits are the same number, in two files.
fn rules(limit: u64) -> [(&'static str, String); 2] {
    ["one", "two"].map(|domain| {
        let text = format!(
            "domain: {domain}\ndescriptors:\n- key: a\n  rate_limit: {{unit: year, requests_per_unit: {limit}}}\n- key: b\n  rate_limit: {{unit: year, requests_per_unit: {limit}}}\n"
        );
        (domain, text)
    })
}

fn write(folder: &Path, limit: u64) {
    std::fs::create_dir_all(folder).unwrap();
    for (domain, text) in rules(limit) {
        std::fs::write(folder.join(format!("{domain}.yaml")), text).unwrap();
    }
}

/// Points a link at another directory, at once.
fn swap(link: &Path, target: &str) {
    let new = link.with_file_name("..next");
    std::os::unix::fs::symlink(target, &new).unwrap();
    std::fs::rename(&new, link).unwrap();
}

const BOTH: &str = r#"{"domain":"one","descriptors":[{"entries":[{"key":"a","value":"x"}]},{"entries":[{"key":"b","value":"x"}]}]}"#;

/// Returns the limit that decided. Panics on a failed request, and on a mix of two configurations.
fn limit(client: &mut tidegate_testkit::http::HttpClient) -> u64 {
    let answer = client.post("/json", BOTH).unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    let json = answer.json();
    let of = |place: usize| {
        json["statuses"][place]["currentLimit"]["requestsPerUnit"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(of(0), of(1), "{json}");
    of(0)
}

/// Changes rules under load, in each round to the next limit.
fn reload_under_load(server: &ServerProcess, change: &dyn Fn(u64)) {
    let (is_over, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut client = server.client();
                while !is_over.load(Ordering::Relaxed) {
                    limit(&mut client);
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for next in 100_001..=100_003 {
            change(next);
            let changed = wait_for(TIMEOUT, || limit(&mut server.client()) == next);
            is_over.store(!changed, Ordering::Relaxed);
            assert!(changed, "{next}: {}", server.log());
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(sent.load(Ordering::Relaxed) > 100);
}

#[test]
fn files_written_in_place() {
    let folder = Folder::new();
    let rules = folder.path().join("rules");
    write(&rules, 100_000);
    let server = ServerProcess::start(&["--envoy-config", rules.to_str().unwrap()]);
    reload_under_load(&server, &|limit| write(&rules, limit));
    // A bad file changes nothing and is reported with its line.
    std::fs::write(
        rules.join("one.yaml"),
        "domain: one\ndescriptors:\n- kay: a\n",
    )
    .unwrap();
    let is_reported = || {
        let log = server.log();
        log.contains("unknown key 'kay'") && log.contains("line 3, column 3")
    };
    assert!(wait_for(TIMEOUT, is_reported), "{}", server.log());
    assert_eq!(limit(&mut server.client()), 100_003);
    // So does an empty directory: files that are being replaced look the same.
    for domain in ["one", "two"] {
        std::fs::remove_file(rules.join(format!("{domain}.yaml"))).unwrap();
    }
    let is_reported = || server.log().contains("all rules would be removed");
    assert!(wait_for(TIMEOUT, is_reported), "{}", server.log());
    assert_eq!(limit(&mut server.client()), 100_003);
}

#[test]
fn a_directory_behind_a_link() {
    // As envoyproxy/ratelimit deploys it: RUNTIME_ROOT is a link.
    let folder = Folder::new();
    let link = folder.path().join("current");
    let place = |limit: u64| folder.path().join(format!("v{limit}"));
    write(&place(100_000).join("ratelimit/config"), 100_000);
    swap(&link, "v100000");
    let path = link.join("ratelimit/config");
    let server = ServerProcess::start(&["--envoy-config", path.to_str().unwrap()]);
    reload_under_load(&server, &|limit| {
        write(&place(limit).join("ratelimit/config"), limit);
        swap(&link, &format!("v{limit}"));
    });
}

#[test]
fn a_mounted_config_map() {
    // As Kubernetes does it: the files are links into ..data, a link that is swapped.
    let folder = Folder::new();
    let mount = folder.path();
    write(&mount.join("..v100000"), 100_000);
    swap(&mount.join("..data"), "..v100000");
    for domain in ["one", "two"] {
        let target = format!("..data/{domain}.yaml");
        std::os::unix::fs::symlink(target, mount.join(format!("{domain}.yaml"))).unwrap();
    }
    let server = ServerProcess::start(&["--envoy-config", mount.to_str().unwrap()]);
    reload_under_load(&server, &|limit| {
        write(&mount.join(format!("..v{limit}")), limit);
        swap(&mount.join("..data"), &format!("..v{limit}"));
    });
}

#[test]
fn the_environment_of_ratelimit_is_enough() {
    let folder = Folder::new();
    write(&folder.path().join("ratelimit/config"), 5);
    let mut command = common::tidegate();
    command
        .arg("serve")
        .env("RUNTIME_ROOT", folder.path())
        .env("RUNTIME_SUBDIRECTORY", "ratelimit")
        .env("GRPC_HOST", "127.0.0.1")
        .env("GRPC_PORT", "0")
        .env("USE_STATSD", "true")
        .env("USE_PROMETHEUS", "true")
        .env("PROMETHEUS_ADDR", "127.0.0.1:0")
        .env("LIMIT_RESPONSE_HEADERS_ENABLED", "true")
        .env("LOG_LEVEL", "warning");
    let server = ServerProcess::start_command(&mut command, &[]);
    for _ in 0..7 {
        server.post("/json", BOTH);
    }
    let metrics = |name: &str| {
        let labels = format!("{name}{{domain=\"one\",key1=\"a\"}}");
        server.metric(&format!("ratelimit_service_rate_limit_{labels}"))
    };
    assert_eq!(metrics("total_hits"), 7);
    assert_eq!(metrics("over_limit"), 2);
    assert_eq!(metrics("near_limit"), 1);
    assert_eq!(metrics("within_limit"), 5);
    assert_eq!(server.metric("ratelimit_service_config_load_error"), 0);
}
