//! Selects the operation of a request.

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;

use super::checks::Caller;
use super::dashboard::Asset;
use super::peers::PeerOperation;
use super::problem::Problem;
use super::request::parse;
use super::response_body::StaticBody;
use super::{
    Http, Request, Response, body, checks, dashboard, forward_auth, origin, rate_limit_json,
    response,
};
use crate::auth::{Access, FAILED_AUTH_DELAY};
use crate::config::{Bounds, Config, Scope};
use crate::metrics;
use crate::net::Timeouts;
use crate::server::ActiveConfig;

/// The maximum body of a batch and of a settlement, in multiples of that of one check.
const BATCH_BODY: usize = 16;
const SETTLE_BODY: usize = 4;

const OPENAPI: &str = include_str!("openapi.json");
const OPENAPI_ADMIN: &str = include_str!("openapi-admin.json");

/// The operation, by its path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Check,
    Batch,
    Peek,
    Charge,
    Refund,
    Settle,
    Reset,
    ForwardAuth,
    /// envoyproxy/ratelimit's endpoints.
    Json,
    HealthCheck,
    Rules,
    Stats,
    Health,
    Ready,
    Metrics,
    OpenApi,
    /// The data of the dashboard, and its files.
    Top,
    Events,
    Lookup,
    Asset(Asset),
    Peer(PeerOperation),
}

impl Operation {
    fn from_path(path: &str, config: &Config) -> Option<Self> {
        Some(match path {
            "/v1/check" => Self::Check,
            "/v1/check:batch" => Self::Batch,
            "/v1/peek" => Self::Peek,
            "/v1/charge" => Self::Charge,
            "/v1/refund" => Self::Refund,
            "/v1/settle" => Self::Settle,
            "/v1/reset" => Self::Reset,
            "/v1/forward-auth" => Self::ForwardAuth,
            "/json" => Self::Json,
            "/healthcheck" => Self::HealthCheck,
            "/rlconfig" => Self::Rules,
            "/stats" => Self::Stats,
            "/healthz" => Self::Health,
            "/readyz" => Self::Ready,
            "/metrics" => Self::Metrics,
            "/openapi.json" => Self::OpenApi,
            "/v1/top" => Self::Top,
            "/v1/events" => Self::Events,
            "/v1/lookup" => Self::Lookup,
            _ if config.admin.dashboard && Asset::from_path(path).is_some() => {
                return Asset::from_path(path).map(Self::Asset);
            }
            _ => return PeerOperation::from_path(path, config).map(Self::Peer),
        })
    }

    /// Returns the scope that the operation needs, or `None` if it is public.
    fn scope(self) -> Option<Scope> {
        match self {
            Self::Check
            | Self::Batch
            | Self::Peek
            | Self::Charge
            | Self::Settle
            | Self::ForwardAuth
            | Self::Json => Some(Scope::Check),
            Self::Refund => Some(Scope::Refund),
            Self::Reset
            | Self::Metrics
            | Self::Rules
            | Self::Stats
            | Self::Top
            | Self::Events
            | Self::Lookup => Some(Scope::Admin),
            Self::HealthCheck | Self::Health | Self::Ready | Self::OpenApi | Self::Asset(_) => None,
            Self::Peer(operation) => operation.scope(),
        }
    }

    /// Returns `true` if the operation has a body, and is sent with POST.
    fn has_body(self) -> bool {
        if let Self::Peer(operation) = self {
            return operation.has_body();
        }
        !matches!(
            self,
            Self::ForwardAuth
                | Self::HealthCheck
                | Self::Rules
                | Self::Stats
                | Self::Health
                | Self::Ready
                | Self::Metrics
                | Self::OpenApi
                | Self::Top
                | Self::Events
                | Self::Asset(_)
        )
    }

    /// Returns the maximum size of the body.
    fn max_body(self, bounds: &Bounds) -> usize {
        match self {
            Self::Batch | Self::Peer(_) => bounds.max_body * BATCH_BODY,
            // A receipt contains its request, encoded twice.
            Self::Settle | Self::Json => bounds.max_body * SETTLE_BODY,
            _ => bounds.max_body,
        }
    }
}

/// Answers a request. If it was answered before all of its body was read, the rest is discarded.
pub(super) async fn answer(
    http: &Http,
    request: Request,
    timeouts: &Timeouts,
) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let mut body = Some(body);
    // The active configuration stays the same for the whole request.
    let active = http.server.active();
    let answered = dispatch(http, &active, &head, &mut body, timeouts).await;
    if let (Some(unread), Err(problem)) = (body, &answered) {
        // A client that is still sending may not read the response yet.
        let bounds = &active.config.bounds;
        let (limit, timeout) = (Operation::Batch.max_body(bounds), bounds.body_timeout.0);
        let is_slow = problem.status() == StatusCode::REQUEST_TIMEOUT;
        if is_slow || !body::drain(unread, limit, timeout).await {
            timeouts.start_discarding();
        }
    }
    answered
}

