//! The servers under measurement. Those in Go are built from their modules at the first run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, ensure};
use tidegate_testkit::Folder;
use tidegate_testkit::redis::free_port;

use super::load::GrpcLoad;
use super::{CRAB, GUBERNATOR, OURS, messages};
use crate::server::{Client, Load, Server, throttlecrab};

/// The peers in Go: the program, its module, its version, and its package.
const RATELIMIT: [&str; 4] = [
    "ratelimit",
    "github.com/envoyproxy/ratelimit",
    "v1.4.1-0.20260122083618-3fb702589d36",
    "github.com/envoyproxy/ratelimit/src/service_cmd",
];
const GUBERNATOR_GO: [&str; 4] = [
    "gubernator",
    "github.com/mailgun/gubernator/v2",
    "v2.4.0",
    "github.com/mailgun/gubernator/v2/cmd/gubernator",
];

const RULES: &str = "domain: bench\ndescriptors:\n- key: user\n  rate_limit: {unit: minute, requests_per_unit: 100000000}\n";

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// All servers of the benchmark.
pub(super) struct Contenders {
    callers: usize,
    _rules: Folder,
    _redis: Server,
    ratelimit: [(Server, u16); 2],
    tidegate: [(Server, u16); 2],
    gubernator: (Server, u16),
    crab: (Server, u16),
}

impl Contenders {
    pub(super) fn start(callers: usize) -> anyhow::Result<Self> {
        let rules = Folder::new();
        std::fs::create_dir_all(rules.path().join("ratelimit/config"))?;
        rules.write("ratelimit/config/bench.yaml", RULES);
        let redis_port = free_port();
        let text = redis_port.to_string();
        let arguments = ["--port", &text, "--save", "", "--appendonly", "no"];
        let redis = Server::start(Path::new("redis-server"), &arguments, &[], redis_port)?;
        let ratelimit = build(RATELIMIT)?;
        let ratelimit = [false, true].map(|pipelines| {
            let mut more = vec![("USE_STATSD", "false"), ("LOG_LEVEL", "error")];
            if pipelines {
                more.extend([
                    ("REDIS_PIPELINE_WINDOW", "150us"),
                    ("REDIS_PIPELINE_LIMIT", "8"),
                ]);
            }
            start_service(&ratelimit, &[], &rules, Some(redis_port), &more)
        });
        let ours = std::env::var_os("TIDEGATE_BIN")
            .context("TIDEGATE_BIN is not set: run `cargo xtask bench grpc`")?;
        // The same environment as for envoyproxy/ratelimit.
        let tidegate = [None, Some(redis_port)].map(|redis| {
            let more = [
                ("LOG_LEVEL", "error"),
                ("TIDEGATE__GUBERNATOR__ENABLED", "true"),
            ];
            start_service(Path::new(&ours), &["serve"], &rules, redis, &more)
        });
        let [a, b] = ratelimit;
        let [c, d] = tidegate;
        Ok(Self {
            callers,
            _redis: redis,
            ratelimit: [a?, b?],
            tidegate: [c?, d?],
            gubernator: start_gubernator(&rules)?,
            crab: start_crab()?,
            _rules: rules,
        })
    }

    fn load(
        &self,
        name: &'static str,
        (server, port): &(Server, u16),
        path: &'static str,
        bodies: Vec<bytes::Bytes>,
    ) -> Load {
        Load {
            name,
            pid: server.pid(),
            client: Client::Grpc(GrpcLoad {
                port: *port,
                path,
                bodies: Arc::new(bodies),
                callers: self.callers,
            }),
        }
    }

    pub(super) fn ratelimit(&self, name: &'static str, pipelines: bool) -> Load {
        let server = &self.ratelimit[usize::from(pipelines)];
        self.load(
            name,
            server,
            SHOULD_RATE_LIMIT,
            messages::should_rate_limit(),
        )
    }

    pub(super) fn tidegate(&self, on_redis: bool) -> Load {
        let server = &self.tidegate[usize::from(on_redis)];
        self.load(
            OURS,
            server,
            SHOULD_RATE_LIMIT,
            messages::should_rate_limit(),
        )
    }

