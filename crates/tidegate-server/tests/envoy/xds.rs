//! Rules over xDS: the same cases, rejections, lost connections and mutual TLS.

use prost_types::Any;
use serde_json::Value;
use tidegate_server::config::{ConfigDuration, Listen, XdsConfig, XdsTlsConfig};
use tidegate_server::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate_server::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tidegate_server::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tidegate_server::proto::ratelimit::config::ratelimit::v3::RateLimitConfig;
use tidegate_server::{Config, xds_from_yaml};
use tidegate_testkit::redis::{TlsFiles, wait_for};
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use crate::ads::{AdsServer, TYPE, resource};
use crate::cases::{cases, run_cases};
use crate::common::{GrpcClient, TIMEOUT, TestServer, config};

/// Returns a configuration whose rules come from this management server.
fn with_xds(ads: &AdsServer) -> Config {
    let mut config = config("");
    config.grpc.listen = Listen::local(0);
    let short = ConfigDuration(std::time::Duration::from_millis(20));
    config.envoy.xds = Some(XdsConfig {
        server: ads.address.to_string(),
        node_id: "rl".to_owned(),
        node_metadata: [("a".to_owned(), "b".to_owned())].into(),
        retry_delay: short,
        max_retry_delay: short,
        ..XdsConfig::default()
    });
    config
}

fn rules(yaml: &str) -> RateLimitConfig {
    xds_from_yaml("test", yaml).unwrap()
}

fn per_day(domain: &str, limit: u32) -> RateLimitConfig {
    rules(&format!(
        "domain: {domain}\ndescriptors: [{{key: k, rate_limit: {{unit: day, requests_per_unit: {limit}}}}}]\n"
    ))
}

fn request(domain: &str) -> RateLimitRequest {
    let entry = Entry {
        key: "k".to_owned(),
        value: "v".to_owned(),
    };
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: vec![RateLimitDescriptor {
            entries: vec![entry],
            ..RateLimitDescriptor::default()
        }],
        hits_addend: 0,
    }
}

/// Returns the limit that applies to a request.
fn limit_of(client: &mut GrpcClient, domain: &str) -> Option<u32> {
    let answer = client.should_rate_limit(request(domain)).unwrap();
    let limit = answer.statuses[0].current_limit.as_ref()?;
    Some(limit.requests_per_unit)
}

/// Returns a case as resources, if xDS can express it.
fn resources(case: &Value) -> Option<Vec<RateLimitConfig>> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    match case["files"].as_array() {
        None => Some(vec![xds_from_yaml(
            &text(&case["id"]),
            &text(&case["yaml"]),
        )?]),
        Some(files) => files
            .iter()
            .map(|file| xds_from_yaml(&text(&file["name"]), &text(&file["yaml"])))
            .collect(),
    }
}

#[test]
fn the_cases_over_xds() {
    for (mode, is_all_or_nothing) in [("all_or_nothing", true), ("independent", false)] {
        let ads = AdsServer::start();
        let mut config = with_xds(&ads);
        config.envoy.merge_domains = true;
        config.envoy.descriptors = serde_json::from_value(mode.into()).unwrap();
        let server = TestServer::start_unready(config);
        let (cases, configs): (Vec<Value>, Vec<_>) = cases(&["lookup", "count"])
            .into_iter()
            .filter_map(|case| Some((case.clone(), resources(&case)?)))
            .unzip();
        assert!(cases.len() >= 50, "{}", cases.len());
        ads.send_good("1", &configs.concat());
        run_cases(&server, &cases, is_all_or_nothing);
    }
}

#[test]
fn a_server_without_rules_is_not_ready() {
    let ads = AdsServer::start();
    let server = TestServer::start_unready(with_xds(&ads));
    assert_eq!(server.client().get("/readyz").unwrap().status, 503);
    assert_eq!(server.client().get("/healthcheck").unwrap().status, 500);
    let mut client = GrpcClient::connect(&server);
    let refused = client.should_rate_limit(request("d")).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    ads.send_good("1", &[per_day("d", 5)]);
    assert_eq!(server.client().get("/readyz").unwrap().status, 200);
    assert_eq!(server.client().get("/healthcheck").unwrap().status, 200);
    assert_eq!(limit_of(&mut client, "d"), Some(5));
    // The node introduces itself.
    let first = ads.requests().remove(0);
    let node = first.node.unwrap();
    assert_eq!((node.id.as_str(), first.type_url.as_str()), ("rl", TYPE));
    assert!(node.metadata.unwrap().fields.contains_key("a"));
    assert_eq!(first.version_info, "");
}

