//! The targets of a load: a store, or a server over HTTP, RESP or gRPC.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, bail};
use tidegate::{AnyStore, Limiter, Policy, StoreUrl};

use super::BenchOptions;

/// The timeout of a read or a connection.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// The answer to one call.
pub(super) struct BenchAnswer {
    pub(super) checks: u64,
    pub(super) denied: u64,
}

/// One caller, with its own connection to a server.
pub(super) trait BenchCaller: Send {
    /// Sends one check, or a pipeline of them.
    fn call(&mut self, next_key: &mut dyn FnMut() -> u64) -> anyhow::Result<BenchAnswer>;
}

pub(super) enum Target {
    Store(Limiter<AnyStore>),
    Http {
        address: String,
        body: String,
    },
    Resp {
        address: String,
        words: String,
        pipeline: u64,
    },
    Grpc {
        address: String,
        domain: String,
    },
}

impl Target {
    pub(super) fn parse(options: &BenchOptions, policy: &Policy) -> anyhow::Result<Self> {
        let text = options.target.trim_end_matches('/');
        if options.pipeline > 1 && !text.starts_with("resp://") {
            bail!("--pipeline is for resp://");
        }
        if let Some(address) = text.strip_prefix("http://") {
            // The key is put between both parts.
            let body = format!("{{\"limits\":\"{policy}\",\"key\":\"");
            return Ok(Self::Http {
                address: with_port(address, 8080),
                body,
            });
        }
        if let Some(address) = text.strip_prefix("resp://") {
            return Ok(Self::Resp {
                address: with_port(address, 6379),
                words: throttle_words(policy)?,
                pipeline: options.pipeline,
            });
        }
        if let Some(address) = text.strip_prefix("grpc://") {
            return Ok(Self::Grpc {
                address: with_port(address, 8081),
                domain: options.domain.clone(),
            });
        }
        if text.starts_with("https://") {
            bail!("https:// is not supported: expected http:// on this machine");
        }
        let url: StoreUrl = options
            .target
            .parse()
            .context("the target is a store, or http://, resp:// or grpc:// of a server")?;
        let prefix = format!("tg:bench:{}", std::process::id());
        let url = url.prefix(prefix).default_timeout(TIMEOUT);
        Ok(Self::Store(url.limiter_blocking(policy.clone())?))
    }

    pub(super) fn connect(&self) -> anyhow::Result<Box<dyn BenchCaller>> {
        Ok(match self {
            Self::Store(limiter) => Box::new(StoreCaller(limiter.clone())),
            Self::Http { address, body } => Box::new(HttpCaller {
                stream: BufReader::new(connect(address)?),
                address: address.clone(),
                body: body.clone(),
                line: String::new(),
            }),
            Self::Resp {
                address,
                words,
                pipeline,
            } => Box::new(RespCaller {
                stream: BufReader::new(connect(address)?),
                words: words.clone(),
                pipeline: *pipeline,
                line: String::new(),
            }),
            Self::Grpc { address, domain } => {
                Box::new(super::grpc::GrpcCaller::connect(address, domain)?)
            }
        })
    }
}

fn with_port(address: &str, port: u16) -> String {
    match address.rsplit_once(':') {
        Some((_, digits)) if digits.parse::<u16>().is_ok() => address.to_owned(),
        _ => format!("{address}:{port}"),
    }
}

fn connect(address: &str) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// Returns the numbers of `CL.THROTTLE`.
fn throttle_words(policy: &Policy) -> anyhow::Result<String> {
    let [limit] = policy.limits() else {
        bail!("resp:// has one limit: expected a policy such as 100/minute burst=20");
    };
    let seconds = limit.period().as_secs();
    if !limit.algorithm().is_bucket() || seconds == 0 {
        bail!("resp:// has a bucket: expected a policy such as 100/minute burst=20");
    }
    let burst = limit.capacity() - 1;
    Ok(format!("{burst} {} {seconds}", limit.limit()))
}

struct StoreCaller(Limiter<AnyStore>);

impl BenchCaller for StoreCaller {
    fn call(&mut self, next_key: &mut dyn FnMut() -> u64) -> anyhow::Result<BenchAnswer> {
        let decision = self.0.check(("bench", next_key())).blocking()?;
        if let Some(reason) = decision.degraded() {
            let health = self.0.counters().store;
            let error = health.and_then(|health| health.last_error);
            bail!("{}", error.unwrap_or_else(|| reason.name().to_owned()));
        }
        Ok(BenchAnswer {
            checks: 1,
            denied: u64::from(decision.is_denied()),
        })
    }
}

struct HttpCaller {
    stream: BufReader<TcpStream>,
    address: String,
    body: String,
    line: String,
}

impl BenchCaller for HttpCaller {
    fn call(&mut self, next_key: &mut dyn FnMut() -> u64) -> anyhow::Result<BenchAnswer> {
        let body = format!("{}bench:{}\"}}", self.body, next_key());
        let token = std::env::var("TIDEGATE_TOKEN").ok();
        let token = token.map(|token| format!("authorization: Bearer {token}\r\n"));
        let request = format!(
            "POST /v1/check HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n{}content-length: {}\r\n\r\n{body}",
            self.address,
            token.unwrap_or_default(),
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        let (status, answer) = self.read_response()?;
        if status != 200 {
            bail!("status {status}: {answer}");
        }
        let is_denied = answer.contains("\"allowed\":false");
        Ok(BenchAnswer {
            checks: 1,
            denied: u64::from(is_denied),
        })
    }
}

impl HttpCaller {
    fn read_response(&mut self) -> anyhow::Result<(u16, String)> {
        let (mut status, mut length) = (0, 0);
        loop {
            self.line.clear();
            if self.stream.read_line(&mut self.line)? == 0 {
                bail!("the server has closed the connection");
            }
            let line = self.line.trim_end();
            if status == 0 {
                let word = line.split(' ').nth(1).and_then(|word| word.parse().ok());
                status = word.context("expected an HTTP response")?;
            } else if line.is_empty() {
                break;
            } else if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().context("content-length")?;
            }
        }
        if length > 1 << 20 {
            bail!("the response is too large");
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }
}

struct RespCaller {
    stream: BufReader<TcpStream>,
    words: String,
    pipeline: u64,
    line: String,
}

impl BenchCaller for RespCaller {
    fn call(&mut self, next_key: &mut dyn FnMut() -> u64) -> anyhow::Result<BenchAnswer> {
        let mut request = String::new();
        for _ in 0..self.pipeline {
            request.push_str(&format!(
                "CL.THROTTLE bench:{} {}\r\n",
                next_key(),
                self.words
            ));
        }
        self.stream.get_mut().write_all(request.as_bytes())?;
        let mut denied = 0;
        for _ in 0..self.pipeline {
            let head = self.read_line()?;
            if !head.starts_with("*5") {
                bail!("{}", head.trim_start_matches('-'));
            }
            for index in 0..5 {
                let number = self.read_line()?;
                denied += u64::from(index == 0 && number == ":1");
            }
        }
        Ok(BenchAnswer {
            checks: self.pipeline,
            denied,
        })
    }
}

impl RespCaller {
    fn read_line(&mut self) -> anyhow::Result<String> {
        self.line.clear();
        if self.stream.read_line(&mut self.line)? == 0 {
            bail!("the server has closed the connection");
        }
        Ok(self.line.trim_end().to_owned())
    }
}