    pub(super) fn gubernator(&self) -> Load {
        let path = "/pb.gubernator.V1/GetRateLimits";
        self.load(
            GUBERNATOR,
            &self.gubernator,
            path,
            messages::get_rate_limits(),
        )
    }

    pub(super) fn own_gubernator(&self) -> Load {
        let path = "/pb.gubernator.V1/GetRateLimits";
        self.load(OURS, &self.tidegate[0], path, messages::get_rate_limits())
    }

    pub(super) fn crab(&self) -> Load {
        let path = "/throttlecrab.RateLimiter/Throttle";
        self.load(CRAB, &self.crab, path, messages::throttle())
    }

    /// Returns the ports of our server, in memory and on Redis.
    pub(super) fn own_ports(&self) -> [u16; 2] {
        let [(_, memory), (_, redis)] = &self.tidegate;
        [*memory, *redis]
    }
}

/// Starts a rate limit service with the environment variables of envoyproxy/ratelimit.
fn start_service(
    program: &Path,
    arguments: &[&str],
    rules: &Folder,
    redis: Option<u16>,
    more: &[(&str, &str)],
) -> anyhow::Result<(Server, u16)> {
    let ports: [u16; 3] = std::array::from_fn(|_| free_port());
    let [http, grpc, debug] = ports.map(|port| port.to_string());
    let root = rules.path().display().to_string();
    let mut environment = vec![
        ("RUNTIME_ROOT", root.as_str()),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("HOST", "127.0.0.1"),
        ("GRPC_HOST", "127.0.0.1"),
        ("DEBUG_HOST", "127.0.0.1"),
        ("PORT", &http),
        ("GRPC_PORT", &grpc),
        ("DEBUG_PORT", &debug),
    ];
    environment.extend(more);
    let url = redis.map(|port| format!("127.0.0.1:{port}"));
    if let Some(url) = &url {
        environment.extend([("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", url)]);
    }
    let server = Server::start(program, arguments, &environment, ports[1])?;
    Ok((server, ports[1]))
}

fn start_gubernator(folder: &Folder) -> anyhow::Result<(Server, u16)> {
    let ports: [u16; 2] = std::array::from_fn(|_| free_port());
    let [grpc, http] = ports.map(|port| format!("127.0.0.1:{port}"));
    // It does not start without a file.
    let config = format!(
        "GUBER_GRPC_ADDRESS={grpc}\nGUBER_HTTP_ADDRESS={http}\nGUBER_ADVERTISE_ADDRESS={grpc}\nGUBER_LOG_LEVEL=error\n"
    );
    let config = folder.write("gubernator.conf", &config);
    let arguments = ["-config", &config];
    let server = Server::start(&build(GUBERNATOR_GO)?, &arguments, &[], ports[0])?;
    Ok((server, ports[0]))
}

fn start_crab() -> anyhow::Result<(Server, u16)> {
    let port = free_port();
    let text = port.to_string();
    let arguments = [
        "--grpc",
        "--grpc-host",
        "127.0.0.1",
        "--grpc-port",
        &text,
        "--log-level",
        "error",
    ];
    let server = Server::start(&throttlecrab()?, &arguments, &[], port)?;
    Ok((server, port))
}

/// Builds a peer from its Go module into the target folder, if it is not there.
fn build([name, module, version, package]: [&str; 4]) -> anyhow::Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peers");
    let program = folder.join("bin").join(name);
    if program.exists() {
        return Ok(program);
    }
    eprintln!("> go build {package}@{version} (takes minutes)");
    let work = folder.join(format!("go-{name}"));
    std::fs::create_dir_all(&work)?;
    std::fs::create_dir_all(folder.join("bin"))?;
    std::fs::write(
        work.join("go.mod"),
        format!("module bench\n\ngo 1.21\n\nrequire {module} {version}\n"),
    )?;
    let status = Command::new("go")
        .args(["build", "-mod=mod", "-o"])
        .arg(std::path::absolute(&program)?)
        .arg(package)
        .current_dir(&work)
        .status()
        .context("go is not installed: expected Go 1.21 or later")?;
    ensure!(status.success(), "failed to build {package}");
    Ok(program)
}
