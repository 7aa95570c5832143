//! `check`, `peek`, `charge`, `refund` and `reset` on a server.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tidegate::Name;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

use crate::check::{OutputFormat, exit_code, shown};

/// The timeout of a request to the server.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A server to use instead of a store.
#[derive(Args)]
pub(crate) struct ServerOptions {
    /// Use the `tidegate serve` at this URL instead of a store; --policy may then be the name of
    /// one of its policies. `reset` needs its admin listener
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// With --server: tier of the key
    #[arg(long, requires = "server", value_name = "NAME")]
    tier: Option<String>,
    /// With --server: tenant of the key
    #[arg(long, requires = "server", value_name = "NAME")]
    tenant: Option<String>,
    /// With --server: file with the token; the default is the variable TIDEGATE_TOKEN
    #[arg(long, requires = "server", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// With --server: CA certificate in PEM, instead of the public ones
    #[arg(long, requires = "server", value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// With --server: client certificate in PEM
    #[arg(long, requires = "server", requires = "key_file", value_name = "FILE")]
    cert: Option<PathBuf>,
    /// With --server: key of the client certificate in PEM
    #[arg(
        long = "key",
        requires = "server",
        requires = "cert",
        value_name = "FILE"
    )]
    key_file: Option<PathBuf>,
}

/// The server's response.
#[derive(Deserialize)]
struct CheckResponse {
    allowed: bool,
    limit: Option<u64>,
    remaining: Option<u64>,
    retry_after_us: Option<u64>,
    reset_after_us: Option<u64>,
    delay_us: u64,
    degraded: Option<String>,
    #[serde(default)]
    reset: Option<bool>,
}

/// The server's error.
#[derive(Deserialize)]
struct ErrorResponse {
    detail: String,
}

/// One request.
pub(crate) struct ServerRequest<'a> {
    pub(crate) what: &'static str,
    pub(crate) key: &'a str,
    pub(crate) policy: &'a str,
    /// The cost as it was written.
    pub(crate) cost: Option<String>,
    pub(crate) output: OutputFormat,
}

impl ServerOptions {
    pub(crate) fn is_given(&self) -> bool {
        self.server.is_some()
    }

    pub(crate) fn ask(&self, request: &ServerRequest<'_>) -> anyhow::Result<ExitCode> {
        let base = self
            .server
            .as_deref()
            .unwrap_or_default()
            .trim_end_matches('/');
        if !base.starts_with("http://") && !base.starts_with("https://") {
            bail!("--server {base}: expected a URL such as http://127.0.0.1:8080");
        }
        let text = self.post(&format!("{base}/v1/{}", request.what), &self.body(request)?)?;
        let response: CheckResponse =
            serde_json::from_str(&text).context("the server's response")?;
        let line = match request.output {
            OutputFormat::Json => text,
            OutputFormat::Text => response.sentence(request.what),
        };
        writeln!(std::io::stdout().lock(), "{line}").context("standard output")?;
        Ok(exit_code(match request.what {
            "reset" | "refund" => true,
            _ => response.allowed,
        }))
    }

    fn body(&self, request: &ServerRequest<'_>) -> anyhow::Result<String> {
        let mut body = Map::new();
        // Limits contain a slash or a space, so they are never a valid name.
        let kind = if Name::new(request.policy).is_ok() {
            "policy"
        } else {
            "limits"
        };
        body.insert(kind.to_owned(), request.policy.into());
        body.insert("key".to_owned(), request.key.into());
        for (name, value) in [("tier", &self.tier), ("tenant", &self.tenant)] {
            if let Some(value) = value {
                body.insert(name.to_owned(), json!(value));
            }
        }
        if let Some(cost) = &request.cost {
            body.insert(
                "cost".to_owned(),
                serde_json::from_str(cost).context("--cost")?,
            );
        }
        Ok(Value::Object(body).to_string())
    }

    fn token(&self) -> anyhow::Result<Option<String>> {
        match &self.token_file {
            Some(file) => {
                let text = std::fs::read_to_string(file)
                    .with_context(|| format!("--token-file {}", file.display()))?;
                Ok(Some(text.trim().to_owned()))
            }
            None => Ok(std::env::var("TIDEGATE_TOKEN").ok()),
        }
    }

