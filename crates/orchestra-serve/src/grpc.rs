//! The protocol over gRPC. Tensors are raw bytes beside the messages, or lists of elements in them; answers are raw.

use std::convert::Infallible;
use std::future::{self, Ready};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use half::f16;
use http::{Request, Response};
use orchestra::{DType, Tensor};
use prost::Message;
use tonic::codec::CompressionEncoding;
use tonic::server::{Grpc, StreamingService, UnaryService};
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;
use tower_service::Service as TowerService;

use crate::call::{Call, Data, NamedData, WantedOutput, priority, shape_of};
use crate::datatype::Datatype;
use crate::error::{ErrorKind, ServeError};
use crate::http::{is_authorized, traceparent};
use crate::protocol::{
    Flag, InferInputTensor, InferTensorContents, ModelConfigResponse, ModelInferRequest, ModelInferResponse,
    ModelMetadata, ModelName, ModelStreamInferResponse, Nothing, Parameter, Parameters, RepositoryIndex,
    RepositoryIndexRequest, RepositoryModel, ServerMetadata, Statistics, TensorMetadata,
};
use crate::repository::VERSION;
use crate::service::Service;
use crate::timed_body::timed;

pub fn router(service: Service) -> Router {
    Router::new().route_service("/inference.GRPCInferenceService/{method}", Methods(service))
}

/// The methods by the last part of their path.
#[derive(Clone)]
struct Methods(Service);

impl TowerService<Request<Body>> for Methods {
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move { Ok(answer(service, request).await) })
    }
}

async fn answer(service: Service, request: Request<Body>) -> Response<tonic::body::Body> {
    let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let is_of_health = ["ServerLive", "ServerReady"].contains(&&*method);
    if !is_of_health && !is_authorized(&service, request.headers()) {
        let what = "this server asks for a token: metadata `authorization: Bearer TOKEN`";
        return Status::unauthenticated(what).into_http();
    }
    let trace = traceparent(request.headers());
    match &*method {
        "ServerLive" => unary(service, request, live).await,
        "ServerReady" => unary(service, request, ready).await,
        "ServerMetadata" => unary(service, request, server_metadata).await,
        "ModelReady" => unary(service, request, model_ready).await,
        "ModelMetadata" => unary(service, request, metadata).await,
        "ModelConfig" => unary(service, request, config).await,
        "ModelStatistics" => unary(service, request, statistics).await,
        "RepositoryIndex" => unary(service, request, index).await,
        "RepositoryModelLoad" => unary(service, request, load).await,
        "RepositoryModelUnload" => unary(service, request, unload).await,
        "ModelInfer" => {
            unary(service, request, move |service, asked| infer(service, asked, trace.clone())).await
        }
        "ModelStreamInfer" => {
            let mut grpc = grpc::<ModelInferRequest, ModelStreamInferResponse>(&service);
            grpc.streaming(InferStream(service, trace), request).await
        }
        other => Status::unimplemented(format!("there is no method `{other}`")).into_http(),
    }
}

async fn live(_: Service, _: Nothing) -> Result<Flag, ServeError> {
    Ok(Flag { is: true })
}

async fn ready(service: Service, _: Nothing) -> Result<Flag, ServeError> {
    Ok(Flag { is: service.is_ready() })
}

async fn server_metadata(service: Service, _: Nothing) -> Result<ServerMetadata, ServeError> {
    Ok(service.metadata())
}

async fn model_ready(service: Service, of: ModelName) -> Result<Flag, ServeError> {
    Ok(Flag { is: service.entry(&of.name, &of.version)?.is_ready() })
}

async fn metadata(service: Service, of: ModelName) -> Result<ModelMetadata, ServeError> {
    service.entry(&of.name, &of.version)?.metadata()
}

async fn config(service: Service, of: ModelName) -> Result<ModelConfigResponse, ServeError> {
    Ok(ModelConfigResponse { config: Some(service.entry(&of.name, &of.version)?.config()?) })
}

async fn statistics(service: Service, of: ModelName) -> Result<Statistics, ServeError> {
    match &*of.name {
        "" => Ok(service.statistics()),
        name => Ok(Statistics::of([&service.entry(name, &of.version)?])),
    }
}

