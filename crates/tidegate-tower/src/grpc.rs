//! gRPC: the peer's address, and denials as gRPC statuses.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Extensions, HeaderValue, Response};
use tidegate_http::{Denial, RequestError};
use tonic::transport::server::TcpConnectInfo;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// Returns the peer's address that tonic's server provides.
pub(crate) fn peer(extensions: &Extensions) -> Option<IpAddr> {
    let plain = extensions.get::<TcpConnectInfo>();
    #[cfg(feature = "tonic-tls")]
    let plain = plain.or_else(|| {
        let secured = extensions.get::<tonic::transport::server::TlsConnectInfo<TcpConnectInfo>>();
        secured.map(tonic::transport::server::TlsConnectInfo::get_ref)
    });
    plain?.remote_addr().map(|address| address.ip())
}

/// Returns the response to a request that could not be checked.
pub(crate) fn error(error: &RequestError) -> Response<Bytes> {
    let code = if error.status() == 400 {
        Code::InvalidArgument
    } else {
        Code::Internal
    };
    Status::new(code, error.to_string()).into_http()
}

/// Returns RESOURCE_EXHAUSTED with RetryInfo, as a trailers-only response with the HTTP status 200.
pub(crate) fn denied(denial: &Denial<'_>) -> Response<Bytes> {
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
    // -1 means: do not retry.
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
