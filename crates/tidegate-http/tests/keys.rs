//! Which key a request has.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Head, Plain};
use tidegate_core::{Book, Gate, Rules};
use tidegate_http::key::{self, Key};
use tidegate_http::{Limits, RequestError};

type LimitsOf = Limits<Plain>;

fn limits(key: Key<Plain>) -> LimitsOf {
    Limits::memory("2/hour".parse().unwrap(), key)
}

fn head(headers: &[(&'static str, &str)]) -> Head {
    Head {
        headers: headers.iter().map(|(name, value)| (*name, value.as_bytes().to_vec())).collect(),
        ..Head::default()
    }
}

fn at(path: &str) -> Head {
    Head { path: path.to_owned(), ..Head::default() }
}

/// Whether requests of the second kind are held to what those of the first have used.
fn is_same(key: fn() -> Key<Plain>, one: &Head, other: &Head) -> bool {
    let limits = limits(key());
    let left = |head| {
        let prepared = limits.prepare(head).unwrap().unwrap();
        prepared.ask_at_once(&limits).unwrap().unwrap().0.remaining().unwrap()
    };
    left(one);
    left(other) == 0
}

#[test]
fn headers() {
    let user = || key::header("X-User");
    assert!(is_same(user, &head(&[("x-user", "42")]), &head(&[("x-user", "42")])));
    assert!(!is_same(user, &head(&[("x-user", "42")]), &head(&[("x-user", "43")])));
    // Without it, or with two of it, nobody gets past the limit.
    assert!(is_same(user, &head(&[]), &head(&[("x-user", "")])));
    assert!(is_same(user, &head(&[]), &head(&[("x-user", "1"), ("x-user", "2")])));
    assert!(!is_same(user, &head(&[]), &head(&[("x-user", "42")])));
    let either = || key::header("x-user").or(key::client_address());
    assert!(!is_same(either, &head(&[]), &head(&[("x-user", "42")])));
    // A user by the name of an address is not the address.
    assert!(!is_same(either, &head(&[]), &head(&[("x-user", "192.0.2.1")])));
    assert!(!is_same(either, &head(&[]), &head(&[("x-user", "ip:192.0.2.1")])));
}

#[test]
fn api_keys() {
    let api_key = || key::api_key("Authorization");
    let with = |value| head(&[("authorization", value)]);
    assert!(is_same(api_key, &with("Bearer sk_live_1"), &with("bearer  sk_live_1 ")));
    assert!(is_same(api_key, &with("Bearer sk_live_1"), &with("sk_live_1")));
    // All of it counts, not its beginning.
    assert!(!is_same(api_key, &with("Bearer sk_live_1"), &with("Bearer sk_live_2")));
    assert!(is_same(api_key, &head(&[]), &with("Bearer ")));
}

#[test]
fn paths() {
    let user = || key::path("/users/{id}/posts/{post}", "id");
    assert!(is_same(user, &at("/users/42/posts/1"), &at("/users/42/posts/2/comments")));
    assert!(!is_same(user, &at("/users/42/posts/1"), &at("/users/43/posts/1")));
    // However it is written.
    assert!(is_same(user, &at("/users/42/posts/1"), &at("/users/%34%32/posts/1")));
    assert!(is_same(user, &at("/users/42/posts/1"), &at("/user%73/42/posts/1")));
    assert!(is_same(user, &at("/other"), &at("/users/42")));
    assert!(is_same(user, &at("/other"), &at("/users//posts/1")));
    assert!(!is_same(user, &at("/other"), &at("/users/42/posts/1")));
}

#[test]
#[should_panic(expected = "has no parameter `{name}`")]
fn a_path_without_the_parameter_is_found_at_the_start() {
    let _: Key<Plain> = key::path("/users/{id}", "name");
}

#[test]
fn closures_and_pairs() {
    let method = || key::from_fn(|head: &Head| (head.method == "PUT").then(|| "writes".to_owned()));
    let put = Head { method: "PUT", ..Head::default() };
    assert!(is_same(method, &put, &put));
    assert!(!is_same(method, &put, &Head::default()));
    let pair = || key::header("a").and(key::header("b"));
    assert!(!is_same(pair, &head(&[("a", "1"), ("b", "23")]), &head(&[("a", "12"), ("b", "3")])));
    assert!(!is_same(pair, &head(&[("a", "1header:"), ("b", "2")]), &head(&[("a", "1"), ("b", "header:2")])));
    assert!(is_same(pair, &head(&[("a", "1"), ("b", "2")]), &head(&[("b", "2"), ("a", "1")])));
    assert!(is_same(key::everybody, &head(&[("a", "1")]), &at("/x")));
}

#[test]
fn what_is_not_counted_and_what_cannot_be() {
    let limits = limits(key::client_address()).skip(|head| head.path == "/healthz");
    let preflight = Head { method: "OPTIONS", ..Head::default() };
    assert!(limits.prepare(&at("/healthz")).unwrap().is_none());
    assert!(limits.prepare(&preflight).unwrap().is_none());
    assert!(limits.clone().count_preflights().prepare(&preflight).unwrap().is_some());
    let unknown = Head { peer: None, ..Head::default() };
    let error = limits.prepare(&unknown).unwrap_err();
    assert!(matches!(error, RequestError::NoPeer) && error.status() == 500 && error.problem().contains("peer"));
    let by_length = limits.cost(|head| head.path.len() as i64 - 3);
    let error = by_length.prepare(&at("/")).unwrap_err();
    assert!(matches!(error, RequestError::Cost(_)) && error.status() == 400 && error.problem().contains("cost"));
}

#[test]
fn tiers_and_tenants_come_from_the_request() {
    let rules = Rules::new("fixed_window 2/hour".parse().unwrap());
    let rules = rules.tier("gold", "fixed_window 9/hour".parse().unwrap()).unwrap();
    let gate = Gate::memory(Book::new().with("api", rules).unwrap());
    let limits: LimitsOf = Limits::new(gate).limit("api", key::everybody()).unwrap();
    assert!(limits.clone().limit("other", key::everybody()).is_err());
    let value = |head: &Head, name: &str| {
        let found = head.headers.iter().find(|(header, _)| *header == name);
        found.map(|(_, value)| String::from_utf8(value.clone()).unwrap())
    };
    let limits = limits.tier(move |head| value(head, "tier").map(Into::into));
    let limits = limits.tenant(move |head| value(head, "tenant").map(Into::into));
    let left = |headers| {
        let head = head(headers);
        let prepared = limits.prepare(&head).unwrap().unwrap();
        prepared.ask_at_once(&limits).unwrap().unwrap().0.remaining().unwrap()
    };
    assert_eq!(left(&[]), 1);
    assert_eq!(left(&[("tier", "gold")]), 7);
    assert_eq!(left(&[("tenant", "acme"), ("tier", "gold")]), 8);
}
