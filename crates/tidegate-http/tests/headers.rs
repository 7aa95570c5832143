//! The rate-limit headers, read by a parser of structured fields (RFC 9651), match the decision.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::{Head, Plain};
use sfv::{BareItem, Item, List, ListEntry, Parser};
use tidegate_core::{
    Exception, FailurePolicy, Gate, ManualClock, MemoryStore, Policy, PolicySet, Rules, Subject,
    Timestamp, Verdict,
};
use tidegate_http::{
    Header, HeaderFormat, Limits, PolicyHeaderCache, ResetFormat, key, rate_limit_headers,
};

/// Returns a gate on a stopped clock, at a whole minute.
fn gate(rules: Rules) -> (Gate, ManualClock) {
    let clock = ManualClock::new();
    clock.set(Timestamp::from_micros(1_700_000_040_000_000).unwrap());
    let store = MemoryStore::builder()
        .max_keys(1_000)
        .clock(clock.clone())
        .build()
        .unwrap();
    (
        Gate::new(store, PolicySet::new().with("api", rules).unwrap()),
        clock,
    )
}

fn policy(text: &str) -> Policy {
    text.parse().unwrap()
}

fn ask(gate: &Gate, cost: u64) -> Verdict {
    gate.check("api", "k").cost(cost).now().unwrap()
}

fn headers(verdict: &Verdict, format: HeaderFormat) -> BTreeMap<&'static str, String> {
    rate_limit_headers(verdict, format, false, None, &PolicyHeaderCache::default())
        .into_iter()
        .map(text)
        .collect()
}

fn text(field: Header) -> (&'static str, String) {
    (field.name, String::from_utf8(field.value.to_vec()).unwrap())
}

fn draft_11(policy_text: &str, cost: u64) -> (String, Option<String>) {
    let (gate, _) = gate(Rules::new(policy(policy_text)));
    let mut headers = headers(&ask(&gate, cost), HeaderFormat::Draft11);
    (
        headers.remove("ratelimit-policy").unwrap(),
        headers.remove("ratelimit"),
    )
}

