//! What a web framework's requests can be asked.

use std::net::IpAddr;

use smallvec::SmallVec;

/// A web framework: the types of its requests and answers, and how to read them.
pub trait Framework: 'static {
    /// The head of a request, as closures get to see it.
    type Request;
    /// The head of an answer, as closures get to see it.
    type Reply;
    /// An answer in the place of the service's.
    type Refusal;

    /// The method, in capitals.
    fn method(request: &Self::Request) -> &str;

    /// The path, as it was sent: percent signs and all.
    fn path(request: &Self::Request) -> &str;

    /// Adds the values of all header lines of a name, in their order.
    fn headers<'a>(request: &'a Self::Request, name: &str, values: &mut SmallVec<[&'a [u8]; 4]>);

    /// Who is at the other end of the connection; `None` where nobody has said.
    fn peer(request: &Self::Request) -> Option<IpAddr>;
}
