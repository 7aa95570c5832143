//! A framework whose requests consist of a head only.
#![allow(missing_docs, dead_code, unreachable_pub)] // Not every test uses all of it.

use std::net::IpAddr;

use tidegate_http::Framework;

pub struct Plain;

#[derive(Clone, Debug)]
pub struct Head {
    pub method: &'static str,
    pub path: String,
    pub headers: Vec<(&'static str, Vec<u8>)>,
    pub peer: Option<IpAddr>,
}

impl Default for Head {
    fn default() -> Self {
        Self {
            method: "GET",
            path: "/".to_owned(),
            headers: Vec::new(),
            peer: "192.0.2.1".parse().ok(),
        }
    }
}

impl Framework for Plain {
    type Request = Head;
    type ResponseHead = u16;
    type Response = String;

    fn method(request: &Head) -> &str {
        request.method
    }

    fn path(request: &Head) -> &str {
        &request.path
    }

    fn headers<'a>(request: &'a Head, name: &str, values: &mut smallvec::SmallVec<[&'a [u8]; 4]>) {
        values.extend(
            request
                .headers
                .iter()
                .filter(|(header, _)| *header == name)
                .map(|(_, value)| &value[..]),
        );
    }

    fn peer(request: &Head) -> Option<IpAddr> {
        request.peer
    }
}
