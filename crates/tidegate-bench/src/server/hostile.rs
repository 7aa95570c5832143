//! Measures the latency of healthy clients beside thousands of idle and a thousand hostile
//! connections.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::contenders::Contenders;
use super::load::{Sample, http};
use crate::spread::Spread;

const IDLE: usize = 5_000;
const HOSTILE: usize = 1_000;
const BODY: &str = r#"{"limits":"gcra 1000000/minute","key":"KEY"}"#;

pub(super) fn measure(contenders: &Contenders, rounds: usize) -> anyhow::Result<()> {
    let (http_address, resp_address, pid) = contenders.tidegate();
    let sample = || http(http_address.port(), "/v1/check", BODY, 10).map(|(_, sample)| sample);
    let p99 = |samples: &[Sample]| {
        samples
            .iter()
            .map(|sample| sample.p99_ms)
            .collect::<Vec<f64>>()
    };
    let is_over = AtomicBool::new(false);
    sample()?;
    let memory_before = memory(pid)?;
    let alone = (0..rounds)
        .map(|_| sample())
        .collect::<Result<Vec<_>, _>>()?;
    let (crowded, memory_after) = std::thread::scope(|scope| {
        let attacking = scope.spawn(|| {
            if let Some(core) = core_affinity::get_core_ids().unwrap_or_default().get(1) {
                core_affinity::set_for_current(*core);
            }
            let idle: Vec<_> = (0..IDLE)
                .map_while(|_| TcpStream::connect(http_address).ok())
                .collect();
            // A hostile client reconnects when its connection is closed.
            let mut hostile: Vec<Option<TcpStream>> = (0..HOSTILE).map(|_| None).collect();
            while !is_over.load(Ordering::Relaxed) {
                // Reconnects a few at a time, to burden the server and not the load generator.
                for (number, place) in hostile.iter_mut().enumerate() {
                    if number % 20 == 0 {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    let is_closed = place.as_ref().is_none_or(|stream| {
                        let mut byte = [0];
                        matches!(stream.peek(&mut byte), Ok(0))
                            || number % 4 == 3 && (&*stream).write(b"PING\r\n").is_err()
                    });
                    if is_closed {
                        *place = attack(number, http_address, resp_address);
                    }
                }
            }
            idle.len()
        });
        std::thread::sleep(Duration::from_secs(2));
        let crowded = (0..rounds).map(|_| sample()).collect::<Result<Vec<_>, _>>();
        let memory_after = memory(pid);
        is_over.store(true, Ordering::Relaxed);
        let idle = attacking.join().unwrap_or_default();
        println!("{idle} idle and {HOSTILE} hostile connections; 10 healthy ones over HTTP:");
        crowded.and_then(|crowded| Ok((crowded, memory_after?)))
    })?;
    let (alone, crowded) = (p99(&alone), p99(&crowded));
    let ratio = Spread::of_ratios(&crowded, &alone);
    let verdict = if ratio.median <= 2.0 { "met" } else { "MISSED" };
    println!(
        "- p99 without the others {} ms, with them {} ms",
        Spread::of(&alone),
        Spread::of(&crowded)
    );
    println!("- ratio {ratio}, at most 2: {verdict}");
    println!(
        "- memory grew by {} bytes per connection\n",
        memory_after.saturating_sub(memory_before) / (IDLE + HOSTILE) as u64
    );
    Ok(())
}

fn memory(pid: u32) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm"))?;
    Ok(text
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok())
        .unwrap_or_default()
        * 4_096)
}

fn attack(
    number: usize,
    http: std::net::SocketAddr,
    resp: std::net::SocketAddr,
) -> Option<TcpStream> {
    let (address, bytes): (_, &[u8]) = match number % 4 {
        0 => (http, b"POST /v1/check HTT"),
        1 => (
            http,
            b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{",
        ),
        2 => (resp, b"*6\r\n$11\r\nCL.THR"),
        _ => (resp, b"PING\r\n"),
    };
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_nonblocking(true).ok()?;
    stream.write_all(bytes).ok()?;
    Some(stream)
}
