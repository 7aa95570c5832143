//! nginx, Caddy, HAProxy and Traefik in front of an application, asking `/v1/forward-auth`.

use std::path::PathBuf;

use tidegate_testkit::gateway::{App, Gateway, GatewayProgram, system_program, tool};
use tidegate_testkit::redis::wait_for;

use crate::common::{TIMEOUT as LONG, TestServer, config};

/// A gateway's files, and what it can do.
struct Kind {
    program: PathBuf,
    arguments: &'static [&'static str],
    files: &'static [(&'static str, &'static str)],
    /// Set if the headers of an allowed answer reach the client.
    passes_headers: bool,
    /// Set if it has a path that stays open without the server.
    has_open_path: bool,
}

macro_rules! file {
    ($name:literal) => {
        (
            $name,
            include_str!(concat!("../../../../deploy/gateways/", $name)),
        )
    };
}

fn check(kind: &Kind) {
    let text = "forward_auth.skip_preflights = true\n[policies.api]\nlimits = \"fixed_window 5/300 days\"\n";
    let server = TestServer::start(config(text));
    let app = App::start();
    let gateway = Gateway::start(&GatewayProgram {
        program: kind.program.clone(),
        arguments: kind.arguments,
        files: kind.files,
        addresses: &[
            ("127.0.0.1:8000", None),
            ("127.0.0.1:8080", Some(server.http)),
            ("127.0.0.1:3000", Some(app.address())),
            ("127.0.0.1:8111", None),
        ],
        listens_at: "127.0.0.1:8000",
    });
    for left in (0..5).rev() {
        // A client that chooses its address is still the same client.
        let spoofed = format!("x-forwarded-for: 192.0.2.{left}\r\nx-real-ip: 192.0.2.{left}\r\n");
        let mut answer = gateway.get("/some/path?x=1", &spoofed);
        // Traefik listens before it has its routes.
        wait_for(LONG, || {
            let has_routes = answer.status != 404;
            if !has_routes {
                answer = gateway.get("/some/path?x=1", &spoofed);
            }
            has_routes
        });
        assert_eq!(
            (answer.status, answer.body.as_str()),
            (200, "app\n"),
            "{answer:?}"
        );
        if kind.passes_headers {
            let limit = answer.field("ratelimit").unwrap_or_default();
            assert!(
                limit.starts_with(&format!("\"api\";r={left}")),
                "{answer:?}"
            );
            assert!(answer.field("ratelimit-policy").is_some(), "{answer:?}");
        }
    }
    // Nor is a request that only claims to be a preflight.
    for name in ["x-forwarded-method", "x-original-method"] {
        let claim = format!("{name}: OPTIONS\r\naccess-control-request-method: GET\r\n");
        for path in ["/some/path", "/open/path"] {
            assert_eq!(gateway.get(path, &claim).status, 429, "{name} {path}");
        }
    }
    let denied = gateway.get("/some/path", "x-forwarded-for: 192.0.2.77\r\n");
    assert_eq!(denied.status, 429, "{denied:?}");
    assert!(denied.field("retry-after").unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!(
        denied.field("content-type"),
        Some("application/problem+json")
    );
    assert!(
        denied
            .field("ratelimit")
            .unwrap()
            .starts_with("\"api\";r=0"),
        "{denied:?}"
    );
    assert_eq!(denied.json()["status"], 429);
    let served = app.served();
    drop(server);
    let closed = gateway.get("/some/path", "");
    assert!((500..=503).contains(&closed.status), "{closed:?}");
    assert_eq!(app.served(), served);
    if kind.has_open_path {
        let open = gateway.get("/open/path", "");
        assert_eq!(
            (open.status, open.body.as_str()),
            (200, "app\n"),
            "{open:?}"
        );
    }
}

#[test]
fn nginx_asks_before_it_passes_a_request_on() {
    check(&Kind {
        program: system_program("nginx"),
        // One process: workers would outlive a killed master.
        arguments: &[
            "-p",
            ".",
            "-c",
            "nginx.conf",
            "-e",
            "stderr",
            "-g",
            "master_process off;",
        ],
        files: &[file!("nginx.conf")],
        passes_headers: true,
        has_open_path: true,
    });
}

#[test]
fn caddy_asks_before_it_passes_a_request_on() {
    check(&Kind {
        program: system_program("caddy"),
        arguments: &["run", "--config", "Caddyfile", "--adapter", "caddyfile"],
        files: &[file!("Caddyfile")],
        passes_headers: true,
        has_open_path: true,
    });
}

#[test]
fn haproxy_asks_before_it_passes_a_request_on() {
    check(&Kind {
        program: system_program("haproxy"),
        arguments: &["-f", "haproxy.cfg", "-db"],
        files: &[file!("haproxy.cfg"), file!("haproxy.lua")],
        passes_headers: true,
        has_open_path: true,
    });
}

#[test]
fn traefik_asks_before_it_passes_a_request_on() {
    check(&Kind {
        program: tool("traefik"),
        arguments: &["--configFile=traefik.yaml"],
        files: &[file!("traefik.yaml"), file!("traefik-dynamic.yaml")],
        passes_headers: false,
        has_open_path: false,
    });
}

#[test]
fn the_query_is_checked_before_anything_is_taken() {
    let text = "[policies.api]\nlimits = \"fixed_window 5/300 days\"\ntiers.gold = \"fixed_window 9/300 days\"\n";
    let server = TestServer::start_frozen(text);
    for (query, status) in [
        ("", 400),
        ("?policy=none", 404),
        ("?policy=api&key=", 400),
        ("?policy=api&key=a&key=b", 400),
        ("?policy=api&cost=-1", 400),
        ("?policy=api&cost=x", 400),
        ("?policy=api&deny=200", 400),
        ("?policy=api&other=1", 400),
        ("?policy=api&key=%ff", 400),
        ("?policy=api&key=a%20b&cost=2.5", 200),
        ("?policy=api&key=a%20b&cost=3", 429),
        ("?policy=api&key=a%20b&cost=3&deny=403", 403),
        ("?policy=api&key=a%20b&cost=3&tier=gold", 200),
    ] {
        let answer = server
            .client()
            .get(&format!("/v1/forward-auth{query}"))
            .unwrap();
        assert_eq!(answer.status, status, "{query}: {answer:?}");
        let is_decided = matches!(status, 200 | 429 | 403);
        assert_eq!(
            answer.field("ratelimit").is_some(),
            is_decided,
            "{query}: {answer:?}"
        );
    }
    assert_eq!(server.post("/v1/forward-auth?policy=api", "").status, 405);
}
