//! The interface to a web framework.

use std::net::IpAddr;

use smallvec::SmallVec;

/// A web framework: the types of its requests and responses, and access to their parts.
pub trait Framework: 'static {
    /// The head of a request, as closures receive it.
    type Request;
    /// The head of a response, as closures receive it.
    type ResponseHead;
    /// A response that replaces the service's.
    type Response;

    /// Returns the method in capitals.
    fn method(request: &Self::Request) -> &str;

    /// Returns the path as it was sent, percent-encoded.
    fn path(request: &Self::Request) -> &str;

    /// Appends the values of all header lines with this name, in order.
    fn headers<'a>(request: &'a Self::Request, name: &str, values: &mut SmallVec<[&'a [u8]; 4]>);

    /// Returns the address of the peer, or `None` if the server does not provide it.
    fn peer(request: &Self::Request) -> Option<IpAddr>;
}