async fn dispatch(
    http: &Http,
    active: &ActiveConfig,
    head: &Parts,
    body: &mut Option<Incoming>,
    timeouts: &Timeouts,
) -> Result<Response, Problem> {
    let operation = Operation::from_path(head.uri.path(), &active.config)
        .ok_or_else(|| Problem::not_found("unknown path: /openapi.json lists the existing ones"))?;
    check_listener(http, operation)?;
    if operation == Operation::Reset && active.config.admin.read_only {
        let detail = "resets are refused (admin.read_only = true)";
        return Err(Problem::new(StatusCode::FORBIDDEN, detail));
    }
    check_access(http, active, head, operation, timeouts).await?;
    if !operation.has_body() {
        check_method(head, &[Method::GET, Method::HEAD], "GET, HEAD")?;
        let caller = Caller {
            server: &http.server,
            active,
            timeouts,
        };
        if operation == Operation::ForwardAuth {
            return forward_auth::answer(caller, head).await;
        }
        no_query(&head.uri)?;
        if let Operation::Peer(operation) = operation {
            return operation.status(caller, head);
        }
        return status(http, active, operation, &head.headers);
    }
    check_method(head, &[Method::POST], "POST")?;
    let denied = match operation {
        Operation::Check => denied_status(&head.uri)?,
        _ => no_query(&head.uri).map(|()| StatusCode::OK)?,
    };
    let bounds = &active.config.bounds;
    let (limit, timeout) = (operation.max_body(bounds), bounds.body_timeout.0);
    let server = &*http.server;
    let body = body::read(body, limit, timeout, &server.bodies).await?;
    let caller = Caller {
        server,
        active,
        timeouts,
    };
    run(caller, operation, denied, &head.headers, &body).await
}

