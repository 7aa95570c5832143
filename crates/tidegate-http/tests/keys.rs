//! Keys: which requests share a counter.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Head, Plain};
use tidegate_core::{Exception, Gate, PolicyOutcome, PolicySet, Rules};
use tidegate_http::key::{self, RequestKey};
use tidegate_http::{ClientAddress, Limits, RequestError};

type LimitsOf = Limits<Plain>;

fn limits(key: RequestKey<Plain>) -> LimitsOf {
    Limits::memory("2/hour".parse().unwrap(), key)
}

fn head(headers: &[(&'static str, &str)]) -> Head {
    Head {
        headers: headers
            .iter()
            .map(|(name, value)| (*name, value.as_bytes().to_vec()))
            .collect(),
        ..Head::default()
    }
}

fn at(path: &str) -> Head {
    Head {
        path: path.to_owned(),
        ..Head::default()
    }
}

/// Returns `true` if the second request counts against the same limit as the first.
fn share_a_counter(key: fn() -> RequestKey<Plain>, one: &Head, other: &Head) -> bool {
    let limits = limits(key());
    let left = |head| {
        let prepared = limits.prepare(head).unwrap().unwrap();
        prepared
            .check(&limits)
            .into_ready()
            .unwrap()
            .unwrap()
            .0
            .remaining()
            .unwrap()
    };
    left(one);
    left(other) == 0
}

#[test]
fn header_keys_identify_users() {
    let user = || key::header("X-User");
    assert!(share_a_counter(
        user,
        &head(&[("x-user", "42")]),
        &head(&[("x-user", "42")])
    ));
    assert!(!share_a_counter(
        user,
        &head(&[("x-user", "42")]),
        &head(&[("x-user", "43")])
    ));
    // Requests without the header, or with two of it, stay limited.
    assert!(share_a_counter(user, &head(&[]), &head(&[("x-user", "")])));
    assert!(share_a_counter(
        user,
        &head(&[]),
        &head(&[("x-user", "1"), ("x-user", "2")])
    ));
    assert!(!share_a_counter(
        user,
        &head(&[]),
        &head(&[("x-user", "42")])
    ));
    let either = || key::header("x-user").or(key::client_address());
    assert!(!share_a_counter(
        either,
        &head(&[]),
        &head(&[("x-user", "42")])
    ));
    // A user whose name is an address does not share the key of that address.
    assert!(!share_a_counter(
        either,
        &head(&[]),
        &head(&[("x-user", "192.0.2.1")])
    ));
    assert!(!share_a_counter(
        either,
        &head(&[]),
        &head(&[("x-user", "ip:192.0.2.1")])
    ));
}

#[test]
fn api_keys_are_compared_without_the_scheme() {
    let api_key = || key::api_key("Authorization");
    let with = |value| head(&[("authorization", value)]);
    assert!(share_a_counter(
        api_key,
        &with("Bearer sk_live_1"),
        &with("bearer  sk_live_1 ")
    ));
    assert!(share_a_counter(
        api_key,
        &with("Bearer sk_live_1"),
        &with("sk_live_1")
    ));
    // The whole API key counts, not only its beginning.
    assert!(!share_a_counter(
        api_key,
        &with("Bearer sk_live_1"),
        &with("Bearer sk_live_2")
    ));
    assert!(share_a_counter(api_key, &head(&[]), &with("Bearer ")));
}

#[test]
fn path_keys_use_the_decoded_parameter() {
    let user = || key::path("/users/{id}/posts/{post}", "id");
    assert!(share_a_counter(
        user,
        &at("/users/42/posts/1"),
        &at("/users/42/posts/2/comments")
    ));
    assert!(!share_a_counter(
        user,
        &at("/users/42/posts/1"),
        &at("/users/43/posts/1")
    ));
    // Percent-encoded paths have the same key.
    assert!(share_a_counter(
        user,
        &at("/users/42/posts/1"),
        &at("/users/%34%32/posts/1")
    ));
    assert!(share_a_counter(
        user,
        &at("/users/42/posts/1"),
        &at("/user%73/42/posts/1")
    ));
    assert!(share_a_counter(user, &at("/other"), &at("/users/42")));
    assert!(share_a_counter(user, &at("/other"), &at("/users//posts/1")));
    assert!(!share_a_counter(
        user,
        &at("/other"),
        &at("/users/42/posts/1")
    ));
}

#[test]
#[should_panic(expected = "has no parameter `{name}`")]
fn a_path_without_the_parameter_panics_at_startup() {
    let _: RequestKey<Plain> = key::path("/users/{id}", "name");
}

#[test]
fn closure_and_pair_keys_do_not_collide() {
    let method = || key::from_fn(|head: &Head| (head.method == "PUT").then(|| "writes".to_owned()));
    let put = Head {
        method: "PUT",
        ..Head::default()
    };
    assert!(share_a_counter(method, &put, &put));
    assert!(!share_a_counter(method, &put, &Head::default()));
    let pair = || key::header("a").and(key::header("b"));
    assert!(!share_a_counter(
        pair,
        &head(&[("a", "1"), ("b", "23")]),
        &head(&[("a", "12"), ("b", "3")])
    ));
    assert!(!share_a_counter(
        pair,
        &head(&[("a", "1header:"), ("b", "2")]),
        &head(&[("a", "1"), ("b", "header:2")])
    ));
    assert!(share_a_counter(
        pair,
        &head(&[("a", "1"), ("b", "2")]),
        &head(&[("b", "2"), ("a", "1")])
    ));
    assert!(share_a_counter(
        key::global,
        &head(&[("a", "1")]),
        &at("/x")
    ));
}

#[test]
fn skipped_requests_are_not_counted_and_invalid_ones_fail() {
    let limits = limits(key::client_address()).skip(|head| head.path == "/healthz");
    let options = Head {
        method: "OPTIONS",
        ..Head::default()
    };
    let preflight = Head {
        headers: vec![("access-control-request-method", b"GET".to_vec())],
        ..options.clone()
    };
    assert!(
        limits.prepare(&options).unwrap().is_some(),
        "OPTIONS without preflight headers is counted"
    );
    assert!(limits.prepare(&at("/healthz")).unwrap().is_none());
    assert!(limits.prepare(&preflight).unwrap().is_none());
    assert!(
        limits
            .clone()
            .count_preflights()
            .prepare(&preflight)
            .unwrap()
            .is_some()
    );
    let unknown = Head {
        peer: None,
        ..Head::default()
    };
    let error = limits.prepare(&unknown).unwrap_err();
    assert!(
        matches!(error, RequestError::NoPeer)
            && error.status() == 500
            && error.problem().contains("peer")
    );
    let by_length = limits.cost(|head| head.path.len() as i64 - 3);
    let error = by_length.prepare(&at("/")).unwrap_err();
    assert!(
        matches!(error, RequestError::Cost(_))
            && error.status() == 400
            && error.problem().contains("cost")
    );
}

/// Keys of different kinds, sources and values differ, for any content.
#[test]
fn a7_keys_of_different_sources_never_collide() {
    let paths = [
        ("/users/{id}/posts/{post}", "id"),
        ("/users/{id}/posts/{post}", "post"),
        ("/v1/{id}/items:batch", "id"),
        ("/v1/{id}/items", "id"),
        ("/v1/{id}/items%3Abatch", "id"),
        ("/v1/{a:b}", "a:b"),
        ("/v1/{a%3Ab}", "a%3Ab"),
        ("/v1/{id}", "id"),
    ];
    let values = [
        "x",
        "batch:x",
        "id:x",
        "x:y",
        "3:x",
        "global",
        "ip:192.0.2.1",
        "@acme/x",
        "header:h:x",
    ];
    let mut seen = std::collections::HashMap::new();
    let mut add = |source: String, key: String| {
        if let Some(other) = seen.insert(key.clone(), source.clone()) {
            panic!("{source} and {other} are both {key}");
        }
    };
    for value in values {
        for (template, parameter) in paths {
            add(
                format!("{template} {parameter} {value}"),
                key::of_path(template, parameter, value),
            );
        }
        for header in ["h", "x", "ip"] {
            add(
                format!("header {header} {value}"),
                key::of_header(header, value),
            );
            add(
                format!("API key {header} {value}"),
                key::of_api_key(header, value),
            );
        }
    }
}

#[test]
fn tiers_and_tenants_come_from_the_request() {
    let rules = Rules::new("fixed_window 2/hour".parse().unwrap());
    let rules = rules
        .tier("gold", "fixed_window 9/hour".parse().unwrap())
        .unwrap();
    let gate = Gate::memory(PolicySet::new().with("api", rules).unwrap());
    let limits: LimitsOf = Limits::new(gate).limit("api", key::global()).unwrap();
    assert!(limits.clone().limit("other", key::global()).is_err());
    let value = |head: &Head, name: &str| {
        let found = head.headers.iter().find(|(header, _)| *header == name);
        found.map(|(_, value)| String::from_utf8(value.clone()).unwrap())
    };
    let limits = limits.tier(move |head| value(head, "tier").map(Into::into));
    let limits = limits.tenant(move |head| value(head, "tenant").map(Into::into));
    let left = |headers| {
        let head = head(headers);
        let prepared = limits.prepare(&head).unwrap().unwrap();
        prepared
            .check(&limits)
            .into_ready()
            .unwrap()
            .unwrap()
            .0
            .remaining()
            .unwrap()
    };
    assert_eq!(left(&[]), 1);
    assert_eq!(left(&[("tier", "gold")]), 8);
    assert_eq!(left(&[("tenant", "acme"), ("tier", "gold")]), 8);
}

#[test]
fn key_functions_return_the_keys_of_requests() {
    let secret = key::of_api_key("Authorization", "Bearer sk-1");
    let behind = ClientAddress::behind(["10.0.0.0/8"]).unwrap();
    let mapped = key::of_address(&behind, "::ffff:192.0.2.1".parse().unwrap());
    assert_eq!(mapped, "ip:192.0.2.1");
    assert_eq!(
        key::of_address(&behind, "2001:db8:1:2:3::1".parse().unwrap()),
        "ip:2001:db8:1:2::/64"
    );
    let rules = Rules::new("1/hour".parse().unwrap());
    let rules = rules
        .exception(key::of_header("X-User", "mallory"), Exception::Blocked)
        .and_then(|rules| rules.exception(&secret, Exception::Unlimited))
        .and_then(|rules| {
            rules.exception(key::of_path("/users/{id}", "id", "7"), Exception::Blocked)
        })
        .unwrap();
    let gate = Gate::memory(PolicySet::new().with("api", rules).unwrap());
    let outcome_of = |key: RequestKey<Plain>, head: &Head| {
        let limits: LimitsOf = Limits::new(gate.clone()).limit("api", key).unwrap();
        let (verdict, _) = limits
            .prepare(head)
            .unwrap()
            .unwrap()
            .check(&limits)
            .into_ready()
            .unwrap()
            .unwrap();
        verdict.decisions()[0].outcome()
    };
    assert_eq!(
        outcome_of(key::header("x-user"), &head(&[("x-user", "mallory")])),
        PolicyOutcome::Blocked
    );
    assert_eq!(
        outcome_of(
            key::api_key("authorization"),
            &head(&[("authorization", "sk-1")])
        ),
        PolicyOutcome::Unlimited
    );
    assert_eq!(
        outcome_of(key::path("/users/{id}", "id"), &at("/users/7")),
        PolicyOutcome::Blocked
    );
}

#[test]
fn keys_from_two_headers_and_from_closures_never_collide() {
    let either = || key::header("a").or(key::header("b"));
    assert!(!share_a_counter(
        either,
        &head(&[("a", "42")]),
        &head(&[("b", "42")])
    ));
    let named = || {
        key::from_fn(|head: &Head| head.path.strip_prefix('/').map(str::to_owned))
            .or(key::client_address())
    };
    assert!(!share_a_counter(named, &at("/ip:192.0.2.1"), &at("/")));
    assert!(!share_a_counter(
        named,
        &at("/fn:ip:192.0.2.1"),
        &at("/ip:192.0.2.1")
    ));
}

#[test]
#[should_panic(expected = "is not a valid header name")]
fn an_invalid_header_name_panics_at_startup() {
    let _: RequestKey<Plain> = key::header("X User");
}
