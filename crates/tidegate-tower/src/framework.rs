//! The requests and responses of the `http` crate.

use std::net::{IpAddr, SocketAddr};

use http::request::Parts;
use smallvec::SmallVec;
use tidegate_http::Framework;

use crate::body::DenialResponse;

/// The framework of the `http` crate's requests and responses.
#[derive(Clone, Copy, Debug)]
pub struct Tower;

/// The address of the peer. Put it into a request's extensions if the server does not.
///
/// A [`SocketAddr`], axum's `ConnectInfo` and tonic's are found too.
///
/// # Examples
///
/// ```
/// use axum::http::Request;
/// use tidegate::tower::PeerAddress;
///
/// // For servers that do not pass on the peer's address, such as hyper.
/// let mut request = Request::new(());
/// request.extensions_mut().insert(PeerAddress("192.0.2.7".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress(pub IpAddr);

impl Framework for Tower {
    type Request = Parts;
    type ResponseHead = http::response::Parts;
    type Response = DenialResponse;

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
        #[cfg(feature = "axum")]
        if let Some(axum::extract::connect_info::MockConnectInfo(address)) =
            extensions.get::<axum::extract::connect_info::MockConnectInfo<SocketAddr>>()
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