async fn index(service: Service, asked: RepositoryIndexRequest) -> Result<RepositoryIndex, ServeError> {
    Ok(RepositoryIndex { models: service.index(asked.ready) })
}

async fn load(service: Service, of: RepositoryModel) -> Result<Nothing, ServeError> {
    service.entry(&of.model_name, "")?.load_as_it_is(of.parameters.keys()).await?;
    Ok(Nothing {})
}

async fn unload(service: Service, of: RepositoryModel) -> Result<Nothing, ServeError> {
    service.entry(&of.model_name, "")?.unload("it was unloaded").await;
    Ok(Nothing {})
}

fn grpc<Q, A>(service: &Service) -> Grpc<ProstCodec<A, Q>>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
{
    let most = service.limits().message_bytes;
    Grpc::new(ProstCodec::default())
        .accept_compressed(CompressionEncoding::Gzip)
        .send_compressed(CompressionEncoding::Gzip)
        .max_decoding_message_size(most)
        .max_encoding_message_size(most)
}

/// A method with one request and one answer.
struct UnaryMethod<F>(Service, F);

impl<Q, A, F, R> UnaryService<Q> for UnaryMethod<F>
where
    Q: Message,
    A: Message + 'static,
    F: Fn(Service, Q) -> R,
    R: Future<Output = Result<A, ServeError>> + Send + 'static,
{
    type Response = A;
    type Future = BoxFuture<'static, Result<tonic::Response<A>, Status>>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        let answer = (self.1)(self.0.clone(), request.into_inner());
        Box::pin(async move { Ok(tonic::Response::new(answer.await?)) })
    }
}

async fn unary<Q, A, F, R>(service: Service, request: Request<Body>, method: F) -> Response<tonic::body::Body>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    F: Fn(Service, Q) -> R,
    R: Future<Output = Result<A, ServeError>> + Send + 'static,
{
    let within = service.limits().read_timeout;
    let in_time = |body| match within {
        Some(within) => timed(body, within, || Status::from(ServeError::too_slow()).into()),
        None => body,
    };
    grpc::<Q, A>(&service).unary(UnaryMethod(service, method), request.map(in_time)).await
}

impl From<ServeError> for Status {
    fn from(error: ServeError) -> Self {
        let code = match error.kind {
            ErrorKind::Invalid => Code::InvalidArgument,
            ErrorKind::NotFound => Code::NotFound,
            ErrorKind::TooLarge => Code::OutOfRange,
            ErrorKind::Unauthorized => Code::Unauthenticated,
            ErrorKind::Overloaded => Code::ResourceExhausted,
            ErrorKind::Unavailable => Code::Unavailable,
            ErrorKind::Deadline | ErrorKind::TooSlow => Code::DeadlineExceeded,
            ErrorKind::Internal => Code::Internal,
        };
        Status::new(code, error.message)
    }
}

/// Requests of one stream are answered in their order; one that fails does not end it.
struct InferStream(Service, Option<String>);

/// Requests of one stream that are worked on at once.
const AT_ONCE: usize = 32;

impl StreamingService<ModelInferRequest> for InferStream {
    type Response = ModelStreamInferResponse;
    type ResponseStream = BoxStream<'static, Result<ModelStreamInferResponse, Status>>;
    type Future = Ready<Result<tonic::Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<ModelInferRequest>>) -> Self::Future {
        let (service, trace) = (self.0.clone(), self.1.clone());
        let answer = move |asked: Result<ModelInferRequest, Status>| {
            let (service, trace) = (service.clone(), trace.clone());
            async move {
                Ok(match infer(service, asked?, trace).await {
                    Ok(answer) => ModelStreamInferResponse {
                        error_message: String::new(),
                        infer_response: Some(answer),
                    },
                    Err(error) => {
                        ModelStreamInferResponse { error_message: error.message, infer_response: None }
                    }
                })
            }
        };
        let answers: Pin<Box<_>> = request.into_inner().map(answer).buffered(AT_ONCE).boxed();
        future::ready(Ok(tonic::Response::new(answers)))
    }
}