#[test]
fn draft_11_headers_are_exact() {
    let cases = [
        // Windows: the limit, the period and the time until the window ends.
        (
            "fixed_window 100/minute",
            1,
            r#""api";q=100;w=60"#,
            r#""api";r=99;t=60"#,
        ),
        (
            "sliding_window_log 100/minute",
            50,
            r#""api";q=100;w=60"#,
            r#""api";r=50;t=60"#,
        ),
        (
            "fixed_window 5/500ms",
            1,
            r#""api";q=5"#,
            r#""api";r=4;t=1"#,
        ),
        (
            "fixed_window 5/1500ms",
            0,
            r#""api";q=5"#,
            r#""api";r=5;t=0"#,
        ),
        // Buckets: the burst, the time to refill it and the time until one more is available.
        ("100/minute", 1, r#""api";q=100;w=60"#, r#""api";r=99;t=1"#),
        ("100/minute", 100, r#""api";q=100;w=60"#, r#""api";r=0;t=1"#),
        ("2/minute", 2, r#""api";q=2;w=60"#, r#""api";r=0;t=30"#),
        ("2/minute", 1, r#""api";q=2;w=60"#, r#""api";r=1;t=30"#),
        (
            "10/second burst=300",
            10,
            r#""api";q=300;w=30"#,
            r#""api";r=290;t=1"#,
        ),
        (
            "7/second burst=10",
            0,
            r#""api";q=10;w=2"#,
            r#""api";r=10;t=0"#,
        ),
        // Denied: the time until this request is allowed.
        (
            "6/minute burst=3",
            3,
            r#""api";q=3;w=30"#,
            r#""api";r=0;t=10"#,
        ),
        // Never allowed: the time is unknown.
        ("6/minute", 7, r#""api";q=6;w=60"#, r#""api";r=6"#),
        // Several limits: the name of the nearest one, with its own time.
        (
            "10/second; fixed_window 5/day anchor=first_hit",
            1,
            r#""api/1";q=10;w=1, "api/2";q=5;w=86400"#,
            r#""api/2";r=4;t=86400"#,
        ),
    ];
    for (text, cost, limits, left) in cases {
        let (policies, state) = draft_11(text, cost);
        assert_eq!(
            (policies.as_str(), state.as_deref()),
            (limits, Some(left)),
            "{text} {cost}"
        );
    }
}

fn list(text: &str) -> List {
    Parser::new(text)
        .parse()
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn items(list: &List) -> Vec<(String, BTreeMap<String, i64>)> {
    let read = |entry: &ListEntry| {
        let ListEntry::Item(Item {
            bare_item: BareItem::String(name),
            params,
        }) = entry
        else {
            panic!("{entry:?}")
        };
        let number = |value: &BareItem| match value {
            BareItem::Integer(number) => i64::from(*number),
            other => panic!("{other:?}"),
        };
        (
            name.as_str().to_owned(),
            params
                .iter()
                .map(|(key, value)| (key.as_str().to_owned(), number(value)))
                .collect(),
        )
    };
    list.iter().map(read).collect()
}

#[test]
fn parsed_headers_match_the_decision() {
    let policies = [
        "fixed_window 7/minute",
        "sliding_window_counter 30/hour",
        "sliding_window_log 3/90 s",
        "5/second burst=20",
        "leaky_bucket 10/minute",
        "gcra 1000000000/365 days",
        "3/s; sliding_window_log 5/minute; fixed_window 40/day",
    ];
    for text in policies {
        let (gate, clock) = gate(Rules::new(policy(text)));
        for step in 0..60_u64 {
            let verdict = ask(&gate, step % 4);
            let decision = *verdict.decisions()[0].decision().unwrap();
            let headers = headers(&verdict, HeaderFormat::Draft11);
            let limits = items(&list(&headers["ratelimit-policy"]));
            let state = items(&list(&headers["ratelimit"]));
            let [(name, figures)] = &state[..] else {
                panic!("{state:?}")
            };
            let (_, limit) = limits
                .iter()
                .find(|(limit, _)| limit == name)
                .expect("an item of the policy");
            assert_eq!(figures["r"], i64::try_from(decision.remaining()).unwrap());
            assert!(figures["r"] <= limit["q"]);
            if let Some(retry) = decision.retry_after() {
                let reported = u64::try_from(figures["t"]).unwrap();
                // The reported time is not too early, and less than a second late.
                assert!(
                    Duration::from_secs(reported) >= retry
                        && reported <= retry.as_secs() + 1
                        && reported >= 1
                );
            }
            // After the reported time, more is available.
            if let (true, Some(wait)) =
                (limits.len() == 1 && decision.is_allowed(), figures.get("t"))
            {
                clock.advance(Duration::from_secs(u64::try_from(*wait).unwrap()));
                let later = ask(&gate, 0).remaining().unwrap();
                assert!(
                    later > decision.remaining() || later == decision.limit(),
                    "{text} {decision:?} {wait}"
                );
            }
            clock.advance(Duration::from_millis(step * 37 % 500));
        }
    }
}

#[test]
fn the_other_header_formats_are_exact() {
    let (gate, _) = gate(Rules::new(policy("fixed_window 100/minute")));
    let verdict = ask(&gate, 50);
    let show = |format| {
        let headers = headers(&verdict, format);
        headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect::<Vec<_>>()
            .join("\n")
    };
    assert_eq!(
        show(HeaderFormat::Draft07),
        "ratelimit: limit=100, remaining=50, reset=60\nratelimit-policy: 100;w=60"
    );
    assert_eq!(
        show(HeaderFormat::Draft06),
        "ratelimit-limit: 100\nratelimit-policy: 100;w=60\nratelimit-remaining: 50\nratelimit-reset: 60"
    );
    assert_eq!(
        show(HeaderFormat::Envoy),
        "x-ratelimit-limit: 100, 100;w=60;name=\"api\"\nx-ratelimit-remaining: 50\nx-ratelimit-reset: 60"
    );
    assert_eq!(
        show(HeaderFormat::Legacy(ResetFormat::Delta)),
        "x-ratelimit-limit: 100\nx-ratelimit-remaining: 50\nx-ratelimit-reset: 60"
    );
    let epoch: u64 =
        headers(&verdict, HeaderFormat::Legacy(ResetFormat::Epoch))["x-ratelimit-reset"]
            .parse()
            .unwrap();
    assert!(epoch > 1_790_000_000, "{epoch}");
    assert_eq!(show(HeaderFormat::Off), "");
}

#[test]
fn several_policies_share_the_headers() {
    let policy_set = PolicySet::new()
        .with("user", Rules::new(policy("100/minute")))
        .and_then(|policy_set| {
            policy_set.with("address", Rules::new(policy("fixed_window 10/minute")))
        })
        .and_then(|policy_set| policy_set.with("trial", Rules::new(policy("1/minute")).shadow()))
        .unwrap();
    let gate = Gate::memory(policy_set);
    let subjects = ["user", "address", "trial"].map(|policy| Subject::new(policy, "k"));
    let (verdict, _receipt) = gate.admit(&subjects).into_ready().unwrap().unwrap();
    let policies = &headers(&verdict, HeaderFormat::Draft11)["ratelimit-policy"];
    assert_eq!(
        policies, r#""user";q=100;w=60, "address";q=10;w=60"#,
        "policies in shadow mode are not reported"
    );
    let nearest = rate_limit_headers(
        &verdict,
        HeaderFormat::Draft11,
        false,
        None,
        &PolicyHeaderCache::default(),
    )[1]
    .clone();
    let (_, nearest) = text(nearest);
    assert!(nearest.starts_with(r#""address";r=9;t="#), "{nearest}");
    let (_, all) = text(
        rate_limit_headers(
            &verdict,
            HeaderFormat::Draft11,
            true,
            None,
            &PolicyHeaderCache::default(),
        )[1]
        .clone(),
    );
    let all = items(&list(&all));
    assert_eq!(
        all.iter()
            .map(|(name, _)| name.as_str())
            .collect::<Vec<_>>(),
        ["user", "address"]
    );
}

#[test]
fn headers_report_a_policy_that_leaves_shadow_mode() {
    let rules = |is_shadow: bool| {
        let rules = Rules::new(policy("5/minute"));
        PolicySet::new()
            .with("api", if is_shadow { rules.shadow() } else { rules })
            .unwrap()
    };
    let gate = Gate::memory(rules(true));
    let cache = PolicyHeaderCache::default();
    let names = || {
        let verdict = gate.check("api", "k").cost(0).now().unwrap();
        rate_limit_headers(&verdict, HeaderFormat::Draft11, false, None, &cache).len()
    };
    assert_eq!(names(), 0);
    gate.replace_policies(rules(false)).unwrap();
    assert_eq!(names(), 2);
    gate.replace_policies(rules(true)).unwrap();
    assert_eq!(names(), 0);
}

#[test]
fn an_overlong_queue_is_reported_by_its_policy() {
    let policy_set = PolicySet::new()
        .with("scarce", Rules::new(policy("fixed_window 2/minute")))
        .and_then(|policy_set| {
            policy_set.with(
                "queue",
                Rules::new(policy("leaky_bucket 1/second burst=100")),
            )
        })
        .unwrap();
    let gate = Gate::memory(policy_set);
    let subjects = ["scarce", "queue"].map(|policy| Subject::new(policy, "k"));
    let ask = || gate.admit(&subjects).into_ready().unwrap().unwrap().0;
    let _ = ask();
    let verdict = ask();
    let excess = Some(Duration::from_millis(1_500));
    for all in [false, true] {
        let (_, value) = text(
            rate_limit_headers(
                &verdict,
                HeaderFormat::Draft11,
                all,
                excess,
                &PolicyHeaderCache::default(),
            )[1]
            .clone(),
        );
        assert_eq!(value, r#""queue";r=0;t=2"#);
    }
    let limits: Limits<Plain> = Limits::new(gate.clone());
    let denial = limits.denial(&verdict, excess).unwrap();
    assert_eq!(
        (denial.policy().as_str(), denial.retry_after()),
        ("queue", Some(2))
    );
    assert!(
        denial
            .problem()
            .contains(r#""violated-policies":["queue"]"#)
    );
}

fn limits(rules: Rules) -> Limits<Plain> {
    let (gate, _) = gate(rules);
    Limits::new(gate).limit("api", key::global()).unwrap()
}

fn problem(limits: &Limits<Plain>) -> serde_json::Value {
    let head = Head::default();
    let prepared = limits.prepare(&head).unwrap().unwrap();
    let (verdict, _receipt) = prepared.check(limits).into_ready().unwrap().unwrap();
    let denial = limits.denial(&verdict, None).expect("denied");
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&denial.problem()).unwrap()["status"],
        denial.status()
    );
    serde_json::from_str(&denial.problem()).unwrap()
}

#[test]
fn problem_documents_are_exact() {
    let over = limits(Rules::new(policy("5/minute"))).cost(|_| 5);
    let head = Head::default();
    let ask = over.prepare(&head).unwrap().unwrap();
    assert!(
        ask.check(&over)
            .into_ready()
            .unwrap()
            .unwrap()
            .0
            .is_allowed()
    );
    let expected = serde_json::json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": "api: token_bucket 5/minute; try again in 60 s",
        "violated-policies": ["api"],
        "retry_after": 60
    });
    assert_eq!(problem(&over), expected);
    let never = problem(&limits(Rules::new(policy("5/minute"))).cost(|_| 6));
    assert_eq!(
        (&never["status"], &never["retry_after"]),
        (&429.into(), &serde_json::Value::Null)
    );
    assert!(
        never["detail"]
            .as_str()
            .unwrap()
            .contains("exceeds the limit")
    );
    assert_eq!(
        problem(
            &limits(Rules::new(policy("5/minute")))
                .cost(|_| 6)
                .never_status(413)
        )["status"],
        413
    );
    let blocked = Rules::new(policy("5/minute"))
        .exception("global", Exception::Blocked)
        .unwrap();
    let blocked = problem(&limits(blocked));
    assert_eq!(
        (&blocked["status"], &blocked["retry_after"]),
        (&429.into(), &serde_json::Value::Null)
    );
    assert!(
        blocked["type"]
            .as_str()
            .unwrap()
            .ends_with("#abnormal-usage-detected")
    );
}

#[test]
fn jitter_is_never_early_and_at_most_one_second() {
    let limits = limits(Rules::new(policy("2/minute")))
        .cost(|_| 2)
        .retry_jitter();
    let prepared = || {
        limits
            .prepare(&Head::default())
            .unwrap()
            .unwrap()
            .check(&limits)
            .into_ready()
            .unwrap()
            .unwrap()
            .0
    };
    assert!(prepared().is_allowed());
    let delays: Vec<u64> = (0..200)
        .map(|_| {
            limits
                .denial(&prepared(), None)
                .unwrap()
                .retry_after()
                .unwrap()
        })
        .collect();
    assert!(
        delays.iter().all(|seconds| (60..=61).contains(seconds)),
        "{delays:?}"
    );
    assert!(delays.iter().any(|seconds| *seconds > 60));
}

/// A store that always fails.
struct FailingStore;

impl tidegate_core::Store for FailingStore {
    type Plan = ();

    fn plan(&self, _: &Policy, _: &str) {}

    async fn check(
        &self,
        (): &(),
        _: tidegate_core::Key<'_>,
        _: tidegate_core::Cost,
    ) -> Result<tidegate_core::Decision, tidegate_core::StoreError> {
        Err(tidegate_core::StoreError::new(
            tidegate_core::Degraded::Timeout,
            "gone",
        ))
    }

    async fn check_many(
        &self,
        (): &(),
        _: &[(tidegate_core::Key<'_>, tidegate_core::Cost)],
    ) -> Vec<Result<tidegate_core::Decision, tidegate_core::StoreError>> {
        Vec::new()
    }

    async fn refund(
        &self,
        plan: &(),
        key: tidegate_core::Key<'_>,
        cost: tidegate_core::Cost,
    ) -> Result<tidegate_core::Decision, tidegate_core::StoreError> {
        self.check(plan, key, cost).await
    }

    async fn reset(
        &self,
        plan: &(),
        key: tidegate_core::Key<'_>,
    ) -> Result<bool, tidegate_core::StoreError> {
        self.check(plan, key, tidegate_core::Cost::ZERO)
            .await
            .map(|decision| decision.is_allowed())
    }

    async fn peek(
        &self,
        plan: &(),
        key: tidegate_core::Key<'_>,
        cost: tidegate_core::Cost,
    ) -> Result<tidegate_core::Admission, tidegate_core::StoreError> {
        let decision = self.check(plan, key, cost).await?;
        Ok(tidegate_core::Admission::look(decision))
    }

    async fn charge(
        &self,
        plan: &(),
        key: tidegate_core::Key<'_>,
        cost: tidegate_core::Cost,
    ) -> Result<tidegate_core::Charged, tidegate_core::StoreError> {
        let decision = self.check(plan, key, cost).await?;
        Ok(tidegate_core::Charged::whole(decision))
    }

    fn block_on<F: Future>(&self, future: F) -> Result<F::Output, tidegate_core::BlockingError> {
        let waker = std::task::Waker::noop();
        match std::pin::pin!(future).poll(&mut std::task::Context::from_waker(waker)) {
            std::task::Poll::Ready(output) => Ok(output),
            std::task::Poll::Pending => Err(tidegate_core::BlockingError::new()),
        }
    }

    fn detach(&self, _: impl Future<Output = ()> + Send + 'static) {}
}

#[test]
fn responses_without_the_store_invent_no_values() {
    let ask = |failure| {
        let rules = Rules::new(policy("2/minute")).failure_policy(failure);
        let gate = Gate::new(FailingStore, PolicySet::new().with("api", rules).unwrap());
        let limits: Limits<Plain, FailingStore> = Limits::new(gate.clone());
        let verdicts = [(); 3].map(|()| gate.check("api", "k").blocking().unwrap());
        (limits, verdicts)
    };
    let names = |verdict: &Verdict| {
        headers(verdict, HeaderFormat::Draft11)
            .into_keys()
            .collect::<Vec<_>>()
    };
    let (limits, verdicts) = ask(FailurePolicy::Open);
    assert!(
        verdicts
            .iter()
            .all(|verdict| limits.denial(verdict, None).is_none()
                && names(verdict) == ["ratelimit-policy"])
    );
    let (limits, verdicts) = ask(FailurePolicy::Closed);
    for verdict in &verdicts {
        let denial = limits.denial(verdict, None).unwrap();
        assert_eq!((denial.status(), denial.retry_after()), (503, None));
        assert!(denial.problem().contains("#temporary-reduced-capacity"));
        assert_eq!(names(verdict), ["ratelimit-policy"]);
    }
    // This process knows when it will allow the request.
    let (limits, verdicts) = ask(FailurePolicy::local(1));
    let denial = limits.denial(&verdicts[2], None).unwrap();
    assert_eq!((denial.status(), denial.retry_after()), (429, Some(30)));
    assert_eq!(names(&verdicts[2]), ["ratelimit-policy"]);
}
