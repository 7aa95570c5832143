//! Which answer a request gets.

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;

use super::checks::Caller;
use super::pending::Static;
use super::problem::Problem;
use super::request::{Batch, Cost1, Question, Settle, parse};
use super::{Http, Request, Response, answer, body, checks, origin};
use crate::auth::{Access, FAILED_AUTH_DELAY};
use crate::config::Scope;
use crate::metrics;
use crate::net::Watch;
use crate::server::Live;

/// How many times the body of a batch may be as large as that of one check.
const BATCH_BODY: usize = 16;
const SETTLE_BODY: usize = 4;

const OPENAPI: &str = include_str!("openapi.json");
const OPENAPI_ADMIN: &str = include_str!("openapi-admin.json");

/// What is asked for, by its path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Check,
    Batch,
    Peek,
    Refund,
    Settle,
    Reset,
    Health,
    Ready,
    Metrics,
    OpenApi,
}

impl Target {
    fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/check" => Self::Check,
            "/v1/check:batch" => Self::Batch,
            "/v1/peek" => Self::Peek,
            "/v1/refund" => Self::Refund,
            "/v1/settle" => Self::Settle,
            "/v1/reset" => Self::Reset,
            "/healthz" => Self::Health,
            "/readyz" => Self::Ready,
            "/metrics" => Self::Metrics,
            "/openapi.json" => Self::OpenApi,
            _ => return None,
        })
    }

    /// Whom it is for: `None` for everybody.
    fn scope(self) -> Option<Scope> {
        match self {
            Self::Check | Self::Batch | Self::Peek | Self::Settle => Some(Scope::Check),
            Self::Refund => Some(Scope::Refund),
            Self::Reset | Self::Metrics => Some(Scope::Admin),
            Self::Health | Self::Ready | Self::OpenApi => None,
        }
    }

    fn is_question(self) -> bool {
        matches!(
            self,
            Self::Check | Self::Batch | Self::Peek | Self::Refund | Self::Settle | Self::Reset
        )
    }
}

pub(super) async fn answer(
    http: &Http,
    request: Request,
    watch: &Watch,
) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let mut body = Some(body);
    let answered = answer_to(http, head, &mut body, watch).await;
    if let (Some(unread), Err(problem)) = (body, &answered) {
        // Who is still sending may not hear what is said meanwhile.
        let bounds = http.server.live().config.bounds.clone();
        let is_slow = problem.status() == StatusCode::REQUEST_TIMEOUT;
        if is_slow
            || !body::drain(unread, bounds.max_body * BATCH_BODY, bounds.body_timeout.0).await
        {
            watch.leave_unread();
        }
    }
    answered
}

