//! The options of `tidegate replay`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use tidegate::Name;
use tidegate_insight::log::{CostExpression, KeyExpression, LogFormat, parse_time};
use tidegate_insight::replay::{ClientBehavior, KeyOrder, find};

/// Replay access logs through policies, or find a limit for them
///
/// Reads nginx's and Apache's combined format, JSON lines of nginx, Caddy, Traefik and Envoy, and
/// traces of `tidegate simulate` and `serve --record`. Compressed files (gzip) are recognized. Files
/// of several servers are merged by time. Lines that cannot be read are counted and left out.
///
/// Without --find it shows which keys the policies would have limited, when and how often, and the
/// effect of larger and smaller limits. With --find it recommends a token bucket: the tightest one
/// that leaves 99.9 % of keys untouched. With --attack it recommends the loosest one that stops that
/// period's additional traffic. The search uses the first half of the log, the check the second.
///
/// Exit code: 0, 2 if an option or all lines are invalid, 130 after Ctrl-C (with partial results).
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReplayOptions {
    /// Logs, or - for standard input
    #[arg(required = true, value_name = "LOG")]
    pub(super) logs: Vec<String>,
    /// Policy to try; several are compared
    #[arg(long, short, value_name = "POLICY")]
    pub(super) policy: Vec<String>,
    /// Key: address, address/64 (IPv6 by prefix), user, host, method, path, path:/users/*/orders,
    /// header:NAME, field:NAME of a JSON object; joined with +, as in user+path:/login [default:
    /// address, or the key in a trace]
    #[arg(long, short, value_name = "EXPRESSION")]
    pub(super) key: Option<KeyExpression>,
    /// Cost: a number, bytes, bytes/1000, field:NAME, field:NAME/1000 [default: 1, or the cost in a
    /// trace]
    #[arg(long, short, value_name = "EXPRESSION")]
    pub(super) cost: Option<CostExpression>,
    /// Only the checks of this policy, in a trace of `serve --record`
    #[arg(long, value_name = "POLICY")]
    pub(super) recorded: Option<String>,
    /// Format of the logs
    #[arg(long, value_enum, default_value = "auto", value_name = "FORMAT")]
    pub(super) format: FormatOption,
    /// Behaviour of clients after a denial: as-logged, a denied request is lost; obey, they wait for
    /// Retry-After, up to ten times; hammer, they retry every second, up to sixty times; backoff,
    /// after 1, 2, 4, … 64 seconds. The curve always has the requests as logged
    #[arg(
        long,
        value_enum,
        default_value = "as-logged",
        value_name = "BEHAVIOUR"
    )]
    clients: ClientsOption,
    /// Recommend a rate and a burst
    #[arg(long)]
    pub(super) find: bool,
    /// With --find: least share of keys that are never limited, in per cent
    #[arg(
        long,
        requires = "find",
        default_value = "99.9",
        value_name = "PERCENT"
    )]
    untouched: Percent,
    /// With --find: period of an attack, as in 2026-01-02T10:00..2026-01-02T10:30 (UTC)
    #[arg(long, requires = "find", value_name = "FROM..TO")]
    attack: Option<String>,
    /// With --attack: least share of the additional traffic to stop, in per cent
    #[arg(
        long,
        requires = "attack",
        default_value = "99",
        value_name = "PERCENT"
    )]
    stop: Percent,
    /// With --attack: most keys outside the attack that may be limited, in per cent
    #[arg(
        long,
        requires = "attack",
        default_value = "0.1",
        value_name = "PERCENT"
    )]
    touch: Percent,
    /// With --find: the tightest limit is the one that lets the least through in this time
    #[arg(long, requires = "find", default_value = "1m", value_parser = humantime::parse_duration)]
    window: Duration,
    /// With --find: name of the policy in the configuration to paste
    #[arg(long, requires = "find", default_value = "api", value_name = "NAME")]
    pub(super) name: Name,
    /// Number of keys shown [default: 10; all with csv]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Order of the keys
    #[arg(long, value_enum, value_name = "ORDER", default_value = "denied")]
    sort: SortOption,
    /// Output format: table, json or csv (one line per key)
    #[arg(
        long,
        short,
        value_enum,
        default_value = "table",
        value_name = "FORMAT"
    )]
    pub(super) output: ReplayOutput,
    /// Also write a self-contained page with plots
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Leave out the curve from limit to denials, which reads the requests again
    #[arg(long)]
    pub(super) no_curve: bool,
    /// Keep times as they are. By default the requests of one second are spread evenly over it if
    /// the log has whole seconds
    #[arg(long)]
    pub(super) no_spread: bool,
    /// Number of keys whose counters are kept at a time, 46 bytes each [default: 1000000]
    #[arg(long, value_name = "N")]
    max_keys: Option<u64>,
}