async fn infer(
    service: Service,
    asked: ModelInferRequest,
    traceparent: Option<String>,
) -> Result<ModelInferResponse, ServeError> {
    let entry = service.entry(&asked.model_name, &asked.model_version)?;
    let call = Call { traceparent, ..call(asked)? };
    let id = call.id.clone();
    let outputs = service.infer(&entry, call).await?;
    let metadata = outputs.iter().map(|output| TensorMetadata {
        name: output.name.clone(),
        datatype: output.datatype().name().to_owned(),
        shape: output.shape.iter().map(|dim| *dim as i64).collect(),
    });
    Ok(ModelInferResponse {
        model_name: entry.name.clone(),
        model_version: VERSION.to_owned(),
        id,
        outputs: metadata.collect(),
        raw_output_contents: outputs.iter().map(NamedData::to_raw).collect(),
    })
}

fn call(asked: ModelInferRequest) -> Result<Call, ServeError> {
    let raw = asked.raw_input_contents;
    if !raw.is_empty() && raw.len() != asked.inputs.len() {
        return Err(ServeError::invalid(format!(
            "there are {} inputs and {} `raw_input_contents`: one for each, or none",
            asked.inputs.len(),
            raw.len()
        )));
    }
    let mut raw = raw.into_iter();
    let input = |input: InferInputTensor| match raw.next() {
        Some(data) => NamedData::from_raw(&input.name, &input.datatype, &input.shape, data),
        None => from_contents(input),
    };
    let inputs = asked.inputs.into_iter().map(input).collect::<Result<_, _>>()?;
    let outputs = asked.outputs.into_iter().map(|output| WantedOutput {
        classes: number(&output.parameters, "classification").unwrap_or(0) as usize,
        name: output.name,
        is_binary: true,
    });
    Ok(Call {
        within: number(&asked.parameters, "timeout").filter(|us| *us > 0).map(Duration::from_micros),
        priority: priority(number(&asked.parameters, "priority").unwrap_or(0)),
        outputs: outputs.collect(),
        id: asked.id,
        traceparent: None,
        inputs,
    })
}

fn number(parameters: &Parameters, name: &str) -> Option<u64> {
    match parameters.get(name)?.parameter_choice.as_ref()? {
        Parameter::Int64(number) => u64::try_from(*number).ok(),
        Parameter::Uint64(number) => Some(*number),
        _ => None,
    }
}

/// The elements of an input from the lists of its message.
fn from_contents(input: InferInputTensor) -> Result<NamedData, ServeError> {
    let InferInputTensor { name, datatype, shape, contents, .. } = input;
    let contents: InferTensorContents = contents.unwrap_or_default();
    let shape = shape_of(&name, &shape)?;
    let narrow = |number: i32| format!("input `{name}`: {number} is no {datatype}");
    let of = shape.clone();
    let tensor = match Datatype::parse(&datatype, &name)? {
        Datatype::Bytes => {
            return NamedData::new(&name, shape, Data::Bytes(contents.bytes_contents));
        }
        Datatype::Number(dtype) => match dtype {
            DType::F32 => Tensor::new(of, contents.fp32_contents),
            DType::F64 => Tensor::new(of, contents.fp64_contents),
            DType::F16 => Tensor::new(of, contents.fp32_contents.into_iter().map(f16::from_f32).collect()),
            DType::I64 => Tensor::new(of, contents.int64_contents),
            DType::I32 => Tensor::new(of, contents.int_contents),
            DType::I16 => {
                let numbers = contents.int_contents.into_iter();
                let numbers = numbers.map(|n| i16::try_from(n).map_err(|_| ServeError::invalid(narrow(n))));
                Tensor::new(of, numbers.collect::<Result<Vec<i16>, _>>()?)
            }
            DType::U8 => {
                let numbers = contents.uint_contents.into_iter();
                let numbers = numbers
                    .map(|n| u8::try_from(n).map_err(|_| ServeError::invalid(narrow(n.cast_signed()))));
                Tensor::new(of, numbers.collect::<Result<Vec<u8>, _>>()?)
            }
            DType::Bool => Tensor::new(of, contents.bool_contents),
        },
    };
    let tensor = tensor.map_err(|error| NamedData::wrong(&name, &error))?;
    NamedData::new(&name, shape, Data::Numbers(tensor))
}
