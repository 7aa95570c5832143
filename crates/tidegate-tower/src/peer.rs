//! What a request of `http` can be asked.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use http::request::Parts;
use smallvec::SmallVec;
use tidegate_http::Framework;

/// Requests and answers of the `http` crate.
#[derive(Clone, Copy, Debug)]
pub struct Tower;

/// Who is at the other end of the connection: put it among a request's extensions where the server does not. (A
/// [`SocketAddr`] there, axum's `ConnectInfo` and tonic's are found, too.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress(pub IpAddr);

impl Framework for Tower {
    type Request = Parts;
    type Reply = http::response::Parts;
    type Refusal = http::Response<Bytes>;

    fn method(request: &Parts) -> &str {
        request.method.as_str()
    }

    fn path(request: &Parts) -> &str {
        request.uri.path()
    }

    fn headers<'a>(request: &'a Parts, name: &str, values: &mut SmallVec<[&'a [u8]; 4]>) {
        values.extend(
            request
                .headers
                .get_all(name)
                .iter()
                .map(http::HeaderValue::as_bytes),
        );
    }

    fn peer(request: &Parts) -> Option<IpAddr> {
        let extensions = &request.extensions;
        if let Some(PeerAddress(address)) = extensions.get() {
            return Some(*address);
        }
        #[cfg(feature = "axum")]
        if let Some(axum::extract::ConnectInfo(address)) =
            extensions.get::<axum::extract::ConnectInfo<SocketAddr>>()
        {
            return Some(address.ip());
        }
        #[cfg(feature = "tonic")]
        if let Some(address) = crate::grpc::peer(extensions) {
            return Some(address);
        }
        extensions.get::<SocketAddr>().map(SocketAddr::ip)
    }
}