const EXAMPLES: &str = "\
Examples:
  tidegate replay examples/logs/access.log.gz --policy '60/minute burst=20'
  tidegate replay access.log* --policy '100/minute' --policy '10/s burst=50' --html report.html
  tidegate replay access.log --find
  tidegate replay access.log --find --attack 2026-01-02T10:00..2026-01-02T10:30
  tidegate replay caddy.log -k 'header:x-api-key' -c bytes/1000 -p '10_000/minute' -o json
  zcat access.log.*.gz | tidegate replay - -k address/64 -p '5/s' --sort regular";

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatOption {
    Auto,
    Combined,
    Json,
    Trace,
}

impl FormatOption {
    pub(super) const fn known(self) -> Option<LogFormat> {
        match self {
            Self::Auto => None,
            Self::Combined => Some(LogFormat::Combined),
            Self::Json => Some(LogFormat::Json),
            Self::Trace => Some(LogFormat::Trace),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ClientsOption {
    AsLogged,
    Obey,
    Hammer,
    Backoff,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SortOption {
    /// Most denied requests first
    Denied,
    /// Most requests first
    Requests,
    /// Most regular first, which are probably programs
    Regular,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReplayOutput {
    Table,
    Json,
    Csv,
}

/// A share in millionths.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Percent(u64);

impl std::str::FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.trim_end_matches(['%', ' ']).parse::<f64>().ok();
        let number = number.filter(|number| (0.0..=100.0).contains(number));
        let ppm = number.map(|number| (number * 1e4).round() as u64);
        ppm.map(Self)
            .ok_or_else(|| "expected a number from 0 to 100".to_owned())
    }
}

impl ReplayOptions {
    pub(super) const fn clients(&self) -> ClientBehavior {
        match self.clients {
            ClientsOption::AsLogged => ClientBehavior::AsLogged,
            ClientsOption::Obey => ClientBehavior::Obey,
            ClientsOption::Hammer => ClientBehavior::Hammer,
            ClientsOption::Backoff => ClientBehavior::Backoff,
        }
    }

    pub(super) const fn sort(&self) -> KeyOrder {
        match self.sort {
            SortOption::Denied => KeyOrder::Denied,
            SortOption::Requests => KeyOrder::Requests,
            SortOption::Regular => KeyOrder::Regular,
        }
    }

    pub(super) fn keys_shown(&self) -> usize {
        let default = match self.output {
            ReplayOutput::Csv => usize::MAX,
            _ => 10,
        };
        self.top.unwrap_or(default)
    }

    pub(super) const fn replay_options(&self) -> tidegate_insight::replay::ReplayOptions {
        tidegate_insight::replay::ReplayOptions {
            clients: self.clients(),
            max_keys: self.max_keys,
        }
    }

    pub(super) fn goal(&self) -> anyhow::Result<find::Goal> {
        let attack_us = self.attack.as_deref().map(period).transpose()?;
        let touched_ppm = match attack_us {
            Some(_) => self.touch.0,
            None => 1_000_000 - self.untouched.0,
        };
        Ok(find::Goal {
            touched_ppm,
            stopped_ppm: self.stop.0,
            attack_us,
            stretch: self.window,
        })
    }
}

/// Parses `FROM..TO`.
fn period(text: &str) -> anyhow::Result<(u64, u64)> {
    let (from, to) = text
        .split_once("..")
        .with_context(|| format!("--attack {text}: expected FROM..TO"))?;
    let time = |text: &str| {
        let with_seconds = format!("{}:00", text.trim());
        let parsed = parse_time(text).or_else(|| parse_time(&with_seconds));
        parsed.with_context(|| {
            format!("--attack {text}: expected a time such as 2026-01-02T10:00 or 1767348000")
        })
    };
    let (from, to) = (time(from)?, time(to)?);
    if from >= to {
        bail!("--attack {text}: expected a start before the end");
    }
    Ok((from, to))
}
