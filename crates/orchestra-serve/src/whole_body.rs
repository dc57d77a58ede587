//! The body of a request over HTTP: whole, in time, within its bound, and no longer compressed. It reads nothing into it.

use std::error::Error as _;
use std::io::{self, Read};

use axum::body::{Body, to_bytes};
use bytes::{Buf as _, Bytes};
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, HeaderValue};
use http_body::Body as _;
use http_body_util::LengthLimitError;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::error::{ErrorKind, ServeError};
use crate::service::ServiceLimits;

/// The whole body of a request, as it was before it was compressed. Of one that announces too much, nothing is read.
pub async fn whole_body(
    limits: &ServiceLimits,
    headers: &HeaderMap,
    body: Body,
) -> Result<Bytes, ServeError> {
    let ServiceLimits { message_bytes: most, read_timeout, .. } = *limits;
    if body.size_hint().lower() > most as u64 {
        return Err(too_large(most));
    }
    let read = to_bytes(body, most);
    let read = match read_timeout {
        Some(within) => timeout(within, read).await.map_err(|_| ServeError::too_slow())?,
        None => read.await,
    };
    let body = read.map_err(|error| match error.source() {
        Some(cause) if cause.is::<LengthLimitError>() => too_large(most),
        _ => ServeError::invalid(format!("the body cannot be read: {error}")),
    })?;
    match headers.get(CONTENT_ENCODING).map(HeaderValue::as_bytes) {
        None | Some(b"identity") => Ok(body),
        Some(b"gzip") => inflated(MultiGzDecoder::new(body.reader()), most).await,
        Some(b"deflate") => inflated(ZlibDecoder::new(body.reader()), most).await,
        Some(other) => Err(ServeError::invalid(format!(
            "`Content-Encoding: {}` is not known here; send gzip, deflate, or none",
            other.escape_ascii()
        ))),
    }
}

/// On a thread of its own, since a small body may become a large one.
async fn inflated(body: impl Read + Send + 'static, most: usize) -> Result<Bytes, ServeError> {
    let read = move || {
        let mut whole = Vec::new();
        body.take(most as u64 + 1).read_to_end(&mut whole).map(|_| whole)
    };
    match spawn_blocking(read).await.map_err(io::Error::other).flatten() {
        Ok(whole) if whole.len() > most => Err(too_large(most)),
        Ok(whole) => Ok(whole.into()),
        Err(error) => Err(ServeError::invalid(format!("the body cannot be decompressed: {error}"))),
    }
}

fn too_large(most: usize) -> ServeError {
    ServeError::new(ErrorKind::TooLarge, format!("the request is larger than {most} bytes"))
}
