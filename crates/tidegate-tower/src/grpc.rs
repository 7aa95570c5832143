//! gRPC: who is at the other end, and refusals in its own terms.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Extensions, HeaderValue, Response};
use tidegate_http::{Denial, RequestError};
use tonic::transport::server::TcpConnectInfo;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// The peer, as tonic's server passes it on.
pub(crate) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    let plain = extensions.get::<TcpConnectInfo>();
    #[cfg(feature = "tonic-tls")]
    let plain = plain.or_else(|| {
        let secured = extensions.get::<tonic::transport::server::TlsConnectInfo<TcpConnectInfo>>();
        secured.map(tonic::transport::server::TlsConnectInfo::get_ref)
    });
    plain?.remote_addr().map(|address| address.ip())
}

/// The answer to a request that could not be asked about.
pub(crate) fn error(error: &RequestError) -> Response<Bytes> {
    let code = if error.status() == 400 {
        Code::InvalidArgument
    } else {
        Code::Internal
    };
    Status::new(code, error.to_string()).into_http()
}

/// RESOURCE_EXHAUSTED with RetryInfo, as an answer of trailers only. HTTP's own status stays 200.
pub(crate) fn refusal(denial: &Denial<'_>) -> Response<Bytes> {
    let code = if denial.status() == 503 {
        Code::Unavailable
    } else {
        Code::ResourceExhausted
    };
    let wait = denial.retry_after().map(Duration::from_secs);
    let details = wait.map_or_else(ErrorDetails::new, |wait| {
        ErrorDetails::with_retry_info(Some(wait))
    });
    let mut response = Status::with_error_details(code, denial.detail(), details).into_http();
    // Minus one: do not try again.
    let pushback = match wait {
        Some(wait) => HeaderValue::from(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
        None if denial.status() == 503 => return response,
        None => HeaderValue::from_static("-1"),
    };
    response
        .headers_mut()
        .insert("grpc-retry-pushback-ms", pushback);
    response
}
