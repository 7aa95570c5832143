//! Timeouts: the server closes slow and idle connections. A client that is still sending receives
//! the error.

use std::io::{Read, Write};
use std::process::Command;

use tidegate_testkit::redis::{TlsFiles, wait_for};

use crate::common::{RespClient, TIMEOUT, TestServer, config};

/// Sends many requests over TLS and reads no response.
const NEVER_READS: &str = r#"
import socket, ssl, sys
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
stream = context.wrap_socket(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))
stream.settimeout(20)
try:
    while True:
        stream.sendall(sys.argv[2].encode().decode("unicode_escape").encode() * 100)
except TimeoutError:
    print("waited for")
except OSError:
    print("closed")
"#;

#[test]
fn a_tls_client_that_never_reads_is_disconnected() {
    let files = TlsFiles::make();
    let tls = format!(
        "{{ cert = \"{}\", key = \"{}\" }}",
        files.path("redis.crt"),
        files.path("redis.key")
    );
    let text = format!("http.tls = {tls}\nresp.tls = {tls}\n[bounds]\nwrite_timeout = \"300ms\"\n");
    let server = TestServer::start_tls(config(&text));
    let echo = format!(
        "*2\\r\\n$4\\r\\nECHO\\r\\n$4000\\r\\n{}\\r\\n",
        "x".repeat(4_000)
    );
    let get = "GET /openapi.json HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n";
    for (address, request) in [(server.resp, &echo[..]), (server.http, get)] {
        let port = address.port().to_string();
        let output = Command::new("python3")
            .args(["-c", NEVER_READS, &port, request])
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "closed\n",
            "{output:?}"
        );
    }
}

/// The client acknowledges every ping, as clients do, and sends no request.
#[test]
fn an_idle_http_2_connection_gets_goaway_and_is_closed() {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const PING: u8 = 6;
    const GOAWAY: u8 = 7;
    let server = TestServer::start(config("[bounds]\nidle_timeout = \"400ms\"\n"));
    let RespClient(mut stream) = RespClient::connect(server.http);
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .unwrap();
    stream.write_all(&SETTINGS).unwrap();
    let (mut head, mut kinds) = ([0; 9], Vec::new());
    while stream.read_exact(&mut head).is_ok() {
        let [_, high, low, kind, flags, ..] = head;
        let mut payload = vec![0; usize::from(u16::from_be_bytes([high, low]))];
        if stream.read_exact(&mut payload).is_err() {
            break;
        }
        kinds.push(kind);
        if kind == PING && flags == 0 {
            let acknowledgement = [&[0, 0, 8, PING, 1, 0, 0, 0, 0][..], &payload].concat();
            // The server may have closed the connection by now.
            let _ = stream.write_all(&acknowledgement);
        }
    }
    assert!(kinds.contains(&GOAWAY), "{kinds:?}");
    // Only the connection that reads the metrics is left.
    assert!(wait_for(TIMEOUT, || server.metric("tidegate_connections") <= 1));
}

#[test]
fn a_client_that_is_still_sending_receives_the_error() {
    let server = TestServer::start(config(""));
    for _ in 0..20 {
        let mut client = server.resp();
        client.send(&[&b"*99\r\n"[..], &vec![b'x'; 1 << 20]].concat());
        let mut reply = String::new();
        client.0.read_to_string(&mut reply).unwrap();
        assert!(
            reply.starts_with("-ERR ") && reply.ends_with("\r\n"),
            "{reply}"
        );
    }
}
