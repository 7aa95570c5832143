#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use super::*;

fn parse(text: &str) -> Policy {
    text.parse()
        .unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

#[test]
fn valid_policies_parse_and_print_canonically() {
    let cases = [
        ("100/minute", "token_bucket 100/minute"),
        (
            "token_bucket 10/second burst=50",
            "token_bucket 10/second burst=50",
        ),
        ("5 per 2 hours", "token_bucket 5/2 hours"),
        (
            "fixed_window 1_000/day anchor=first_hit",
            "fixed_window 1000/day anchor=first_hit",
        ),
        (
            "10/s; sliding_window_log 100/minute; fixed_window 5000/day",
            "token_bucket 10/second; sliding_window_log 100/minute; fixed_window 5000/day",
        ),
        ("moving_window 7/w", "sliding_window_log 7/week"),
        ("sliding_window 7/10 h", "sliding_window_counter 7/10 hours"),
        (
            "  GCRA\t5PER 3Mins\n burst = 9 ",
            "gcra 5/3 minutes burst=9",
        ),
        ("5per2h", "token_bucket 5/2 hours"),
        ("leaky_bucket 1/month", "leaky_bucket 1/30 days"),
        ("1/year", "token_bucket 1/365 days"),
        ("1/366 days", "token_bucket 1/366 days"),
        ("1/500ms", "token_bucket 1/500 ms"),
        ("1/1000 milliseconds", "token_bucket 1/second"),
        ("fixed_window 1/s anchor=clock", "fixed_window 1/second"),
        ("1/s burst=1", "token_bucket 1/second"),
        (
            "1000000000/ms burst=1000000000",
            "token_bucket 1000000000/ms",
        ),
        ("007/s", "token_bucket 7/second"),
    ];
    for (text, printed) in cases {
        let policy = parse(text);
        assert_eq!(policy.to_string(), printed, "{text:?}");
        assert_eq!(parse(printed), policy, "{printed:?}");
    }
}

#[test]
fn every_unit_accepts_all_its_names() {
    let units = [
        (1, "ms millisecond milliseconds"),
        (1_000, "s sec secs second seconds"),
        (60_000, "m min mins minute minutes"),
        (3_600_000, "h hr hrs hour hours"),
        (86_400_000, "d day days"),
        (604_800_000, "w week weeks"),
        (2_592_000_000, "month months"),
        (31_536_000_000, "year years"),
    ];
    for (ms, names) in units {
        for name in names.split(' ') {
            assert_eq!(
                parse(&format!("3/{name}")).limits()[0].period(),
                Duration::from_millis(ms),
                "{name}"
            );
        }
    }
}

/// Invalid policies: the text, the part that the error points at, and a part of the message.
const INVALID: &[(&str, &str, &str)] = &[
    ("", "", "expected a limit such as 100/minute"),
    ("   ", "", "expected a limit"),
    ("100", "", "expected `/` or `per`"),
    ("100/", "", "expected ms, second"),
    ("/minute", "/", "expected fixed_window"),
    ("100/fortnight", "fortnight", "unknown unit"),
    ("100 / 0s", "0s", "expected 1 ms to 366 days"),
    ("100/367 days", "367 days", "expected 1 ms to 366 days"),
    (
        "1/99999999999999999999 years",
        "99999999999999999999 years",
        "expected 1 ms to 366 days",
    ),
    ("0/minute", "0", "expected 1 to 1,000,000,000"),
    (
        "1000000001/minute",
        "1000000001",
        "expected 1 to 1,000,000,000",
    ),
    (
        "99999999999999999999999/minute",
        "99999999999999999999999",
        "expected 1 to 1,000,000,000",
    ),
    ("-1/minute", "-", "unexpected character"),
    ("１００/minute", "１", "unexpected character"),
    ("1e3/minute", "e", "expected `/` or `per`"),
    ("1,000/minute", ",", "expected 1_000"),
    ("1.5/minute", ".", "unexpected character"),
    ("100_/minute", "100_", "between two digits"),
    ("1__0/minute", "1__0", "between two digits"),
    ("_1/minute", "_", "unknown algorithm"),
    ("token_buckets 1/s", "token_buckets", "unknown algorithm"),
    ("100/minute;", "", "expected a limit"),
    ("100/minute;;1/s", ";", "unexpected `;`"),
    ("100/minute 5/s", "5", "expected burst"),
    ("100/minute burst", "", "expected `=`"),
    ("100/minute burst 5", "5", "expected `=`"),
    ("100/minute burst=", "", "expected a count"),
    ("100/minute burst=x", "x", "expected a count"),
    (
        "100/minute burst=0",
        "burst=0",
        "expected 1 to 1,000,000,000",
    ),
    ("100/minute burst=5 burst=6", "burst=6", "given twice"),
    ("100/minute brust=5", "brust", "unknown option"),
    ("fixed_window 1/s burst=5", "burst=5", "has no burst"),
    ("sliding_window_log 1/s burst=1", "burst=1", "has no burst"),
    ("1/s anchor=clock", "anchor=clock", "has no anchor"),
    ("fixed_window 1/s anchor=noon", "noon", "anchor=first_hit"),
    (
        "fixed_window 1/s anchor=clock anchor=clock",
        "anchor=clock",
        "given twice",
    ),
    (
        "sliding_window_log 1000001/s",
        "1000001",
        "at most 1,000,000",
    ),
    ("1/day burst=36601", "burst=36601", "at most 36,600 days"),
    ("1/s; 5/s burst=0", "burst=0", "expected 1 to"),
];

#[test]
fn parse_errors_point_at_the_invalid_part() {
    for (text, part, message) in INVALID {
        let error = text.parse::<Policy>().expect_err(text);
        assert!(error.to_string().contains(message), "{text:?}: {error}");
        let span = error.span().unwrap();
        assert_eq!(&text[span], *part, "{text:?}: {error}");
    }
}

#[test]
fn carets_mark_the_invalid_part() {
    let error = "10/s;\n  fixed_window 5/s burst=7"
        .parse::<Policy>()
        .unwrap_err();
    let shown = error.to_string();
    let mut lines = shown.lines().skip(1);
    let (text, carets) = (lines.next().unwrap(), lines.next().unwrap());
    assert_eq!(&text[carets.find('^').unwrap()..carets.len()], "burst=7");

    let long = format!(
        "{}5/parsec{}",
        format!("1/s;{} ", " ".repeat(80)).repeat(7),
        "; 1/s".repeat(100)
    );
    let shown = long.parse::<Policy>().unwrap_err().to_string();
    assert!(
        shown.lines().all(|line| line.chars().count() < 160),
        "{shown}"
    );
    let (text, carets) = (shown.lines().nth(1).unwrap(), shown.lines().nth(2).unwrap());
    let at = carets.chars().position(|c| c == '^').unwrap();
    assert_eq!(text.chars().skip(at).take(6).collect::<String>(), "parsec");
}

#[test]
fn a4_a_policy_has_at_most_eight_limits() {
    let text = |count: usize| vec!["1/s"; count].join("; ");
    assert_eq!(text(8).parse::<Policy>().unwrap().limits().len(), 8);
    let error = text(9).parse::<Policy>().unwrap_err();
    assert_eq!(
        error.message(),
        "too many limits: expected at most 8 in a policy"
    );
    assert_eq!(error.span(), Some(text(8).len()..text(9).len()));
    let limit = Limit::gcra(Rate::per_second(1));
    assert!(Policy::new([limit; 8]).is_ok());
    assert!(
        Policy::new([limit; 9])
            .unwrap_err()
            .to_string()
            .contains("expected at most 8")
    );
}

#[test]
fn any_text_is_parsed_or_rejected() {
    let pieces = [
        "token_bucket",
        "gcra",
        "fixed_window",
        "10",
        "1_0",
        "/",
        "per",
        "s",
        "minute",
        "burst",
        "=",
        "anchor",
        ";",
        " ",
        "é",
        "\0",
        "first_hit",
        "_",
        "999999999999999999999",
    ];
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..200_000 {
        let text: String = (0..random.usize(0..9))
            .map(|_| *random.choice(&pieces).unwrap())
            .collect();
        match text.parse::<Policy>() {
            Ok(policy) => assert_eq!(parse(&policy.to_string()), policy, "{text:?}"),
            Err(error) => assert!(
                text.get(error.span().unwrap()).is_some(),
                "{text:?}: {error}"
            ),
        }
    }
}

#[test]
fn built_policies_have_the_same_bounds_as_parsed_ones() {
    let second = Rate::per_second(1);
    assert_eq!(
        Policy::new([Limit::token_bucket(second).burst(5)]).unwrap(),
        parse("1/s burst=5")
    );
    assert_eq!(
        Policy::try_from(Limit::fixed_window(second).anchor(Anchor::FirstHit)).unwrap(),
        parse("fixed_window 1/s anchor=first_hit")
    );
    let bad = [
        Limit::token_bucket(Rate::per_minute(0)),
        Limit::token_bucket(Rate::new(1, Duration::from_nanos(1))),
        Limit::token_bucket(Rate::new(1, Duration::MAX)),
        Limit::token_bucket(second).burst(0),
        Limit::token_bucket(second).burst(u64::MAX),
        Limit::token_bucket(Rate::new(u64::MAX, Duration::from_secs(1))),
        Limit::fixed_window(second).burst(2),
        Limit::gcra(second).anchor(Anchor::FirstHit),
        Limit::sliding_window_log(Rate::per_second(1_000_001)),
    ];
    for limit in bad {
        let error = Policy::new([limit]).unwrap_err();
        assert!(error.message().contains("expected"), "{error}");
    }
    assert!(Policy::new([]).is_err());
}