    fn tls(&self) -> anyhow::Result<TlsConfig> {
        let mut tls = TlsConfig::builder();
        if let Some(file) = &self.cacert {
            tls = tls.root_certs(RootCerts::from(certificates(file)?));
        }
        if let (Some(cert), Some(key)) = (&self.cert, &self.key_file) {
            let text = std::fs::read(key).with_context(|| format!("--key {}", key.display()))?;
            let private =
                PrivateKey::from_pem(&text).with_context(|| format!("--key {}", key.display()))?;
            let chain = certificates(cert)?;
            check_key(&chain, &text).with_context(|| {
                format!("--cert {} with --key {}", cert.display(), key.display())
            })?;
            tls = tls.client_cert(Some(ClientCert::new_with_certs(&chain, private)));
        }
        Ok(tls.build())
    }

    fn post(&self, url: &str, body: &str) -> anyhow::Result<String> {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            .tls_config(self.tls()?)
            .build()
            .into();
        let mut request = agent.post(url).content_type("application/json");
        if let Some(token) = self.token()? {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut response = request
            .send(body)
            .with_context(|| format!("--server {url}"))?;
        let status = response.status();
        let text = response
            .body_mut()
            .read_to_string()
            .with_context(|| format!("--server {url}"))?;
        // A denial during an outage has the status 503, and the body of a decision.
        let is_decision = serde_json::from_str::<CheckResponse>(&text).is_ok();
        if !status.is_success() && !is_decision {
            let detail = serde_json::from_str(&text)
                .map_or_else(|_| text.clone(), |problem: ErrorResponse| problem.detail);
            bail!("--server {url}: {status}: {detail}");
        }
        Ok(text)
    }
}

/// Checks that the certificate is valid for TLS and that the key belongs to it.
fn check_key(chain: &[Certificate<'_>], key: &[u8]) -> anyhow::Result<()> {
    let chain: Vec<CertificateDer<'static>> = chain
        .iter()
        .map(|certificate| CertificateDer::from(certificate.der().to_vec()))
        .collect();
    let first = chain.first().context("the file contains no certificate")?;
    ParsedCertificate::try_from(first).context("expected a certificate of version 3")?;
    let key = PrivateKeyDer::from_pem_slice(key)?;
    CertifiedKey::from_der(chain, key, &rustls::crypto::ring::default_provider())?;
    Ok(())
}

fn certificates(file: &Path) -> anyhow::Result<Vec<Certificate<'static>>> {
    let text = std::fs::read(file).with_context(|| file.display().to_string())?;
    let items = parse_pem(&text)
        .collect::<Result<Vec<_>, _>>()
        .with_context(|| file.display().to_string())?;
    let certificate = |item| match item {
        PemItem::Certificate(certificate) => Some(certificate),
        _ => None,
    };
    let found: Vec<_> = items.into_iter().filter_map(certificate).collect();
    if found.is_empty() {
        bail!("{}: the file contains no certificate", file.display());
    }
    Ok(found)
}

impl CheckResponse {
    /// Returns the response as one line for people.
    fn sentence(&self, what: &str) -> String {
        let micros = Duration::from_micros;
        let is_decision = matches!(what, "check" | "peek");
        let verdict = match (is_decision, self.allowed, self.retry_after_us) {
            (false, ..) if self.reset == Some(true) => "reset; ".to_owned(),
            (false, ..) if self.reset == Some(false) => "nothing to reset; ".to_owned(),
            (false, false, Some(wait)) => format!("in debt for {}; ", shown(micros(wait))),
            (false, ..) => String::new(),
            (_, true, _) if self.delay_us > 0 => {
                format!("allowed in {}; ", shown(micros(self.delay_us)))
            }
            (_, true, _) => "allowed; ".to_owned(),
            (_, false, Some(wait)) => format!("denied, retry in {}; ", shown(micros(wait))),
            // Without figures the wait is unknown.
            (_, false, None) if self.degraded.is_some() && self.remaining.is_none() => {
                "denied; ".to_owned()
            }
            (_, false, None) => "denied, never allowed; ".to_owned(),
        };
        let left = match (self.limit, self.remaining) {
            (Some(limit), Some(remaining)) => format!("{remaining} of {limit} left"),
            (Some(_), None) => "remaining unknown".to_owned(),
            (None, _) if self.allowed => "no limit".to_owned(),
            (None, _) => "blocked".to_owned(),
        };
        let reset = match self.reset_after_us {
            None | Some(0) => String::new(),
            Some(reset) => format!(", reset in {}", shown(micros(reset))),
        };
        let degraded = self
            .degraded
            .as_ref()
            .map(|reason| format!(", store unavailable ({reason})"));
        format!("{verdict}{left}{reset}{}", degraded.unwrap_or_default())
    }
}
