//! The protocol over HTTP: JSON, with the elements of tensors in it or, as binary data, behind it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use subtle::ConstantTimeEq as _;

use crate::call::{Call, NamedData, WantedOutput, priority};
use crate::error::{self, ErrorKind, ServeError};
use crate::json;
use crate::metrics;
use crate::protocol::Statistics;
use crate::repository::{Entry, VERSION};
use crate::service::Service;
use crate::whole_body::whole_body;

/// How long the JSON in front of binary data is.
const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");
/// Most JSON in front of binary data is shorter.
const HEAD_BYTES: usize = 512;

/// No layers: each would box the request once more. What handlers have alike is in [`Authorized`] and [`whole_body`].
pub fn router(service: Service) -> Router {
    let mut router = Router::new()
        .route("/v2", get(async |State(service): State<Service>, _: Authorized| json_of(service.metadata())))
        .route("/v2/models/stats", get(statistics))
        .route("/metrics", get(metrics))
        .route("/v2/repository/index", post(index))
        .route("/v2/repository/models/{model}/load", post(load))
        .route("/v2/repository/models/{model}/unload", post(unload))
        .route("/v2/health/live", get(async || StatusCode::OK))
        .route("/v2/health/ready", get(ready));
    for model in ["/v2/models/{model}", "/v2/models/{model}/versions/{version}"] {
        router = router
            .route(model, get(async |Named(entry): Named| entry.metadata().map(json_of)))
            .route(
                &format!("{model}/ready"),
                get(async |Named(entry): Named| entry.metadata().map(|_| StatusCode::OK)),
            )
            .route(&format!("{model}/config"), get(async |Named(entry): Named| entry.config().map(json_of)))
            .route(
                &format!("{model}/stats"),
                get(async |Named(entry): Named| json_of(Statistics::of([&entry]))),
            )
            .route(&format!("{model}/infer"), post(infer));
    }
    let unknown = async |request: Request| {
        let what = format!("there is no `{} {}`", request.method(), request.uri().path());
        ServeError::new(ErrorKind::NotFound, what)
    };
    router.fallback(unknown).with_state(service)
}

/// Whether the headers bring the token, if there is one.
pub fn is_authorized(service: &Service, headers: &HeaderMap) -> bool {
    let Some(token) = service.token() else { return true };
    let brought = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
    let brought = brought.and_then(|value| value.strip_prefix(b"Bearer "));
    brought.is_some_and(|brought| brought.ct_eq(token.as_bytes()).into())
}

/// A request that brings the token, if there is one.
struct Authorized;

impl FromRequestParts<Service> for Authorized {
    type Rejection = ServeError;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, ServeError> {
        if is_authorized(service, &parts.headers) {
            return Ok(Self);
        }
        let what = "this server asks for a token: `Authorization: Bearer TOKEN`";
        Err(ServeError::new(ErrorKind::Unauthorized, what))
    }
}

impl IntoResponse for ServeError {
    fn into_response(self) -> Response {
        let status = match self.kind {
            ErrorKind::Invalid => StatusCode::BAD_REQUEST,
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            ErrorKind::Unauthorized => StatusCode::UNAUTHORIZED,
            ErrorKind::Overloaded | ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::TooSlow => StatusCode::REQUEST_TIMEOUT,
            ErrorKind::Deadline => StatusCode::GATEWAY_TIMEOUT,
            ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let mut response = (status, json_of(json!({ "error": self.message }))).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, error::RETRY_AFTER.as_secs().into());
        }
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

fn json_of(value: impl Serialize) -> Response {
    let text = serde_json::to_vec(&value).expect("its keys are texts");
    ([(CONTENT_TYPE, "application/json")], text).into_response()
}

/// What the path names, for a request that brings the token, if there is one.
struct Named(Arc<Entry>);

impl FromRequestParts<Service> for Named {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, service: &Service) -> Result<Self, Response> {
        #[derive(Deserialize)]
        struct ModelPath {
            model: String,
            #[serde(default)]
            version: String,
        }
        Authorized::from_request_parts(parts, service).await.map_err(IntoResponse::into_response)?;
        let path = Path::from_request_parts(parts, service).await;
        let Path(ModelPath { model, version }) = path.map_err(IntoResponse::into_response)?;
        service.entry(&model, &version).map(Self).map_err(IntoResponse::into_response)
    }
}

