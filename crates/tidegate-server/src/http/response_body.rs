//! Responses that clients have not read yet. Each connection has some free bytes. Beyond them,
//! responses use a byte budget of all connections, so that a few clients that read nothing do not
//! starve the others.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;

use super::Response;
use super::dashboard::EventStream;
use super::problem::Problem;
use crate::net::{ByteBudget, Reservation, Timeouts};

/// Smaller HTTP/1.1 responses, of which a connection has one at a time, are not counted.
const SMALL: usize = 4 * 1024;
/// The bytes of responses that a connection may have without using the budget.
const FREE: usize = 16 * 1024;
/// The maximum size of a response to one check.
const MAX_CHECK_RESPONSE: usize = 1024;
/// The approximate size of one result of a batch.
const BYTES_PER_RESULT: usize = 320;

/// Marks a response whose body is part of the program, so it uses no memory.
#[derive(Clone, Copy)]
pub(crate) struct StaticBody;

/// The body of a response. hyper passes it on at once, to a buffer that empties as the client
/// reads. The bytes therefore hold their reservation until the last of them is dropped.
pub(crate) struct ResponseBody {
    body: Full<Bytes>,
    room: Option<ResponseReservation>,
    /// Sent after the body, for gRPC.
    trailers: Option<HeaderMap>,
    /// Sent instead of the body.
    events: Option<Box<EventStream>>,
}

/// The reservation of a response, in the budget and on its connection.
pub(crate) struct ResponseReservation {
    bytes: Reservation,
    length: usize,
    timeouts: Arc<Timeouts>,
}

impl ResponseReservation {
    /// Reserves room for the response to one check, before anything is decided.
    ///
    /// # Errors
    ///
    /// Returns an error if too many responses are unread.
    pub(crate) fn take(
        budget: &Arc<ByteBudget>,
        timeouts: &Arc<Timeouts>,
    ) -> Result<Self, Problem> {
        timeouts.response_pending();
        let mut room = Self {
            bytes: budget.held(),
            length: 0,
            timeouts: Arc::clone(timeouts),
        };
        if room.resize(MAX_CHECK_RESPONSE) {
            Ok(room)
        } else {
            Err(refused())
        }
    }

    /// Changes the reserved size. Returns `false`, and changes nothing, if there is no room.
    fn resize(&mut self, length: usize) -> bool {
        let is_free = self.timeouts.resize_pending(self.length, length, FREE);
        if !is_free {
            if !self.bytes.resize(length) {
                return false;
            }
            self.timeouts
                .resize_pending(self.length, length, usize::MAX);
        } else {
            self.bytes.resize(0);
        }
        self.length = length;
        true
    }
}

impl Drop for ResponseReservation {
    fn drop(&mut self) {
        self.timeouts.response_taken(self.length);
    }
}

/// The bytes of a response with their reservation.
struct ReservedBytes {
    data: Bytes,
    _room: ResponseReservation,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

/// Rejects a batch whose response would not fit, before anything is taken.
pub(crate) fn check_room_for_batch(
    budget: &ByteBudget,
    timeouts: &Timeouts,
    checks: usize,
) -> Result<(), Problem> {
    let bytes = checks.saturating_mul(BYTES_PER_RESULT);
    let has_room = timeouts.pending_bytes().saturating_add(bytes) <= FREE || budget.has_room(bytes);
    if has_room { Ok(()) } else { Err(refused()) }
}

fn refused() -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "too many unread responses: expected the client to read them",
    )
}

impl ResponseBody {
    /// Creates a response that is not counted.
    pub(crate) fn uncounted(response: Response) -> http::Response<Self> {
        response.map(|body| Self {
            body,
            room: None,
            trailers: None,
            events: None,
        })
    }

    /// Creates a response whose body is a stream of events. Each is small, and the next one waits
    /// until it is sent.
    pub(crate) fn streaming(response: Response, events: EventStream) -> http::Response<Self> {
        response.map(|body| Self {
            body,
            room: None,
            trailers: None,
            events: Some(Box::new(events)),
        })
    }

    /// Creates a response that is counted until the client has read it. For HTTP/2 the room was
    /// reserved before the decision.
    ///
    /// # Errors
    ///
    /// Returns an error if too many responses are unread.
    pub(crate) fn of(
        response: Response,
        room: Option<ResponseReservation>,
        budget: &Arc<ByteBudget>,
        timeouts: &Arc<Timeouts>,
    ) -> Result<http::Response<Self>, Problem> {
        let length = match response.extensions().get::<StaticBody>() {
            Some(StaticBody) => 0,
            None => usize::try_from(response.body().size_hint().lower()).unwrap_or(usize::MAX),
        };
        let mut room = match room {
            Some(room) => room,
            None if length <= SMALL => return Ok(Self::uncounted(response)),
            None => ResponseReservation::take(budget, timeouts)?,
        };
        if !room.resize(length) {
            return Err(refused());
        }
        Ok(response.map(|body| Self {
            body,
            room: Some(room),
            trailers: None,
            events: None,
        }))
    }

    /// Sends trailers after the body.
    pub(crate) fn with_trailers(mut self, trailers: HeaderMap) -> Self {
        self.trailers = Some(trailers);
        self
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(events) = &mut self.events {
            let event = std::task::ready!(events.poll_event(context));
            return Poll::Ready(event.map(|event| Ok(Frame::data(event))));
        }
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(None) = frame
            && let Some(trailers) = self.trailers.take()
        {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        let room = self.room.take();
        frame.map_ok(|frame| match room {
            Some(room) => {
                frame.map_data(|data| Bytes::from_owner(ReservedBytes { data, _room: room }))
            }
            None => frame,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && self.trailers.is_none() && self.events.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match self.events {
            Some(_) => SizeHint::default(),
            None => self.body.size_hint(),
        }
    }
}
