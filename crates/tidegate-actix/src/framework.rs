//! What a request of actix-web can be asked.

use std::net::IpAddr;

use actix_web::HttpResponse;
use actix_web::dev::{ResponseHead, ServiceRequest};
use smallvec::SmallVec;
use tidegate_http::Framework;

/// Requests and answers of actix-web.
#[derive(Clone, Copy, Debug)]
pub struct Actix;

impl Framework for Actix {
    type Request = ServiceRequest;
    type Reply = ResponseHead;
    type Refusal = HttpResponse;

    fn method(request: &ServiceRequest) -> &str {
        request.method().as_str()
    }

    fn path(request: &ServiceRequest) -> &str {
        request.uri().path()
    }

    fn headers<'a>(request: &'a ServiceRequest, name: &str, values: &mut SmallVec<[&'a [u8]; 4]>) {
        values.extend(
            request
                .headers()
                .get_all(name)
                .map(|value| value.as_bytes()),
        );
    }

    /// Of the connection itself: what actix-web makes of headers is anybody's to write.
    fn peer(request: &ServiceRequest) -> Option<IpAddr> {
        request.peer_addr().map(|address| address.ip())
    }
}
