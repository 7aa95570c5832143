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
    room: Option<Room>,
}

/// The room of a response: its part of the budget, and of what its connection may have.
pub(super) struct Room {
    bytes: Held,
    length: usize,
    watch: Arc<Watch>,
}

impl Room {
    /// Room for the response to one check, taken before anything is decided.
    ///
    /// # Errors
    /// If too many responses are pending.
    pub(super) fn take(budget: &Arc<Budget>, watch: &Arc<Watch>) -> Result<Self, Problem> {
        watch.response_pending();
        let mut room = Self {
            bytes: budget.held(),
            length: 0,
            watch: Arc::clone(watch),
        };
        if room.resize(LARGEST_ANSWER) {
            Ok(room)
        } else {
            Err(refused())
        }
    }

    /// Makes room for so many bytes. False, and as before, if there is none.
    fn resize(&mut self, length: usize) -> bool {
        let is_free = self.watch.resize_pending(self.length, length, FREE);
        if !is_free {
            if !self.bytes.resize(length) {
                return false;
            }
            self.watch.resize_pending(self.length, length, usize::MAX);
        } else {
            self.bytes.resize(0);
        }
        self.length = length;
        true
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.watch.response_taken(self.length);
    }
}

/// Bytes of a response that hold their part of the budget.
struct Owned {
    data: Bytes,
    _room: Room,
}

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

/// Refuses a batch of so many checks whose response there would be no room for: before anything is taken.
pub(super) fn check_room_for_batch(
    budget: &Budget,
    watch: &Watch,
    checks: usize,
) -> Result<(), Problem> {
    let bytes = checks.saturating_mul(BYTES_AN_ANSWER);
    let has_room = watch.pending_bytes().saturating_add(bytes) <= FREE || budget.has_room(bytes);
    if has_room { Ok(()) } else { Err(refused()) }
}

fn refused() -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "too many responses are pending: read them first",
    )
}

impl Pending {
    /// A response that is not counted.
    pub(super) fn uncounted(response: Response) -> http::Response<Self> {
        response.map(|body| Self { body, room: None })
    }

    /// A response that is counted until the client has taken it. Room for one of HTTP/2 was taken before it was decided on.
    ///
    /// # Errors
    /// If too many are pending.
    pub(super) fn of(
        response: Response,
        room: Option<Room>,
        budget: &Arc<Budget>,
        watch: &Arc<Watch>,
    ) -> Result<http::Response<Self>, Problem> {
        let length = match response.extensions().get::<Static>() {
            Some(Static) => 0,
            None => usize::try_from(response.body().size_hint().lower()).unwrap_or(usize::MAX),
        };
        let mut room = match room {
            Some(room) => room,
            None if length <= SMALL => return Ok(Self::uncounted(response)),
            None => Room::take(budget, watch)?,
        };
        if !room.resize(length) {
            return Err(refused());
        }
        Ok(response.map(|body| Self {
            body,
            room: Some(room),
        }))
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
        let room = self.room.take();
        frame.map_ok(|frame| match room {
            Some(room) => frame.map_data(|data| Bytes::from_owner(Owned { data, _room: room })),
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
