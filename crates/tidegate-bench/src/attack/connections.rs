//! Attacks with hostile connections.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::Finding;
use super::target::Target;

const CHECK: &str = r#"{"limits": "1000000/second", "key": "k"}"#;

/// The preface and settings of HTTP/2, with a window of 0 for every stream.
const CLOSED_WINDOWS: &[u8] =
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0";

/// Sends acknowledgements of pings that were never sent. A library logs them, and the log is not
/// read.
pub(super) fn log_flood(duration: Duration) -> anyhow::Result<Finding> {
    let target = Target::start_with_log("")?;
    let acks = [0, 0, 8, 6, 1, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8].repeat(1_000);
    let started = Instant::now();
    let (mut sent, mut answered) = (0, 0);
    let mut resets = tidegate_testkit::http::HttpClient::connect(target.admin)?;
    let mut client = target.client()?;
    while started.elapsed() < duration {
        let mut stream = TcpStream::connect(target.http)?;
        stream.write_all(CLOSED_WINDOWS)?;
        for _ in 0..50 {
            match stream.write_all(&acks) {
                Ok(()) => sent += acks.len(),
                Err(_) => break,
            }
        }
        for _ in 0..50 {
            resets.post("/v1/reset", CHECK)?;
        }
        answered += u64::from(client.post("/v1/check", CHECK)?.status == 200);
    }
    let dropped = target.metric("tidegate_log_lines_dropped_total")?;
    let figures = format!(
        "{} MB of acks sent, {dropped} log lines dropped, {answered} checks succeeded",
        sent / 1_000_000
    );
    Ok(Finding {
        figures,
        has_held: answered > 0,
    })
}

/// Sends batches and never reads the responses.
pub(super) fn closed_windows(duration: Duration) -> anyhow::Result<Finding> {
    let target = Target::start("bounds = { write_timeout = \"2s\", body_timeout = \"2s\" }\n")?;
    let before = target.memory()?;
    let checks = vec![r#"{"limits":"9/s","key":"k"}"#; 500].join(",");
    let body = format!(r#"{{"checks":[{checks}]}}"#);
    let started = Instant::now();
    let (mut held, mut most) = (Vec::new(), 0);
    while started.elapsed() < duration {
        if held.len() < 100 {
            held.push(closed_window(target.http, body.as_bytes())?);
        } else {
            std::thread::sleep(Duration::from_millis(100));
        }
        most = most.max(target.memory()?.saturating_sub(before));
    }
    let is_served = target.client()?.post("/v1/check", CHECK)?.status == 200;
    let figures = format!(
        "{} connections with 50 responses each; memory grew by at most {most} MiB",
        held.len()
    );
    Ok(Finding {
        figures,
        has_held: is_served && most < 256,
    })
}

fn closed_window(address: SocketAddr, body: &[u8]) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_write_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(CLOSED_WINDOWS)?;
    // The server's settings, its acknowledgement of ours, and its window update.
    stream.read_exact(&mut [0; 9 + 24 + 9 + 13])?;
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/v1/check:batch"),
        (":authority", "localhost"),
    ] {
        block.extend([0, name.len() as u8]);
        block.extend(name.as_bytes());
        block.push(value.len() as u8);
        block.extend(value.as_bytes());
    }
    for number in 0..50_u32 {
        let mut bytes = Vec::new();
        for (kind, flags, payload) in [(1, 4, &block[..]), (0, 1, body)] {
            bytes.extend(&(payload.len() as u32).to_be_bytes()[1..]);
            bytes.extend([kind, flags]);
            bytes.extend((2 * number + 1).to_be_bytes());
            bytes.extend(payload);
        }
        if stream.write_all(&bytes).is_err() {
            break;
        }
    }
    Ok(stream)
}

pub(super) fn before_auth(_: Duration) -> anyhow::Result<Finding> {
    let token = std::env::temp_dir().join(format!("tidegate-attack-{}", std::process::id()));
    std::fs::write(&token, "a-token-that-is-long-enough")?;
    let config = format!(
        "[[token]]\nscopes = [\"check\", \"admin\"]\nfile = \"{}\"\n",
        token.display()
    );
    let target = Target::start(&config);
    std::fs::remove_file(&token)?;
    let target = target?;
    let before = target.memory()?;
    let large = [
        &b"*16\r\n$8192\r\n"[..],
        &[b'x'; 8_192],
        b"\r\n$8192\r\n",
        &[b'x'; 8_000],
    ]
    .concat();
    let mut held = Vec::new();
    for _ in 0..5_000 {
        let Ok(mut stream) = TcpStream::connect(target.resp) else {
            break;
        };
        let _ = stream.write_all(&large);
        held.push(stream);
    }
    let grown = target.memory()?.saturating_sub(before);
    let figures = format!("{} connections; memory grew by {grown} MiB", held.len());
    Ok(Finding {
        figures,
        has_held: grown < 100,
    })
}

/// Sends heads, bodies and commands that stay incomplete, beside a healthy client.
pub(super) fn stalls(duration: Duration) -> anyhow::Result<Finding> {
    let target = Target::start("")?;
    let kinds: [(SocketAddr, &[u8]); 4] = [
        (target.http, b"POST /v1/check HTT"),
        (
            target.http,
            b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{",
        ),
        (target.resp, b"*6\r\n$11\r\nCL.THR"),
        (target.http, CLOSED_WINDOWS),
    ];
    let mut held = Vec::new();
    for number in 0..4_000 {
        let (address, bytes) = kinds[number % 4];
        let Ok(mut stream) = TcpStream::connect(address) else {
            break;
        };
        let _ = stream.write_all(bytes);
        held.push(stream);
    }
    let mut client = target.client()?;
    let (started, mut slowest, mut answered) = (Instant::now(), Duration::ZERO, 0_u64);
    while started.elapsed() < duration {
        let sent_at = Instant::now();
        anyhow::ensure!(
            client.post("/v1/check", CHECK)?.status == 200,
            "a healthy client was refused"
        );
        slowest = slowest.max(sent_at.elapsed());
        answered += 1;
    }
    let figures = format!(
        "{} stalled; {answered} healthy responses, the slowest after {slowest:.1?}",
        held.len()
    );
    Ok(Finding {
        figures,
        has_held: slowest < Duration::from_secs(1),
    })
}
