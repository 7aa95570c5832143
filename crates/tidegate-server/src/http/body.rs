//! Reads request bodies, within a size and a time.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::problem::Problem;
use crate::net::{ByteBudget, Reservation};

/// Reads the whole body. On an error the unread rest stays in `body`.
pub(crate) async fn read(
    body: &mut Option<Incoming>,
    limit: usize,
    timeout: Duration,
    bodies: &Arc<ByteBudget>,
) -> Result<Bytes, Problem> {
    let Some(coming) = body else {
        return Ok(Bytes::new());
    };
    let read = read_all(coming, limit, timeout, bodies).await?;
    *body = None;
    Ok(read)
}

async fn read_all(
    body: &mut Incoming,
    limit: usize,
    timeout: Duration,
    bodies: &Arc<ByteBudget>,
) -> Result<Bytes, Problem> {
    // A body that announces too large a size is not read.
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large(limit));
    }
    let mut reading = pin!(collect(body, limit, bodies.held()));
    // The body usually arrives with the head, so no timer is needed.
    let at_once = std::future::poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await;
    if let Poll::Ready(read) = at_once {
        return read;
    }
    match tokio::time::timeout(timeout, reading).await {
        Ok(read) => read,
        Err(_) => Err(Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not arrive within {timeout:?}"),
        )),
    }
}

/// Discards a body, up to a maximum, so that the connection can continue. Returns `true` if it was
/// read completely.
pub(crate) async fn drain(mut body: Incoming, limit: usize, timeout: Duration) -> bool {
    if body.size_hint().lower() > limit as u64 {
        return false;
    }
    let draining = async {
        let mut read = 0;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else { return false };
            read += frame.data_ref().map_or(0, Bytes::len);
            if read > limit {
                return false;
            }
        }
        true
    };
    tokio::time::timeout(timeout, draining)
        .await
        .unwrap_or(false)
}

async fn collect(
    body: &mut Incoming,
    limit: usize,
    mut held: Reservation,
) -> Result<Bytes, Problem> {
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| Problem::bad(format!("the body ended early: {error}")))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if first.len() + all.len() + data.len() > limit {
            return Err(too_large(limit));
        }
        // The last frame, usually the first, needs no reservation.
        if !body.is_end_stream() && !held.grow(data.len()) {
            return Err(Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many request bodies are in progress",
            ));
        }
        if first.is_empty() && all.is_empty() {
            first = data;
        } else {
            all.extend_from_slice(&std::mem::take(&mut first));
            all.extend_from_slice(&data);
        }
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}

fn too_large(limit: usize) -> Problem {
    Problem::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        format!("the body is too large: expected at most {limit} bytes"),
    )
}
