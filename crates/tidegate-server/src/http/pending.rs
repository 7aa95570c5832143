//! Responses that clients have not taken yet, within a budget of bytes for all connections together.

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
const SMALL: u64 = 4 * 1024;

/// The body of a response. hyper hands it on at once, to a buffer that empties as the client takes it: so the bytes themselves
/// hold their part of the budget, until the last of them is dropped.
pub(crate) struct Pending {
    body: Full<Bytes>,
    held: Option<HeldResponse>,
}

/// A response's part of the budget, and of what its connection's watch knows.
struct HeldResponse {
    _bytes: Held,
    watch: Arc<Watch>,
}

impl Drop for HeldResponse {
    fn drop(&mut self) {
        self.watch.response_taken();
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

impl Pending {
    /// The response, or one that says that too many are pending.
    pub(super) fn of(
        response: Response,
        is_http1: bool,
        budget: &Arc<Budget>,
        watch: &Arc<Watch>,
    ) -> http::Response<Self> {
        let length = response.body().size_hint().lower();
        if is_http1 && length <= SMALL {
            return response.map(|body| Self { body, held: None });
        }
        let mut bytes = budget.held();
        if bytes.resize(usize::try_from(length).unwrap_or(usize::MAX)) {
            watch.response_pending();
            let held = HeldResponse { _bytes: bytes, watch: Arc::clone(watch) };
            return response.map(|body| Self { body, held: Some(held) });
        }
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many responses are pending: read them first");
        problem.response().map(|body| Self { body, held: None })
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
