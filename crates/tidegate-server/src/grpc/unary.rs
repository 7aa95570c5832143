//! Messages of unary calls: a flag, a length and the message, in both directions.

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue};
use http_body_util::Full;
use prost::Message;
use tonic::{Code, Status};

use crate::http::problem::Problem;

pub(super) const GRPC: &str = "application/grpc";
const STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The length of the flag and the length before each message.
const PREFIX: usize = 5;

/// Decodes the only message of a body.
pub(super) fn decode<M: Message + Default>(body: &[u8]) -> Result<M, Status> {
    let Some((prefix, message)) = body.split_first_chunk::<PREFIX>() else {
        return Err(Status::invalid_argument("the message is missing"));
    };
    let [is_compressed, length @ ..] = *prefix;
    if is_compressed != 0 {
        return Err(Status::unimplemented("compressed messages: expected none"));
    }
    if usize::try_from(u32::from_be_bytes(length)) != Ok(message.len()) {
        return Err(Status::invalid_argument(
            "expected one message of the announced length",
        ));
    }
    M::decode(message)
        .map_err(|error| Status::invalid_argument(format!("the message is invalid: {error}")))
}

/// Encodes a message as the body of a response.
pub(super) fn encode(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // The buffer grows as needed, so this cannot fail.
    let _ = message.encode(&mut bytes);
    bytes.freeze()
}

/// Returns a successful response. The trailers are sent after it.
pub(super) fn response(body: Bytes) -> http::Response<Full<Bytes>> {
    let mut response = http::Response::new(Full::new(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(GRPC));
    response
}

/// Returns the trailers of a successful response.
pub(super) fn ok_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(STATUS, HeaderValue::from_static("0"));
    trailers
}

/// Converts the problem of a request that was read or authorized like one over HTTP.
pub(super) fn status(problem: &Problem) -> Status {
    use http::StatusCode;
    let code = match problem.status() {
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::BAD_REQUEST => Code::InvalidArgument,
        StatusCode::REQUEST_TIMEOUT => Code::DeadlineExceeded,
        StatusCode::SERVICE_UNAVAILABLE => Code::ResourceExhausted,
        _ => Code::Internal,
    };
    Status::new(code, problem.detail())
}
