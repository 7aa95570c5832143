//! Responses that clients have not taken yet. Each connection has some room of its own; beyond that, responses come out of a
//! budget of bytes for all connections together, so that a few clients that read nothing take nothing from the others.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;

use super::Response;
use super::problem::Problem;
use crate::net::{Budget, Held, Watch};

/// Smaller responses of HTTP/1.1, of which a connection has one at a time, are not counted.
const SMALL: usize = 4 * 1024;
/// Bytes of responses that a connection may have of its own.
const FREE: usize = 16 * 1024;
/// A response to one check takes less.
const LARGEST_ANSWER: usize = 1024;
/// An answer of a batch takes about so much.
const BYTES_AN_ANSWER: usize = 256;

/// Marks a response whose body is part of the program: it takes no memory.
#[derive(Clone, Copy)]
pub(super) struct Static;

/// The body of a response. hyper hands it on at once, to a buffer that empties as the client takes it: so the bytes themselves
/// hold their part of the budget, until the last of them is dropped.
pub(crate) struct Pending {
    body: Full<Bytes>,
    held: Option<HeldResponse>,
}

/// A response's part of the budget, and of what its connection's watch knows.
struct HeldResponse {
    _bytes: Held,
    length: usize,
    watch: Arc<Watch>,
}

impl Drop for HeldResponse {
    fn drop(&mut self) {
        self.watch.response_taken(self.length);
    }
}

/// Bytes of a response that hold their part of the budget.
struct Owned {
    data: Bytes,
    _held: HeldResponse,
}

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

/// Refuses a request of HTTP/2 whose response there would be no room for: before anything is taken.
pub(super) fn check_room(budget: &Budget, watch: &Watch) -> Result<(), Problem> {
    if has_room(budget, watch, LARGEST_ANSWER) { Ok(()) } else { Err(refused()) }
}

/// The same for a batch of so many checks.
pub(super) fn check_room_for_batch(budget: &Budget, watch: &Watch, checks: usize) -> Result<(), Problem> {
    if has_room(budget, watch, checks.saturating_mul(BYTES_AN_ANSWER)) { Ok(()) } else { Err(refused()) }
}

fn has_room(budget: &Budget, watch: &Watch, bytes: usize) -> bool {
    watch.pending_bytes().saturating_add(bytes) <= FREE || budget.has_room(bytes)
}

fn refused() -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many responses are pending: read them first")
}

impl Pending {
    /// A response that is not counted.
    pub(super) fn uncounted(response: Response) -> http::Response<Self> {
        response.map(|body| Self { body, held: None })
    }

    /// A response that is counted until the client has taken it.
    ///
    /// # Errors
    /// If too many are pending.
    pub(super) fn of(
        response: Response,
        is_http1: bool,
        budget: &Arc<Budget>,
        watch: &Arc<Watch>,
    ) -> Result<http::Response<Self>, Problem> {
        let length = match response.extensions().get::<Static>() {
            Some(Static) => 0,
            None => usize::try_from(response.body().size_hint().lower()).unwrap_or(usize::MAX),
        };
        if is_http1 && length <= SMALL {
            return Ok(Self::uncounted(response));
        }
        let mut bytes = budget.held();
        let is_free = watch.pending_bytes().saturating_add(length) <= FREE;
        if !is_free && !bytes.resize(length) {
            return Err(refused());
        }
        watch.response_pending(length);
        let held = HeldResponse { _bytes: bytes, length, watch: Arc::clone(watch) };
        Ok(response.map(|body| Self { body, held: Some(held) }))
    }
}

impl Body for Pending {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        let held = self.held.take();
        frame.map_ok(|frame| match held {
            Some(held) => frame.map_data(|data| Bytes::from_owner(Owned { data, _held: held })),
            None => frame,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
