//! Generated access logs: people who load pages, programs that poll, and an attack.

use std::fmt::Write as _;

/// A log to generate. The same settings give the same log.
#[derive(Clone, Copy, Debug)]
pub struct AccessLog {
    /// The seed of the random numbers.
    pub seed: u64,
    /// The start in seconds since 1970.
    pub start: u64,
    /// The length in seconds.
    pub length: u64,
    /// The number of people. Each loads pages of 2 to 9 requests, with pauses.
    pub people: u32,
    /// The number of programs. Each polls at an even interval.
    pub programs: u32,
    /// An attack, if any.
    pub attack: Option<Attack>,
}

/// A flood from several addresses.
#[derive(Clone, Copy, Debug)]
pub struct Attack {
    /// The start in seconds since 1970.
    pub start: u64,
    /// The length in seconds.
    pub length: u64,
    /// The number of addresses.
    pub addresses: u32,
    /// The requests per second of each address.
    pub rate: u32,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogLine {
    /// The time in milliseconds since 1970.
    pub at_ms: u64,
    /// The client's address.
    pub address: String,
    /// The path.
    pub path: String,
}

const PAGES: [&str; 5] = ["/", "/products", "/search?q=tide", "/cart", "/account"];

impl AccessLog {
    /// Generates the requests in the order of time.
    #[must_use]
    pub fn requests(&self) -> Vec<LogLine> {
        let mut random = fastrand::Rng::with_seed(self.seed);
        let mut lines = Vec::new();
        for person in 0..self.people {
            self.person(person, &mut random, &mut lines);
        }
        for program in 0..self.programs {
            let address = format!("2001:db8:0:{program:x}::{}", random.u16(1..));
            let interval = random.u64(5_000..30_000);
            let mut at = self.start * 1_000 + random.u64(..interval);
            while at < (self.start + self.length) * 1_000 {
                push(&mut lines, at, &address, "/api/status");
                at += interval + random.u64(..20);
            }
        }
        if let Some(attack) = self.attack {
            attack.requests(&mut random, &mut lines);
        }
        lines.sort();
        lines
    }

    /// A person has a few visits, each with pages and pauses between them.
    fn person(&self, person: u32, random: &mut fastrand::Rng, lines: &mut Vec<LogLine>) {
        let address = format!(
            "198.{}.{}.{}",
            18 + person / 65_536,
            person / 256 % 256,
            person % 256
        );
        for _ in 0..random.u32(1..4) {
            let mut at = (self.start + random.u64(..self.length)) * 1_000;
            for _ in 0..random.u32(1..12) {
                let page = PAGES[random.usize(..PAGES.len())];
                let mut part = at;
                for asset in 0..random.u32(2..10) {
                    if part < (self.start + self.length) * 1_000 {
                        let path = format!("/static/{asset}.js");
                        push(lines, part, &address, if asset == 0 { page } else { &path });
                    }
                    part += random.u64(20..250);
                }
                at = part + random.u64(4_000..60_000);
            }
        }
    }
}

impl Attack {
    fn requests(&self, random: &mut fastrand::Rng, lines: &mut Vec<LogLine>) {
        for number in 0..self.addresses {
            let address = format!("203.0.{}.{}", 113 + number / 256, number % 256);
            for _ in 0..u64::from(self.rate) * self.length {
                let at = self.start * 1_000 + random.u64(..self.length * 1_000);
                push(lines, at, &address, "/login");
            }
        }
    }
}

fn push(lines: &mut Vec<LogLine>, at_ms: u64, address: &str, path: &str) {
    lines.push(LogLine {
        at_ms,
        address: address.to_owned(),
        path: path.to_owned(),
    });
}

/// Writes the combined log format, with whole seconds.
#[must_use]
pub fn combined(lines: &[LogLine]) -> String {
    let mut text = String::new();
    for line in lines {
        let (seconds, size) = (line.at_ms / 1_000, 200 + line.at_ms % 5_000);
        let (day, clock) = (seconds / 86_400, seconds % 86_400);
        let _ = writeln!(
            text,
            "{} - - [{}:{:02}:{:02}:{:02} +0000] \"GET {} HTTP/1.1\" 200 {size} \"-\" \"Mozilla/5.0\"",
            line.address,
            date(day),
            clock / 3_600,
            clock / 60 % 60,
            clock % 60,
            line.path
        );
    }
    text
}

/// Writes JSON lines as Caddy does, with milliseconds.
#[must_use]
pub fn caddy(lines: &[LogLine]) -> String {
    let mut text = String::new();
    for line in lines {
        let (seconds, ms) = (line.at_ms / 1_000, line.at_ms % 1_000);
        let _ = writeln!(
            text,
            "{{\"level\":\"info\",\"ts\":{seconds}.{ms:03},\"request\":{{\"remote_ip\":\"{}\",\
             \"method\":\"GET\",\"uri\":\"{}\"}},\"size\":100,\"status\":200}}",
            line.address, line.path
        );
    }
    text
}

/// Returns the date of a day in January or February 2026, as the common log format writes it.
fn date(day: u64) -> String {
    /// 2026-01-01 in days since 1970.
    const NEW_YEAR: u64 = 20_454;
    let day = day.checked_sub(NEW_YEAR).expect("a day in 2026") + 1;
    match day {
        1..=31 => format!("{day:02}/Jan/2026"),
        _ => format!("{:02}/Feb/2026", day - 31),
    }
}
