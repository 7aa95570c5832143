//! limitador's HTTP endpoints: the status of a response is the decision.

use std::collections::HashMap;

use http::{HeaderName, HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::json;

use super::Response;
use super::checks::Caller;
use super::problem::Problem;
use crate::config::Scope;
use crate::descriptors::DecideError;
use crate::limitador::{Bindings, CheckKind, Limitador, LimitadorDecision, LimitadorLimit, decide};
use crate::server::Server;

/// The longest wait in a header: a year.
const MAX_SECONDS: u64 = 366 * 86_400;

/// One of the endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitadorOperation {
    Status,
    Limits,
    Counters,
    Decide(CheckKind),
}

const LIMITS: &str = "/limits/";
const COUNTERS: &str = "/counters/";

impl LimitadorOperation {
    pub(super) fn from_path(path: &str) -> Option<Self> {
        Some(match path {
            "/status" => Self::Status,
            "/check" => Self::Decide(CheckKind::Check),
            "/report" => Self::Decide(CheckKind::Report),
            "/check_and_report" => Self::Decide(CheckKind::CheckAndReport),
            _ if path.starts_with(LIMITS) => Self::Limits,
            _ if path.starts_with(COUNTERS) => Self::Counters,
            _ => return None,
        })
    }

    pub(super) fn scope(self) -> Option<Scope> {
        (self != Self::Status).then_some(Scope::Check)
    }

    pub(super) fn has_body(self) -> bool {
        matches!(self, Self::Decide(_))
    }

    /// Answers a request without a body.
    pub(super) fn status(self, caller: Caller<'_>, path: &str) -> Result<Response, Problem> {
        match self {
            Self::Limits => {
                let namespace = decoded(path.strip_prefix(LIMITS).unwrap_or_default())?;
                let limits = caller.server.limitador.load();
                let limits = limits
                    .as_ref()
                    .and_then(|limits| limits.namespace(&namespace));
                let limits = limits.map_or(&[][..], |found| &found.limits);
                let shown: Vec<_> = limits
                    .iter()
                    .map(|limit| limit_json(&namespace, limit))
                    .collect();
                Ok(super::response::json(&shown))
            }
            Self::Counters => Err(Problem::new(
                StatusCode::NOT_IMPLEMENTED,
                "counters cannot be listed: the stores do not keep their keys",
            )),
            Self::Status | Self::Decide(_) => Ok(Response::default()),
        }
    }

    /// Decides a request.
    pub(super) async fn run(self, caller: Caller<'_>, body: &[u8]) -> Result<Response, Problem> {
        let Self::Decide(kind) = self else {
            return Ok(Response::default());
        };
        let request: DecideJson = serde_json::from_slice(body)
            .map_err(|error| Problem::bad(format!("the body is invalid: {error}")))?;
        if request.namespace.is_empty() {
            return Err(Problem::bad("`namespace` is empty: expected a name"));
        }
        let limits = caller.server.limitador.load_full();
        let limits = limits.ok_or_else(|| Problem::not_found("no limits are configured"))?;
        let _permit = caller.permit().await;
        let decision = request.decide(caller.server, &limits, kind).await?;
        let mut response = Response::default();
        if decision.is_over {
            *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        }
        if request.wants_headers() {
            add_headers(&mut response, &decision);
        }
        Ok(response)
    }
}

fn decoded(text: &str) -> Result<String, Problem> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
    decoded
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| Problem::bad("the path is invalid: expected UTF-8"))
}

fn limit_json(namespace: &str, limit: &LimitadorLimit) -> serde_json::Value {
    let [conditions, variables] = limit.expressions();
    json!({
        "id": limit.id,
        "name": limit.name,
        "namespace": namespace,
        "max_value": limit.max_value,
        "seconds": limit.seconds,
        "conditions": conditions,
        "variables": variables,
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DecideJson {
    namespace: String,
    #[serde(default)]
    values: HashMap<String, String>,
    #[serde(default = "one")]
    delta: u64,
    #[serde(default)]
    response_headers: Option<String>,
}

fn one() -> u64 {
    1
}

impl DecideJson {
    async fn decide(
        &self,
        server: &Server,
        limits: &Limitador,
        kind: CheckKind,
    ) -> Result<LimitadorDecision, Problem> {
        let bindings = Bindings::Values(&self.values);
        let decided = decide(server, limits, &self.namespace, &bindings, kind, self.delta).await;
        decided.map_err(|error| match error {
            DecideError::Invalid(message) => Problem::bad(message),
            DecideError::Unavailable => {
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
            }
        })
    }

    fn wants_headers(&self) -> bool {
        let names = ["DraftVersion03", "DRAFT_VERSION_03"];
        let wanted = self.response_headers.as_deref();
        wanted.is_some_and(|name| names.contains(&name))
    }
}

/// Adds the headers of draft 03: the nearest limit, then every limit with its window.
fn add_headers(response: &mut Response, decision: &LimitadorDecision) {
    let Some((nearest, figures)) = decision.limits.first() else {
        return;
    };
    let mut limits = nearest.max_value.to_string();
    for (limit, _) in &decision.limits {
        limits.push_str(&format!(", {};w={}", limit.max_value, limit.seconds));
        if let Some(name) = &limit.name {
            let name = name.replace(['"', '\\'], "");
            limits.push_str(&format!(";name=\"{name}\""));
        }
    }
    let seconds = figures.reset_after.as_secs() + u64::from(figures.reset_after.subsec_nanos() > 0);
    for (name, value) in [
        ("x-ratelimit-limit", limits),
        ("x-ratelimit-remaining", figures.remaining.to_string()),
        ("x-ratelimit-reset", seconds.min(MAX_SECONDS).to_string()),
    ] {
        // A name from the file may have characters that a header cannot have.
        if let Ok(value) = HeaderValue::from_str(&value) {
            response
                .headers_mut()
                .insert(HeaderName::from_static(name), value);
        }
    }
}
