//! The load generator: calls over HTTP/2 with bodies that were encoded before, on the second core.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use h2::client::SendRequest;

use crate::server::Sample;

/// The duration of a sample.
const SAMPLE: Duration = Duration::from_millis(1_500);
const CONNECTIONS: usize = 4;

/// Calls of one method.
#[derive(Clone)]
pub(crate) struct GrpcLoad {
    pub(crate) port: u16,
    pub(crate) path: &'static str,
    pub(crate) bodies: Arc<Vec<Bytes>>,
    pub(crate) callers: usize,
}

/// Calls for the duration of a sample. Returns the number of calls, and the figures.
pub(crate) fn grpc(load: &GrpcLoad) -> anyhow::Result<(f64, Sample)> {
    let load = load.clone();
    // A thread of its own, so that only it is pinned.
    let thread = std::thread::spawn(move || {
        if let Some(core) = core_affinity::get_core_ids().and_then(|cores| cores.get(1).copied()) {
            core_affinity::set_for_current(core);
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(run(&load))
    });
    let (mut latencies, elapsed) = thread
        .join()
        .map_err(|_| anyhow::anyhow!("the load generator panicked"))??;
    ensure!(!latencies.is_empty(), "no call was answered");
    latencies.sort_unstable();
    let at = |share: f64| {
        let place = ((latencies.len() as f64 * share) as usize).min(latencies.len() - 1);
        latencies[place].as_secs_f64() * 1e3
    };
    let count = latencies.len() as f64;
    Ok((
        count,
        Sample {
            rate: count / elapsed.as_secs_f64(),
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            p999_ms: at(0.999),
            cpu_us: 0.0,
        },
    ))
}

async fn run(load: &GrpcLoad) -> anyhow::Result<(Vec<Duration>, Duration)> {
    let tasks = tokio::task::LocalSet::new();
    tasks
        .run_until(async {
            let mut connections = Vec::new();
            for _ in 0..CONNECTIONS {
                let stream = tokio::net::TcpStream::connect(("127.0.0.1", load.port)).await?;
                stream.set_nodelay(true)?;
                let (sender, connection) = h2::client::handshake(stream).await?;
                tokio::task::spawn_local(connection);
                connections.push(sender);
            }
            let begun = Instant::now();
            let callers = (0..load.callers).map(|number| {
                let sender = connections[number % CONNECTIONS].clone();
                tokio::task::spawn_local(call_repeatedly(load.clone(), sender, number, begun))
            });
            let callers: Vec<_> = callers.collect();
            let mut latencies = Vec::new();
            for caller in callers {
                latencies.extend(caller.await??);
            }
            Ok((latencies, begun.elapsed()))
        })
        .await
}

async fn call_repeatedly(
    load: GrpcLoad,
    mut sender: SendRequest<Bytes>,
    number: usize,
    begun: Instant,
) -> anyhow::Result<Vec<Duration>> {
    let mut latencies = Vec::new();
    let mut random = fastrand::Rng::with_seed(number as u64);
    let url = format!("http://127.0.0.1:{}{}", load.port, load.path);
    while begun.elapsed() < SAMPLE {
        let body = load.bodies[random.usize(..load.bodies.len())].clone();
        let sent = Instant::now();
        call(&mut sender, &url, body).await?;
        latencies.push(sent.elapsed());
    }
    Ok(latencies)
}

async fn call(sender: &mut SendRequest<Bytes>, url: &str, body: Bytes) -> anyhow::Result<()> {
    let request = http::Request::post(url)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())?;
    let mut ready = sender.clone().ready().await?;
    let (response, mut stream) = ready.send_request(request, false)?;
    stream.send_data(body, true)?;
    let mut body = response.await?.into_body();
    while let Some(data) = body.data().await {
        let length = data?.len();
        body.flow_control().release_capacity(length)?;
    }
    let trailers = body.trailers().await?.context("trailers are missing")?;
    let status = trailers.get("grpc-status").map(http::HeaderValue::as_bytes);
    ensure!(status == Some(b"0"), "the call failed: {trailers:?}");
    Ok(())
}