#[test]
fn a_bad_configuration_is_rejected_and_the_old_one_stays() {
    let ads = AdsServer::start();
    let server = TestServer::start_unready(with_xds(&ads));
    ads.send_good("good", &[per_day("d", 5)]);
    let mut client = GrpcClient::connect(&server);
    let no_unit = rules("domain: d\ndescriptors: [{key: k, rate_limit: {requests_per_unit: 1}}]\n");
    let deep = (0..200).fold(Vec::new(), |below, _| {
        let mut config = per_day("d", 1);
        config.descriptors[0].descriptors = below;
        config.descriptors
    });
    let deep = RateLimitConfig {
        descriptors: deep,
        ..per_day("d", 1)
    };
    let any = |type_url: &str, value: &[u8]| Any {
        type_url: type_url.to_owned(),
        value: value.to_vec(),
    };
    for (version, resources, expected) in [
        (
            "unit",
            vec![resource(&no_unit)],
            "invalid rate limit unit 'UNKNOWN'",
        ),
        (
            "twice",
            vec![resource(&per_day("e", 1)), resource(&per_day("e", 1))],
            "duplicate domain 'e'",
        ),
        (
            "domain",
            vec![resource(&per_day("\"\"", 1))],
            "empty domain",
        ),
        ("garbage", vec![any(TYPE, b"\xff\xff\xff")], "invalid"),
        (
            "type",
            vec![any("type.googleapis.com/x.Y", b"")],
            "unknown resource type",
        ),
        ("deep", vec![resource(&deep)], ""),
    ] {
        ads.send(version, resources);
        let answer = ads.answer_to(version);
        let error = answer.error_detail.unwrap().message;
        assert!(error.contains(expected), "{version}: {error}");
        assert_eq!(answer.version_info, "good", "{version}");
        assert_eq!(limit_of(&mut client, "d"), Some(5), "{version}");
        assert_eq!(server.metric("tidegate_config_last_reload_successful"), 0);
    }
    // Nor does another type of resource remove the rules.
    ads.send_as("other", "type.googleapis.com/x.Y", Vec::new());
    assert!(ads.answer_to("other").error_detail.is_some());
    assert_eq!(limit_of(&mut client, "d"), Some(5));
    ads.send_good("better", &[per_day("d", 7)]);
    assert_eq!(limit_of(&mut client, "d"), Some(7));
    assert_eq!(server.metric("tidegate_config_last_reload_successful"), 1);
    // No resources: no limits.
    ads.send_good("none", &[]);
    assert_eq!(limit_of(&mut client, "d"), None);
}

#[test]
fn the_last_rules_stay_while_the_management_server_is_gone() {
    let ads = AdsServer::start();
    let server = TestServer::start_unready(with_xds(&ads));
    ads.send_good("1", &[per_day("d", 1)]);
    let mut client = GrpcClient::connect(&server);
    assert_eq!(limit_of(&mut client, "d"), Some(1));
    let address = ads.address;
    drop(ads);
    for _ in 0..3 {
        let answer = client.should_rate_limit(request("d")).unwrap();
        assert_eq!(answer.overall_code().as_str_name(), "OVER_LIMIT");
    }
    let ads = AdsServer::start_at(address, None);
    ads.send_good("2", &[per_day("d", 9)]);
    assert_eq!(limit_of(&mut client, "d"), Some(9));
    // The first request after a reconnect names the version in use.
    assert_eq!(ads.requests()[0].version_info, "1");
}

#[test]
fn the_management_server_is_reached_with_mutual_tls() {
    let files = TlsFiles::make();
    let read = |name: &str| std::fs::read(files.path(name)).unwrap();
    let identity = Identity::from_pem(read("redis.crt"), read("redis.key"));
    let tls = ServerTlsConfig::new()
        .identity(identity)
        .client_ca_root(Certificate::from_pem(read("ca.crt")));
    let ads = AdsServer::start_at("127.0.0.1:0".parse().unwrap(), Some(tls));
    let start = |tls: XdsTlsConfig| {
        let mut config = with_xds(&ads);
        config.envoy.xds.as_mut().unwrap().tls = Some(tls);
        TestServer::start_unready(config)
    };
    let full = XdsTlsConfig {
        ca: Some(files.path("ca.crt").into()),
        cert: Some(files.path("redis.crt").into()),
        key: Some(files.path("redis.key").into()),
        server_name: None,
    };
    let without_certificate = start(XdsTlsConfig {
        cert: None,
        key: None,
        ..full.clone()
    });
    let with_other_name = start(XdsTlsConfig {
        server_name: Some("other.example".to_owned()),
        ..full.clone()
    });
    let server = start(full);
    ads.send_good("1", &[per_day("d", 3)]);
    let mut client = GrpcClient::connect(&server);
    assert!(wait_for(TIMEOUT, || server
        .client()
        .get("/readyz")
        .unwrap()
        .status
        == 200));
    assert_eq!(limit_of(&mut client, "d"), Some(3));
    for other in [without_certificate, with_other_name] {
        assert_eq!(other.client().get("/readyz").unwrap().status, 503);
    }
}
