//! Gives back what comes, over HTTP by axum and over gRPC by tonic's codec: what a server could reach at most. For scripts/bench-serve.sh.
//!
//!     cargo run --release -p orchestra-serve --example echo -- 127.0.0.1:8010 127.0.0.1:8011

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::post;
use axum::serve::ListenerExt as _;
use futures::future::BoxFuture;
use http::{Request, Response};
use prost::Message;
use tokio::net::TcpListener;
use tonic::server::{Grpc, UnaryService};
use tonic_prost::ProstCodec;
use tower_service::Service;

/// The raw inputs of an inference.
#[derive(Clone, PartialEq, Message)]
struct Inputs {
    #[prost(bytes = "bytes", repeated, tag = "7")]
    raw: Vec<Bytes>,
}

/// The raw outputs of an inference.
#[derive(Clone, PartialEq, Message)]
struct Outputs {
    #[prost(bytes = "bytes", repeated, tag = "6")]
    raw: Vec<Bytes>,
}

#[derive(Clone)]
struct Echo;

impl UnaryService<Inputs> for Echo {
    type Response = Outputs;
    type Future = Ready<Result<tonic::Response<Outputs>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<Inputs>) -> Self::Future {
        ready(Ok(tonic::Response::new(Outputs { raw: request.into_inner().raw })))
    }
}

impl Service<Request<Body>> for Echo {
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(async { Ok(Grpc::new(ProstCodec::default()).unary(Echo, request).await) })
    }
}

async fn listen(address: Option<String>, routes: Router) -> std::io::Result<()> {
    let listener = TcpListener::bind(address.unwrap_or("127.0.0.1:0".to_owned())).await?;
    println!("listening at {}", listener.local_addr()?);
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    axum::serve(listener, routes).await
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let mut addresses = std::env::args().skip(1);
    let http = Router::new().fallback(post(|body: Bytes| async { body }));
    let grpc = Router::new().fallback_service(Echo);
    tokio::try_join!(listen(addresses.next(), http), listen(addresses.next(), grpc))?;
    Ok(())
}
