//! Measures the time that a layer adds to an allowed request, in memory. It is compared with the
//! bare service and tower_governor.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use anyhow::Context as _;
use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{Request, Response};
use tidegate::tower::{HeaderFormat, Limits, RateLimitLayer, key};
use tidegate::{Gate, Limiter, PolicySet, Rules};
use tower::{Layer, Service, service_fn};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

use crate::spread::Spread;

/// The options of `bench tower`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Number of rounds, each with one sample per contender
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Number of requests per sample
    #[arg(long, default_value_t = 200_000)]
    requests: u32,
    /// Number of client addresses
    #[arg(long, default_value_t = 10_000)]
    clients: u32,
    /// Only run the contender of this name, for a profiler
    #[arg(long)]
    profile: Option<String>,
}

/// The most that a layer without headers may add.
const NO_HEADERS_BAR_NS: f64 = 250.0;
/// The most that a second policy may cost, as a multiple of one.
const TWO_POLICIES_BAR: f64 = 1.6;

/// High enough that no request is denied.
const POLICY: &str = "1000000/second";

type Sample<'a> = Box<dyn FnMut(u32, u32) + 'a>;

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let mut contenders: Vec<(&str, Sample<'_>)> = vec![
        ("bare service", sample(service_fn(handle))),
        ("tidegate", sample(layer(|limits| limits)?)),
        (
            "tidegate, Retry-After only",
            sample(layer(|limits| limits.headers(HeaderFormat::Off))?),
        ),
        ("tidegate, 2 limits", sample(two_limits()?)),
        ("tower_governor", governor(false)?),
        ("tower_governor, headers", governor(true)?),
    ];
    if let Some(wanted) = &options.profile {
        let contender = contenders.iter_mut().find(|(name, _)| name == wanted);
        let (_, sample) = contender.context("--profile: expected the name of a contender")?;
        (0..options.rounds).for_each(|_| sample(options.requests, options.clients));
        return Ok(());
    }
    let allocations: Vec<f64> = contenders
        .iter_mut()
        .map(|(_, sample)| {
            // Warms up: every address is known, and one-time allocations are done.
            sample(options.clients * 2, options.clients);
            let count = 10_000;
            let info = allocation_counter::measure(|| sample(count, options.clients));
            info.count_total as f64 / f64::from(count)
        })
        .collect();
    let mut figures = vec![Vec::new(); contenders.len()];
    for _ in 0..options.rounds {
        for ((_, sample), figures) in contenders.iter_mut().zip(&mut figures) {
            let started = Instant::now();
            sample(options.requests, options.clients);
            figures.push(started.elapsed().as_nanos() as f64 / f64::from(options.requests));
        }
    }
    println!(
        "Nanoseconds per request without a socket, one thread, {} addresses: median (minimum-maximum) of {}",
        options.clients, options.rounds
    );
    println!(
        "interleaved rounds. The added time is the difference to the bare service in the same round.\n"
    );
    println!(
        "| contender | ns per request | added ns | bar | added allocations |\n|---|---:|---:|---:|---:|"
    );
    let added = |index: usize| {
        let pairs = figures[index].iter().zip(&figures[0]);
        Spread::of(
            &pairs
                .map(|(figure, bare)| figure - bare)
                .collect::<Vec<_>>(),
        )
    };
    for (index, ((name, _), figure)) in contenders.iter().zip(&figures).enumerate() {
        let bar = match index {
            // tower_governor with its headers is the last one.
            1 => Some(added(contenders.len() - 1).median),
            2 => Some(NO_HEADERS_BAR_NS),
            3 => Some(TWO_POLICIES_BAR * added(1).median),
            _ => None,
        };
        let added = added(index);
        let bar = bar.map_or(String::new(), |bar| {
            let missed = if added.median > bar { " missed" } else { "" };
            format!("{bar:.0}{missed}")
        });
        let count = allocations[index] - allocations[0];
        println!(
            "| {name} | {:.0} | {added:.0} | {bar} | {count:.2} |",
            Spread::of(figure)
        );
    }
    measure_direct_calls(options)
}

