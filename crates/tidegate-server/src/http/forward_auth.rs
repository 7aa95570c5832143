//! `GET /v1/forward-auth`: one check for gateways that ask before they pass a request on: nginx,
//! Caddy, Traefik, HAProxy.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body_util::Full;
use percent_encoding::percent_decode_str;
use smallvec::SmallVec;
use tidegate::{Cost, IntoKey, KeyBuf, Subject};
use tidegate_http::{Denial, Framework, PROBLEM_JSON, add_headers, rate_limit_headers};

use super::Response;
use super::checks::{Caller, decide_subjects};
use super::problem::Problem;

/// The headers by which a gateway marks a request. A page of another site cannot send them.
const MARKS: [&str; 6] = [
    "x-forwarded-for",
    "x-forwarded-method",
    "x-forwarded-uri",
    "x-original-method",
    "x-original-uri",
    "x-real-ip",
];

/// Returns `true` if a gateway sent the request. It passes the client's headers on, so `Host` and
/// `Origin` are not those of the gateway.
pub(super) fn is_forwarded(headers: &HeaderMap) -> bool {
    MARKS.iter().any(|name| headers.contains_key(*name))
}

/// The settings in the query.
#[derive(Default)]
struct Query<'a> {
    policy: Option<Cow<'a, str>>,
    key: Option<Cow<'a, str>>,
    tier: Option<Cow<'a, str>>,
    tenant: Option<Cow<'a, str>>,
    cost: Option<Cow<'a, str>>,
    deny: Option<Cow<'a, str>>,
}

impl<'a> Query<'a> {
    fn parse(query: &'a str) -> Result<Self, Problem> {
        let mut parsed = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let place = match name {
                "policy" => &mut parsed.policy,
                "key" => &mut parsed.key,
                "tier" => &mut parsed.tier,
                "tenant" => &mut parsed.tenant,
                "cost" => &mut parsed.cost,
                "deny" => &mut parsed.deny,
                _ => {
                    return Err(Problem::bad(
                        "unknown parameter: expected policy, key, tier, tenant, cost or deny",
                    ));
                }
            };
            if place.is_some() {
                return Err(Problem::bad(format!(
                    "`{name}` is given twice: expected it once"
                )));
            }
            *place = Some(decoded(value)?);
        }
        Ok(parsed)
    }

    fn cost(&self) -> Result<Cost, Problem> {
        let Some(text) = &self.cost else {
            return Ok(Cost::ONE);
        };
        let invalid = || Problem::bad("`cost` is invalid: expected a number in steps of 0.001");
        text.parse().map_err(|_| invalid())
    }

    fn denied(&self) -> Result<StatusCode, Problem> {
        match self.deny.as_deref() {
            None | Some("429") => Ok(StatusCode::TOO_MANY_REQUESTS),
            Some("403") => Ok(StatusCode::FORBIDDEN),
            Some("401") => Ok(StatusCode::UNAUTHORIZED),
            Some(_) => Err(Problem::bad("`deny` is invalid: expected 429, 403 or 401")),
        }
    }
}

fn decoded(value: &str) -> Result<Cow<'_, str>, Problem> {
    percent_decode_str(value)
        .decode_utf8()
        .map_err(|_| Problem::bad("the query is invalid: expected UTF-8"))
}

/// Answers with 200, or with a denial, and the headers of the limit.
pub(super) async fn answer(caller: Caller<'_>, head: &Parts) -> Result<Response, Problem> {
    let query = Query::parse(head.uri.query().unwrap_or_default())?;
    let policy = query.policy.as_deref().ok_or_else(|| {
        Problem::bad("`policy` is missing: expected /v1/forward-auth?policy=NAME")
    })?;
    let denied = query.denied()?;
    if caller.active.config.forward_auth.skip_preflights && is_preflight(&head.headers) {
        return Ok(Response::default());
    }
    let subject = Subject {
        tier: query.tier.as_deref(),
        tenant: query.tenant.as_deref(),
        cost: query.cost()?,
        ..Subject::new(policy, key(caller, head, query.key.as_deref())?)
    };
    let _permit = caller.permit().await;
    let active = caller.active;
    let verdict = decide_subjects(caller, &[subject], false).await?;
    let mut response = Response::default();
    let cache = &active.policy_headers;
    let headers = rate_limit_headers(&verdict, active.header_format, false, None, cache);
    add_headers(response.headers_mut(), headers);
    let no_store = HeaderValue::from_static("no-store");
    response
        .headers_mut()
        .insert(http::header::CACHE_CONTROL, no_store);
    if let Some(denial) = Denial::new(&verdict) {
        add_headers(response.headers_mut(), denial.headers());
        let content_type = HeaderValue::from_static(PROBLEM_JSON);
        response.headers_mut().insert(CONTENT_TYPE, content_type);
        *response.status_mut() = match denial.reason() {
            tidegate::DenialReason::Outage => StatusCode::SERVICE_UNAVAILABLE,
            _ => denied,
        };
        *response.body_mut() = Full::from(denial.problem());
    }
    Ok(response)
}

/// Returns `true` for a preflight of a browser. A denial would be an opaque error there.
///
/// A gateway overwrites one of the headers, and a client may send the other, so all must agree.
fn is_preflight(headers: &HeaderMap) -> bool {
    let names = ["x-forwarded-method", "x-original-method"];
    let methods = || names.iter().flat_map(|name| headers.get_all(*name));
    let is_options = |method: &HeaderValue| method.as_bytes().eq_ignore_ascii_case(b"OPTIONS");
    methods().next().is_some()
        && methods().all(is_options)
        && headers.contains_key(http::header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// Returns the key: that of the query, the configured header, or the client's address. A header
/// never has the key of an address.
fn key<'a>(
    caller: Caller<'_>,
    head: &'a Parts,
    of_query: Option<&'a str>,
) -> Result<KeyBuf<'a>, Problem> {
    if let Some(key) = of_query {
        if key.is_empty() {
            return Err(Problem::bad(
                "`key` is empty: expected at least one character",
            ));
        }
        return Ok(key.into_key());
    }
    let active = caller.active;
    if let Some(name) = &active.config.forward_auth.key_header {
        let value = head.headers.get(name.as_str()).map(HeaderValue::as_bytes);
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            return Ok(("header", value).into_key());
        }
    }
    let forwarded = Forwarded {
        peer: caller.timeouts.peer(),
        headers: head.headers.clone(),
    };
    let address = active.client_address.of::<Gateway>(&forwarded);
    address
        .map(|address| address.to_string().into_key())
        .ok_or_else(|| Problem::bad("the client's address is unknown"))
}

/// A request that a gateway sent, for the middleware's rules of client addresses.
struct Gateway;

struct Forwarded {
    peer: SocketAddr,
    headers: HeaderMap,
}

impl Framework for Gateway {
    type Request = Forwarded;
    type ResponseHead = ();
    type Response = ();

    fn method(_: &Self::Request) -> &str {
        "GET"
    }

    fn path(_: &Self::Request) -> &str {
        "/"
    }

    fn headers<'a>(request: &'a Self::Request, name: &str, values: &mut SmallVec<[&'a [u8]; 4]>) {
        let lines = request.headers.get_all(name).iter();
        values.extend(lines.map(HeaderValue::as_bytes));
    }

    fn peer(request: &Self::Request) -> Option<IpAddr> {
        Some(request.peer.ip())
    }
}
