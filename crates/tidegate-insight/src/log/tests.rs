use super::*;

const AT: u64 = 1_700_000_000_000_000;

fn field(format: LogFormat, line: &str, name: &str) -> Option<String> {
    let record = format.parse(line.as_bytes()).unwrap();
    assert_eq!(record.at_us, AT, "{line}");
    record.field(&name.parse().unwrap()).map(Cow::into_owned)
}

#[test]
fn combined_lines_have_their_fields() {
    let lines = [
        r#"192.0.2.1 - frank [14/Nov/2023:22:13:20 +0000] "GET /a/b?c=d HTTP/1.1" 200 2326 "http://x/" "Mozilla \"5\"""#,
        r#"192.0.2.1 - frank [14/Nov/2023:14:13:20 -0800] "GET /a/b HTTP/1.0" 200 2326 "http://x/" "Mozilla \"5\"" "-" 0.003"#,
        r#"example.org:443 192.0.2.1 - frank [14/Nov/2023:22:13:20 +0000] "GET http://example.org/a/b HTTP/1.1" 200 2326 "http://x/" "Mozilla \"5\"""#,
    ];
    for line in lines {
        let get = |name: &str| field(LogFormat::Combined, line, name);
        assert_eq!(get("address").as_deref(), Some("192.0.2.1"), "{line}");
        assert_eq!(get("user").as_deref(), Some("frank"));
        assert_eq!(get("method").as_deref(), Some("GET"));
        assert_eq!(get("path").as_deref(), Some("/a/b"));
        assert_eq!(get("bytes").as_deref(), Some("2326"));
        assert_eq!(
            get("header:User-Agent").as_deref(),
            Some(r#"Mozilla \"5\""#)
        );
        assert_eq!(get("header:x-api-key"), None);
    }
    let common = r#"::1 - - [14/Nov/2023:22:13:20 +0000] "-" 400 -"#;
    assert_eq!(field(LogFormat::Combined, common, "user"), None);
    assert_eq!(field(LogFormat::Combined, common, "path"), None);
    let spaced = r#"192.0.2.1 - john doe [14/Nov/2023:22:13:20 +0000] "GET / HTTP/1.1" 200 5"#;
    assert_eq!(
        field(LogFormat::Combined, spaced, "user").as_deref(),
        Some("john doe")
    );
}

#[test]
fn json_lines_of_four_servers_have_their_fields() {
    let lines = [
        // nginx
        r#"{"time_iso8601":"2023-11-14T22:13:20+00:00","remote_addr":"192.0.2.1","remote_user":"frank","request":"GET /a/b?c HTTP/1.1","status":"200","body_bytes_sent":"2326","http_x_api_key":"k"}"#,
        // Caddy
        r#"{"level":"info","ts":1700000000.0,"request":{"remote_ip":"10.0.0.1","client_ip":"192.0.2.1","method":"GET","host":"x","uri":"/a/b?c","headers":{"X-Api-Key":["k"]}},"user_id":"frank","size":2326,"status":200}"#,
        // Traefik
        r#"{"ClientHost":"192.0.2.1","ClientUsername":"frank","DownstreamContentSize":2326,"RequestMethod":"GET","RequestPath":"/a/b","StartUTC":"2023-11-14T22:13:20.000000000Z","request_X-Api-Key":"k","time":"2023-11-14T22:13:21Z"}"#,
        // Envoy
        r#"{"start_time":"2023-11-14T22:13:20.000Z","downstream_remote_address":"192.0.2.1:5000","user":"frank","method":"GET","path":"/a/b?c","bytes_sent":2326,"x_api_key":"k"}"#,
    ];
    for line in lines {
        let get = |name: &str| field(LogFormat::Json, line, name);
        assert_eq!(get("user").as_deref(), Some("frank"), "{line}");
        assert_eq!(get("method").as_deref(), Some("GET"));
        assert_eq!(get("path").as_deref(), Some("/a/b"));
        assert_eq!(get("bytes").as_deref(), Some("2326"));
        assert_eq!(get("header:X-API-Key").as_deref(), Some("k"));
        let mut key = String::new();
        let record = LogFormat::Json.parse(line.as_bytes()).unwrap();
        assert!(
            "address"
                .parse::<KeyExpression>()
                .unwrap()
                .write(&record, &mut key)
        );
        assert_eq!(key, "192.0.2.1");
        assert_eq!(LogFormat::of_line(line.as_bytes()), LogFormat::Json);
    }
    let nested = r#"{"ts":1700000000,"usage":{"tokens":12.5},"tags":["a","b"]}"#;
    assert_eq!(
        field(LogFormat::Json, nested, "field:usage.tokens").as_deref(),
        Some("12.5")
    );
    assert_eq!(
        field(LogFormat::Json, nested, "field:tags.1").as_deref(),
        Some("b")
    );
}

#[test]
fn times_of_many_formats() {
    for text in [
        "2023-11-14T22:13:20Z",
        "2023-11-14 22:13:20",
        "2023-11-14T23:13:20+01:00",
        "14/Nov/2023:22:13:20 +0000",
        "14/Nov/2023:22:13:20",
        "1700000000",
        "1700000000000",
        "1700000000000000",
        "1700000000000000000",
        "1700000000.000",
    ] {
        assert_eq!(parse_time(text), Some(AT), "{text}");
    }
    assert_eq!(
        parse_time("2024-02-29T00:00:00.123456789Z"),
        Some(1_709_164_800_123_456)
    );
    for text in [
        "",
        "yesterday",
        "2023-02-29T00:00:00Z",
        "2023-13-01T00:00:00Z",
        "31/Foo/2023:22:13:20",
        "2023-11-14T25:00:00Z",
        "14/Nov/2023:22:13:20 0100",
        "-5",
        "1e9",
        "99999999999999999999999",
        "1969-12-31T23:59:59Z",
        "2023-11-14T22:13:20.x",
    ] {
        assert_eq!(parse_time(text), None, "{text}");
    }
    assert_eq!(utc_seconds(AT), "2023-11-14 22:13:20");
}

#[test]
fn keys_select_networks_and_segments() {
    let line = |address: &str, path: &str| {
        format!(r#"{address} - - [14/Nov/2023:22:13:20 +0000] "GET {path} HTTP/1.1" 200 5 "-" "x""#)
    };
    let key = |expression: &str, line: &str| {
        let record = LogFormat::Combined.parse(line.as_bytes()).unwrap();
        let mut key = String::new();
        let expression: KeyExpression = expression.parse().unwrap();
        expression.write(&record, &mut key).then_some(key)
    };
    let v6 = line("2001:db8:1:2:3::4", "/users/42/orders");
    assert_eq!(key("address/64", &v6).as_deref(), Some("2001:db8:1:2::/64"));
    assert_eq!(
        key("address/64", &line("192.0.2.1", "/")).as_deref(),
        Some("192.0.2.1")
    );
    assert_eq!(key("path:/users/*/orders", &v6).as_deref(), Some("/42"));
    assert_eq!(
        key("path:/users/**", &v6).as_deref(),
        Some("/users/42/orders")
    );
    assert_eq!(key("path:/login", &v6), None);
    assert_eq!(key("user", &v6), None);
    assert_eq!(
        key("address+path:/login", &line("::1", "/login")).as_deref(),
        Some("::1 /login")
    );
    for text in [
        "",
        "adress",
        "address/0",
        "address/129",
        "path:x",
        "header:",
        "address+",
        "field:",
    ] {
        assert!(text.parse::<KeyExpression>().is_err(), "{text}");
    }
}

#[test]
fn costs_are_exact_and_rounded_up() {
    let line = br#"{"ts":1700000000,"tokens":1234,"size":1,"part":0.0005,"bad":"x","huge":1e30,"vast":340282366920938463463374607431768211.999}"#;
    let record = LogFormat::Json.parse(line).unwrap();
    let cost = |text: &str| text.parse::<CostExpression>().unwrap().of(&record);
    assert_eq!(cost("2.5"), Some("2.5".parse().unwrap()));
    assert_eq!(cost("field:tokens"), Some("1234".parse().unwrap()));
    assert_eq!(cost("field:tokens/1000"), Some("1.234".parse().unwrap()));
    assert_eq!(cost("bytes/1000000"), Some("0.001".parse().unwrap()));
    assert_eq!(
        (
            cost("field:vast"),
            cost("field:huge"),
            cost("field:missing")
        ),
        (None, None, None)
    );
    for text in ["", "x", "bytes/0", "bytes/x", "field:", "-1"] {
        assert!(text.parse::<CostExpression>().is_err(), "{text}");
    }
}
