//! The requests and responses of actix-web.

use std::net::IpAddr;

use actix_web::HttpResponse;
use actix_web::dev::{ResponseHead, ServiceRequest};
use smallvec::SmallVec;
use tidegate_http::Framework;

/// The framework of actix-web's requests and responses.
#[derive(Clone, Copy, Debug)]
pub struct Actix;

impl Framework for Actix {
    type Request = ServiceRequest;
    type ResponseHead = ResponseHead;
    type Response = HttpResponse;

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

    /// Returns the address of the connection itself. actix-web's `realip_remote_addr` trusts
    /// headers that any client can write.
    fn peer(request: &ServiceRequest) -> Option<IpAddr> {
        request.peer_addr().map(|address| address.ip())
    }
}
