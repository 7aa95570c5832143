//! Who takes too long is not waited for; who is still sending hears what is said.

use std::io::{Read, Write};
use std::process::Command;

use tidegate_testkit::redis::{TlsFiles, wait_for};

use crate::common::{PATIENCE, RespClient, TestServer, config};

/// Asks for much over TLS, and reads none of it.
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
fn nobody_who_leaves_answers_unread_over_tls() {
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
    let look = "GET /openapi.json HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n";
    for (address, request) in [(server.resp, &echo[..]), (server.http, look)] {
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

/// Answers every ping, as clients do, and asks nothing.
#[test]
fn an_idle_connection_of_http_2_is_told_and_closed() {
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
            let answer = [&[0, 0, 8, PING, 1, 0, 0, 0, 0][..], &payload].concat();
            // It may be closed by now.
            let _ = stream.write_all(&answer);
        }
    }
    assert!(kinds.contains(&GOAWAY), "{kinds:?}");
    // Nobody is left but who scrapes.
    assert!(wait_for(PATIENCE, || server.metric("tidegate_connections") <= 1));
}

#[test]
fn who_is_still_sending_hears_why_it_was_refused() {
    let server = TestServer::start(config(""));
    for _ in 0..20 {
        let mut client = server.resp();
        client.send(&[&b"*99\r\n"[..], &vec![b'x'; 1 << 20]].concat());
        let mut said = String::new();
        client.0.read_to_string(&mut said).unwrap();
        assert!(
            said.starts_with("-ERR ") && said.ends_with("\r\n"),
            "{said}"
        );
    }
}
