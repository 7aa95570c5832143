//! Thousands of idle connections and a thousand hostile ones. The server answers healthy clients,
//! bounds its memory and finally closes the others. `cargo xtask bench server` measures the latency
//! under this load.
// Test helpers panic when they fail.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod common;

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};

use common::{ServerProcess, TIMEOUT};
use tidegate_testkit::Folder;
use tidegate_testkit::http::HttpClient;
use tidegate_testkit::redis::wait_for;

const IDLE: usize = 5_000;
const HOSTILE: usize = 1_000;

/// Short timeouts keep the test short.
const BOUNDS: &str = "resp.idle_timeout = \"4s\"\n[bounds]\nidle_timeout = \"4s\"\nhead_timeout = \"1s\"\nbody_timeout = \"1s\"\nwrite_timeout = \"1s\"\n";

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("{error}"));
    stream.set_nonblocking(true).unwrap();
    stream
}

/// Opens a hostile connection. The number selects the attack.
fn attack(server: &ServerProcess, number: usize) -> TcpStream {
    let http = |bytes: &[u8]| {
        let mut stream = connect(server.http);
        stream.write_all(bytes).unwrap();
        stream
    };
    match number % 5 {
        0 => http(b"POST /v1/check HTT"),
        1 => http(b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{"),
        2 => http(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        3 => {
            let mut stream = connect(server.resp);
            stream.write_all(b"*6\r\n$11\r\nCL.THR").unwrap();
            stream
        }
        // Sends command after command and reads no reply.
        _ => {
            let mut stream = connect(server.resp);
            let command = [
                &b"*2\r\n$4\r\nECHO\r\n$8000\r\n"[..],
                &[b'x'; 8_000],
                b"\r\n",
            ]
            .concat();
            for _ in 0..2_000 {
                match stream.write(&command) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Ok(sent) if sent < command.len() => break,
                    other => drop(other.unwrap()),
                }
            }
            stream
        }
    }
}

#[test]
fn healthy_clients_are_served_and_all_others_are_closed() {
    // Each connection needs an open file at both ends, in two processes.
    let files = rlimit::increase_nofile_limit(u64::MAX).unwrap();
    assert!(
        files > (IDLE + HOSTILE + 500) as u64,
        "only {files} files may be open at a time: see ulimit -n"
    );
    let folder = Folder::new();
    let config = folder.write("serve.toml", BOUNDS);
    let server = ServerProcess::start(&["--config", &config]);
    let mut healthy = server.client();
    let mut ask = || {
        healthy
            .post("/v1/check", r#"{"limits": "1000000/hour", "key": "k"}"#)
            .unwrap()
            .status
            == 200
    };
    (0..500).for_each(|_| assert!(ask()));
    let before = server.memory();

    let mut connections = Vec::with_capacity(IDLE + HOSTILE);
    for number in 0..IDLE + HOSTILE {
        connections.push(match number {
            0..IDLE => connect(if number % 2 == 0 {
                server.http
            } else {
                server.resp
            }),
            _ => attack(&server, number),
        });
        // A request now and then keeps the healthy connection from becoming idle.
        assert!(number % 100 != 0 || ask());
    }
    (0..500).for_each(|_| assert!(ask()));
    let each = server.memory().saturating_sub(before) / (IDLE + HOSTILE) as u64;
    assert!(each <= 64 * 1024, "{each} bytes a connection");

    // Only the healthy connection and the one that reads the metrics are left.
    let all_closed = || ask() && server.metric("tidegate_connections") <= 2;
    assert!(
        wait_for(TIMEOUT, all_closed),
        "{} connections are left",
        server.metric("tidegate_connections")
    );
    assert_eq!(server.metric("tidegate_panics_total"), 0);
    drop(connections);
}

#[test]
fn connections_over_the_maximum_are_refused() {
    let folder = Folder::new();
    let config = folder.write(
        "serve.toml",
        "[bounds]\nmax_connections = 10\nmax_connections_per_peer = 8\n",
    );
    let server = ServerProcess::start(&["--config", &config]);
    let mut clients: Vec<_> = (0..8).map(|_| server.client()).collect();
    assert!(
        clients
            .iter_mut()
            .all(|client| client.get("/healthz").unwrap().status == 200)
    );
    let mut refused = server.client();
    let response = refused.receive().unwrap();
    assert_eq!(
        (response.status, response.field("content-type")),
        (503, Some("application/problem+json"))
    );
    assert_eq!(response.json()["detail"], "too many connections at a time");
    assert!(refused.is_ended());
    clients.truncate(4);
    assert!(wait_for(TIMEOUT, || server
        .client()
        .get("/healthz")
        .is_ok_and(|response| response.status == 200)));
    assert!(server.metric("tidegate_connections_refused_total") >= 1);
}

/// All other timeouts are long, so only the head timeout can close these connections.
#[test]
fn an_incomplete_request_times_out() {
    let folder = Folder::new();
    let text = "resp.idle_timeout = \"10m\"\n[bounds]\nidle_timeout = \"10m\"\nwrite_timeout = \"10m\"\nhead_timeout = \"200ms\"\n";
    let server = ServerProcess::start(&["--config", &folder.write("serve.toml", text)]);
    let mut answered = server.client();
    assert_eq!(answered.get("/healthz").unwrap().status, 200);
    let mut clients = [
        server.client(),
        answered,
        HttpClient::connect(server.resp).unwrap(),
    ];
    for client in &mut clients {
        client.send(b"PO").unwrap();
        assert!(client.is_ended());
    }
    // The input starts like the HTTP/2 preface but is not one. Sent byte by byte, it could go on
    // forever.
    for address in [server.http, server.resp] {
        let mut client = HttpClient::connect(address).unwrap();
        client.send(b"PRI / HTTP/1.1\r\nx: ").unwrap();
        let is_cut = || client.send(b"y").is_err();
        assert!(wait_for(TIMEOUT, is_cut));
    }
}

#[test]
fn a_connection_flood_does_not_block_the_admin_listener() {
    let folder = Folder::new();
    let server = ServerProcess::start(&[
        "--config",
        &folder.write("serve.toml", "[bounds]\nmax_connections = 4\n"),
    ]);
    let mut clients: Vec<HttpClient> = (0..4).map(|_| server.client()).collect();
    assert!(
        clients
            .iter_mut()
            .all(|client| client.get("/healthz").unwrap().status == 200)
    );
    assert_eq!(server.client().receive().unwrap().status, 503);
    assert_eq!(server.metric("tidegate_connections_refused_total"), 1);
}
