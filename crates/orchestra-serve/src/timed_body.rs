//! The body of a request that must have arrived in time, so that no client holds memory by sending slowly.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::BoxError;
use axum::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Sleep, sleep};

/// Ends with this error where it is not whole in time.
pub fn timed(body: Body, within: Duration, error: fn() -> BoxError) -> Body {
    if body.is_end_stream() {
        return body;
    }
    Body::new(TimedBody { body, late: Box::pin(sleep(within)), error })
}

struct TimedBody {
    body: Body,
    late: Pin<Box<Sleep>>,
    error: fn() -> BoxError,
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        ready!(self.late.as_mut().poll(cx));
        Poll::Ready(Some(Err((self.error)())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