async fn ready(State(service): State<Service>) -> StatusCode {
    if service.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

async fn statistics(State(service): State<Service>, _: Authorized) -> Response {
    json_of(service.statistics())
}

async fn metrics(State(service): State<Service>, _: Authorized) -> Response {
    let page = metrics::page(&service.statistics().model_stats);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], page).into_response()
}

async fn index(
    State(service): State<Service>,
    _: Authorized,
    request: Request,
) -> Result<Response, ServeError> {
    #[derive(Deserialize, Default)]
    struct IndexBody {
        #[serde(default)]
        ready: bool,
    }
    let asked: IndexBody = small_body(&service, request).await?;
    Ok(json_of(service.index(asked.ready)))
}

async fn load(
    State(service): State<Service>,
    Named(entry): Named,
    request: Request,
) -> Result<(), ServeError> {
    #[derive(Deserialize, Default)]
    struct LoadBody {
        #[serde(default)]
        parameters: BTreeMap<String, IgnoredAny>,
    }
    let asked: LoadBody = small_body(&service, request).await?;
    entry.load_as_it_is(asked.parameters.keys()).await
}

async fn unload(Named(entry): Named) {
    entry.unload("it was unloaded").await;
}

/// A body that may be left out.
async fn small_body<T: DeserializeOwned + Default>(
    service: &Service,
    request: Request,
) -> Result<T, ServeError> {
    let (parts, body) = request.into_parts();
    let body = whole_body(service.limits(), &parts.headers, body).await?;
    if body.is_empty() { Ok(T::default()) } else { parsed(&body) }
}

fn parsed<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, ServeError> {
    serde_json::from_slice(json)
        .map_err(|error| ServeError::invalid(format!("the request is no JSON of the protocol: {error}")))
}

#[derive(Deserialize)]
struct InferBody<'a> {
    #[serde(default)]
    id: String,
    #[serde(default)]
    parameters: InferParameters,
    #[serde(borrow)]
    inputs: Vec<InputBody<'a>>,
    #[serde(default)]
    outputs: Vec<OutputBody>,
}

#[derive(Deserialize, Default)]
struct InferParameters {
    #[serde(default)]
    binary_data_output: bool,
    /// Microseconds.
    timeout: Option<u64>,
    #[serde(default)]
    priority: u64,
}

#[derive(Deserialize)]
struct InputBody<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    shape: Vec<i64>,
    #[serde(borrow)]
    datatype: Cow<'a, str>,
    #[serde(default)]
    parameters: InputParameters,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
struct InputParameters {
    binary_data_size: Option<usize>,
}

#[derive(Deserialize)]
struct OutputBody {
    name: String,
    #[serde(default)]
    parameters: OutputParameters,
}

#[derive(Deserialize, Default)]
struct OutputParameters {
    #[serde(default)]
    classification: usize,
    binary_data: Option<bool>,
}

#[derive(Serialize)]
struct AnswerBody<'a> {
    model_name: &'a str,
    model_version: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    id: &'a str,
    outputs: Vec<AnswerOutput<'a>>,
}

#[derive(Serialize)]
struct AnswerOutput<'a> {
    name: &'a str,
    datatype: &'static str,
    shape: &'a [usize],
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<BinarySize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<json::OutputData<'a>>,
}

#[derive(Serialize)]
struct BinarySize {
    binary_data_size: usize,
}

async fn infer(
    State(service): State<Service>,
    Named(entry): Named,
    request: Request,
) -> Result<Response, ServeError> {
    let (Parts { headers, .. }, body) = request.into_parts();
    let body = whole_body(service.limits(), &headers, body).await?;
    let (call, default_binary) = call(&headers, &body)?;
    let id = call.id.clone();
    let binary: Vec<bool> = call.outputs.iter().map(|output| output.is_binary).collect();
    let outputs = service.infer(&entry, call).await?;
    written(&entry.name, &id, &outputs, |at| binary.get(at).copied().unwrap_or(default_binary))
}