/// Parses the body and runs the operation.
async fn run(
    caller: Caller<'_>,
    operation: Operation,
    denied: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Response, Problem> {
    match operation {
        Operation::Json => rate_limit_json::answer(caller, headers, body).await,
        Operation::Peer(operation) => operation.run(caller, headers, body).await,
        Operation::Batch => checks::batch(caller, &parse(headers, body)?).await,
        Operation::Settle => checks::settle(caller, &parse(headers, body)?).await,
        Operation::Peek | Operation::Lookup => checks::peek(caller, &parse(headers, body)?).await,
        Operation::Charge => checks::charge(caller, &parse(headers, body)?).await,
        Operation::Refund => checks::refund(caller, &parse(headers, body)?).await,
        Operation::Reset => checks::reset(caller, &parse(headers, body)?).await,
        _ => checks::check(caller, &parse(headers, body)?, denied).await,
    }
}

/// Checks that the listener serves the operation.
fn check_listener(http: &Http, operation: Operation) -> Result<(), Problem> {
    let is_other = match operation.scope() {
        None if matches!(operation, Operation::Asset(_)) => !http.is_admin,
        Some(Scope::Admin) => !http.is_admin,
        Some(Scope::Check | Scope::Refund) => http.is_admin,
        None => false,
    };
    if !is_other {
        return Ok(());
    }
    let listener = if http.is_admin {
        "check listener (http.listen)"
    } else {
        "admin listener (admin.listen)"
    };
    Err(Problem::not_found(format!(
        "wrong listener: expected the {listener}"
    )))
}

/// Rejects requests of web pages, and requests without a token that has the scope.
async fn check_access(
    http: &Http,
    active: &ActiveConfig,
    head: &Parts,
    operation: Operation,
    timeouts: &Timeouts,
) -> Result<(), Problem> {
    let hosts = if http.is_admin {
        &active.config.admin.hosts
    } else {
        &active.config.http.hosts
    };
    let is_forwarded =
        operation == Operation::ForwardAuth && forward_auth::is_forwarded(&head.headers);
    if !is_forwarded {
        origin::check_site(&head.headers, hosts)?;
    }
    // A page does not have the token, if one is needed.
    let tokens = &active.secrets.tokens;
    let is_open = operation.scope().is_none_or(|scope| tokens.is_open(scope));
    if is_open && timeouts.is_local() && !is_forwarded {
        origin::check_host(head, hosts)?;
    }
    match operation.scope() {
        Some(scope) => authorize(active, &head.headers, scope).await,
        None => Ok(()),
    }
}

fn check_method(head: &Parts, allowed: &[Method], names: &'static str) -> Result<(), Problem> {
    if allowed.contains(&head.method) {
        Ok(())
    } else {
        Err(Problem::not_allowed(names))
    }
}

/// Checks the token of a request.
pub(crate) async fn authorize(
    active: &ActiveConfig,
    headers: &HeaderMap,
    scope: Scope,
) -> Result<(), Problem> {
    if active.secrets.tokens.is_open(scope) {
        return Ok(());
    }
    let mut values = headers.get_all(http::header::AUTHORIZATION).iter();
    // With two tokens it is unknown which one a proxy has checked.
    let shown = values
        .next()
        .filter(|_| values.next().is_none())
        .and_then(|value| {
            let (kind, token) = value.as_bytes().split_at_checked("Bearer ".len())?;
            kind.eq_ignore_ascii_case(b"Bearer ")
                .then(|| token.trim_ascii())
        });
    match active.secrets.tokens.access(shown, scope) {
        Access::Granted => Ok(()),
        Access::Unknown => {
            if shown.is_some() {
                tokio::time::sleep(FAILED_AUTH_DELAY).await;
            }
            Err(Problem::unauthorized())
        }
        Access::Forbidden => {
            let detail = format!(
                "the token lacks the scope: expected one with scope {}",
                scope.name()
            );
            Err(Problem::new(StatusCode::FORBIDDEN, detail))
        }
    }
}

fn no_query(uri: &Uri) -> Result<(), Problem> {
    match uri.query() {
        None | Some("") => Ok(()),
        Some(_) => Err(Problem::bad("expected no query")),
    }
}

/// Parses `?status=429`, the status of a denial. The default is 200.
fn denied_status(uri: &Uri) -> Result<StatusCode, Problem> {
    let query = uri.query().unwrap_or_default();
    if query.is_empty() {
        return Ok(StatusCode::OK);
    }
    match query {
        "status=403" => Ok(StatusCode::FORBIDDEN),
        "status=429" => Ok(StatusCode::TOO_MANY_REQUESTS),
        "status=503" => Ok(StatusCode::SERVICE_UNAVAILABLE),
        _ => Err(Problem::bad(
            "expected no query, or the status of a denial: status=429, 403 or 503",
        )),
    }
}

/// Answers an operation without a body.
fn status(
    http: &Http,
    active: &ActiveConfig,
    operation: Operation,
    headers: &HeaderMap,
) -> Result<Response, Problem> {
    match operation {
        Operation::Health => Ok(response::json(&serde_json::json!({ "status": "ok" }))),
        Operation::Ready => ready(http, active),
        Operation::HealthCheck => Ok(rate_limit_json::health(&http.server)),
        Operation::Rules => {
            let rules = http.server.rules();
            Ok(plain(rate_limit_json::rules_text(rules.as_deref())))
        }
        Operation::Stats => {
            let rules = http.server.rules();
            Ok(plain(rate_limit_json::stats_text(rules.as_deref())))
        }
        Operation::Metrics => metrics_text(http, headers),
        Operation::Top => Ok(dashboard::top(&http.server)),
        Operation::Events => dashboard::events(&http.server),
        Operation::Asset(asset) => Ok(asset.response()),
        _ => {
            let text = if http.is_admin {
                OPENAPI_ADMIN
            } else {
                OPENAPI
            };
            let mut response = typed(text, "application/json");
            response.extensions_mut().insert(StaticBody);
            Ok(response)
        }
    }
}

fn ready(http: &Http, active: &ActiveConfig) -> Result<Response, Problem> {
    if http.server.is_leaving() {
        let detail = "the server is shutting down";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail));
    }
    if !http.server.has_rules() {
        let detail = "no rate limit configuration loaded";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail));
    }
    let store = if active.is_degraded() {
        "degraded"
    } else {
        "ok"
    };
    let body = serde_json::json!({ "status": "ok", "config": active.hash, "store": store });
    Ok(response::json(&body))
}

fn metrics_text(http: &Http, headers: &HeaderMap) -> Result<Response, Problem> {
    let text = metrics::text(&http.server).map_err(|error| {
        let detail = format!("the metrics cannot be encoded: {error}");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
    })?;
    let accept = headers.get(http::header::ACCEPT);
    let accept = accept
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    Ok(if accept.contains("application/openmetrics-text") {
        let version = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        typed(text, version)
    } else {
        let version = "text/plain; version=0.0.4; charset=utf-8";
        typed(metrics::classic(&text), version)
    })
}

fn plain(text: String) -> Response {
    typed(text, "text/plain; charset=utf-8")
}

fn typed(text: impl Into<bytes::Bytes>, content_type: &'static str) -> Response {
    let mut response = Response::new(Full::new(text.into()));
    let content_type = HeaderValue::from_static(content_type);
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, content_type);
    response
}