async fn answer_to(
    http: &Http,
    head: Parts,
    body: &mut Option<Incoming>,
    watch: &Watch,
) -> Result<Response, Problem> {
    let target = Target::of(head.uri.path()).ok_or_else(|| {
        Problem::not_found("there is nothing at this path; /openapi.json says what there is")
    })?;
    let is_elsewhere = match target.scope() {
        Some(Scope::Admin) => !http.is_admin,
        Some(Scope::Check | Scope::Refund) => http.is_admin,
        None => false,
    };
    if is_elsewhere {
        let place = if http.is_admin {
            "listener for checks (http.listen)"
        } else {
            "admin listener (admin.listen)"
        };
        return Err(Problem::not_found(format!("this is served by the {place}")));
    }
    // Of one configuration from here on, whatever comes in between.
    let server = &*http.server;
    let live = server.live();
    let live: &Live = &live;
    let hosts = if http.is_admin {
        &live.config.admin.hosts
    } else {
        &live.config.http.hosts
    };
    origin::check_site(&head.headers, hosts)?;
    // Where a token is asked for, no page has it.
    let is_open = target
        .scope()
        .is_none_or(|scope| live.secrets.tokens.is_open(scope));
    if is_open && watch.is_local() {
        origin::check_host(&head, hosts)?;
    }
    if let Some(scope) = target.scope() {
        authorize(live, &head.headers, scope).await?;
    }
    if !target.is_question() {
        if head.method != Method::GET && head.method != Method::HEAD {
            return Err(Problem::not_allowed("GET, HEAD"));
        }
        no_query(&head.uri)?;
        return look(http, live, target, &head.headers);
    }
    if head.method != Method::POST {
        return Err(Problem::not_allowed("POST"));
    }
    let denied = match target {
        Target::Check => denied_status(&head.uri)?,
        _ => no_query(&head.uri).map(|()| StatusCode::OK)?,
    };
    let bounds = &live.config.bounds;
    let limit = match target {
        Target::Batch => bounds.max_body * BATCH_BODY,
        // A receipt has its request in it, written twice over.
        Target::Settle => bounds.max_body * SETTLE_BODY,
        _ => bounds.max_body,
    };
    let body = body::read(body, limit, bounds.body_timeout.0, &server.bodies).await?;
    let caller = Caller {
        server,
        live,
        watch,
    };
    if target == Target::Batch {
        return checks::batch(caller, &parse::<Batch<'_>>(&head.headers, &body)?).await;
    }
    if target == Target::Settle {
        return checks::settle(caller, &parse::<Settle<'_>>(&head.headers, &body)?).await;
    }
    let question: Question<'_> = parse(&head.headers, &body)?;
    match target {
        Target::Peek => checks::check(caller, &question, Cost1::Never, StatusCode::OK).await,
        Target::Refund => checks::refund(caller, &question).await,
        Target::Reset => checks::reset(caller, &question).await,
        _ => checks::check(caller, &question, Cost1::May, denied).await,
    }
}

async fn authorize(live: &Live, fields: &HeaderMap, scope: Scope) -> Result<(), Problem> {
    if live.secrets.tokens.is_open(scope) {
        return Ok(());
    }
    let mut values = fields.get_all(http::header::AUTHORIZATION).iter();
    // Of two, nobody knows which one somebody on the way has looked at.
    let shown = values
        .next()
        .filter(|_| values.next().is_none())
        .and_then(|value| {
            let (kind, token) = value.as_bytes().split_at_checked("Bearer ".len())?;
            kind.eq_ignore_ascii_case(b"Bearer ")
                .then(|| token.trim_ascii())
        });
    match live.secrets.tokens.access(shown, scope) {
        Access::Granted => Ok(()),
        Access::Unknown => {
            if shown.is_some() {
                tokio::time::sleep(FAILED_AUTH_DELAY).await;
            }
            Err(Problem::unauthorized())
        }
        Access::Forbidden => {
            let detail = format!(
                "this token is not for this: expected one of scope {}",
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

/// `?status=429`: with which status a denial is answered, where it is not 200.
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

fn look(http: &Http, live: &Live, target: Target, head: &HeaderMap) -> Result<Response, Problem> {
    let server = &http.server;
    match target {
        Target::Health => Ok(answer::json(&serde_json::json!({ "status": "ok" }))),
        Target::Ready => {
            if server.is_ending() {
                return Err(Problem::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "this server is ending",
                ));
            }
            let store = if live.is_degraded() { "degraded" } else { "ok" };
            Ok(answer::json(
                &serde_json::json!({ "status": "ok", "config": live.hash, "store": store }),
            ))
        }
        Target::Metrics => {
            let text = metrics::text(server).map_err(|error| {
                Problem::new(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    format!("metrics cannot be written: {error}"),
                )
            })?;
            let accepts = head
                .get(http::header::ACCEPT)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default();
            Ok(if accepts.contains("application/openmetrics-text") {
                typed(
                    text,
                    "application/openmetrics-text; version=1.0.0; charset=utf-8",
                )
            } else {
                typed(
                    metrics::classic(&text),
                    "text/plain; version=0.0.4; charset=utf-8",
                )
            })
        }
        _ => {
            let mut response = typed(
                if http.is_admin {
                    OPENAPI_ADMIN
                } else {
                    OPENAPI
                },
                "application/json",
            );
            response.extensions_mut().insert(Static);
            Ok(response)
        }
    }
}

fn typed(text: impl Into<bytes::Bytes>, kind: &'static str) -> Response {
    let mut response = Response::new(Full::new(text.into()));
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