/// Reads a request. Gives, too, whether outputs that it does not name are binary data.
fn call(headers: &HeaderMap, body: &Bytes) -> Result<(Call, bool), ServeError> {
    let json_bytes = match headers.get(JSON_LENGTH) {
        None => body.len(),
        Some(length) => {
            let length = length.to_str().ok().and_then(|length| length.parse().ok());
            length.filter(|length| *length <= body.len()).ok_or_else(|| {
                ServeError::invalid(format!(
                    "header `{JSON_LENGTH}` is no length of JSON within the {} bytes of the request",
                    body.len()
                ))
            })?
        }
    };
    let (json, mut binary) = (body.slice(..json_bytes), body.slice(json_bytes..));
    let asked: InferBody<'_> = parsed(&json)?;
    let mut inputs = Vec::with_capacity(asked.inputs.len());
    for InputBody { name, shape, datatype, parameters, data } in &asked.inputs {
        inputs.push(match (parameters.binary_data_size, data) {
            (Some(size), None) if size <= binary.len() => {
                NamedData::from_raw(name, datatype, shape, binary.split_to(size))?
            }
            (None, Some(data)) => json::read(name, datatype, shape, data)?,
            _ => {
                return Err(ServeError::invalid(format!(
                    "input `{name}` needs either `data` or a parameter `binary_data_size` of at most the {} bytes of binary data that are left",
                    binary.len()
                )));
            }
        });
    }
    if !binary.is_empty() {
        return Err(ServeError::invalid(format!("{} bytes of binary data are of no input", binary.len())));
    }
    let InferParameters { binary_data_output: default_binary, timeout, priority: level } = asked.parameters;
    let outputs = asked.outputs.into_iter().map(|OutputBody { name, parameters }| WantedOutput {
        name,
        classes: parameters.classification,
        is_binary: parameters.binary_data.unwrap_or(default_binary),
    });
    let call = Call {
        outputs: outputs.collect(),
        within: timeout.filter(|us| *us > 0).map(Duration::from_micros),
        priority: priority(level),
        id: asked.id,
        traceparent: traceparent(headers),
        inputs,
    };
    Ok((call, default_binary))
}

/// The trace that a request belongs to.
pub fn traceparent(headers: &HeaderMap) -> Option<String> {
    headers.get("traceparent").and_then(|value| value.to_str().ok()).map(str::to_owned)
}

fn written(
    model: &str,
    id: &str,
    outputs: &[NamedData],
    is_binary: impl Fn(usize) -> bool,
) -> Result<Response, ServeError> {
    let raw = outputs.iter().enumerate().map(|(at, output)| is_binary(at).then(|| output.to_raw()));
    let raw: Vec<Option<Bytes>> = raw.collect();
    let outputs = outputs.iter().zip(&raw).map(|(output, raw)| AnswerOutput {
        name: &output.name,
        datatype: output.datatype().name(),
        shape: &output.shape,
        parameters: raw.as_ref().map(|raw| BinarySize { binary_data_size: raw.len() }),
        data: raw.is_none().then_some(json::OutputData(output)),
    });
    let body = AnswerBody { model_name: model, model_version: VERSION, id, outputs: outputs.collect() };
    let n_raw: usize = raw.iter().flatten().map(Bytes::len).sum();
    let mut all = Vec::with_capacity(HEAD_BYTES + n_raw);
    serde_json::to_writer(&mut all, &body).map_err(|error| ServeError::invalid(error.to_string()))?;
    if raw.iter().all(Option::is_none) {
        return Ok(([(CONTENT_TYPE, "application/json")], all).into_response());
    }
    let length = all.len();
    raw.iter().flatten().for_each(|raw| all.extend_from_slice(raw));
    let mut response = Response::new(Body::from(all));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    response.headers_mut().insert(JSON_LENGTH, length.into());
    Ok(response)
}