/// Measures a policy set against a single policy: the lookup, the counters by policy and outcome,
/// and the verdict.
fn measure_direct_calls(options: &Options) -> anyhow::Result<()> {
    let limiter = Limiter::memory(POLICY.parse()?);
    let gate = Gate::memory(PolicySet::new().with("api", Rules::new(POLICY.parse()?))?);
    let keys: Vec<String> = (0..options.clients)
        .map(|number| format!("ip:10.0.{number}"))
        .collect();
    let mut figures = [Vec::new(), Vec::new()];
    for _ in 0..options.rounds {
        let started = Instant::now();
        for key in keys.iter().cycle().take(options.requests as usize) {
            assert!(limiter.check(key).now()?.is_allowed());
        }
        figures[0].push(started.elapsed().as_nanos() as f64 / f64::from(options.requests));
        let started = Instant::now();
        for key in keys.iter().cycle().take(options.requests as usize) {
            assert!(gate.check("api", key).now()?.is_allowed());
        }
        figures[1].push(started.elapsed().as_nanos() as f64 / f64::from(options.requests));
    }
    let [limiter, gate] = figures.map(|figures| Spread::of(&figures));
    println!("\nWithout a layer, ns per check: Limiter::check {limiter}, Gate::check {gate}");
    Ok(())
}

async fn handle(_: Request<Body>) -> Result<Response<Body>, Infallible> {
    Ok(Response::new(Body::empty()))
}

fn layer(set: impl FnOnce(Limits) -> Limits) -> anyhow::Result<impl Served> {
    let limits = set(Limits::memory(POLICY.parse()?, key::client_address()));
    Ok(RateLimitLayer::new(limits).layer(service_fn(handle)))
}

fn two_limits() -> anyhow::Result<impl Served> {
    let rules = || Ok::<_, anyhow::Error>(Rules::new(POLICY.parse()?));
    let gate = Gate::memory(
        PolicySet::new()
            .with("address", rules()?)?
            .with("user", rules()?)?,
    );
    let limits = Limits::new(gate)
        .limit("address", key::client_address())?
        .limit("user", key::header("x-user"))?;
    Ok(RateLimitLayer::new(limits).layer(service_fn(handle)))
}

fn governor(has_headers: bool) -> anyhow::Result<Sample<'static>> {
    let mut builder = GovernorConfigBuilder::default();
    builder.per_nanosecond(1_000).burst_size(1_000_000);
    let missing = || anyhow::anyhow!("invalid governor configuration");
    Ok(if has_headers {
        let config = builder.use_headers().finish().ok_or_else(missing)?;
        sample(GovernorLayer::new(config).layer(service_fn(handle)))
    } else {
        let config = builder.finish().ok_or_else(missing)?;
        sample(GovernorLayer::new(config).layer(service_fn(handle)))
    })
}

/// A service that responds immediately.
trait Served {
    fn serve(&mut self, request: Request<Body>);
}

impl<S: Service<Request<Body>, Response = Response<B>, Error: std::fmt::Debug>, B> Served for S {
    fn serve(&mut self, request: Request<Body>) {
        let mut context = Context::from_waker(Waker::noop());
        assert!(self.poll_ready(&mut context).is_ready());
        let Poll::Ready(response) = pin!(self.call(request)).poll(&mut context) else {
            return;
        };
        assert_eq!(response.expect("the service succeeds").status(), 200);
    }
}

/// Returns a function that sends a number of requests from a number of addresses, in turn.
fn sample<'a>(mut service: impl Served + 'a) -> Sample<'a> {
    let mut next = 0_u32;
    Box::new(move |requests, clients| {
        for _ in 0..requests {
            next = next.wrapping_add(1);
            let [.., a, b, c] = (next % clients).to_be_bytes();
            let mut request = Request::new(Body::empty());
            request
                .headers_mut()
                .insert("x-user", http::HeaderValue::from_static("42"));
            request
                .extensions_mut()
                .insert(ConnectInfo(SocketAddr::from(([10, a, b, c], 1_234))));
            service.serve(request);
        }
    })
}
