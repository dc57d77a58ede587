//! A model as a service of `tower`.

use std::task::{Context, Poll};

use futures::future::BoxFuture;

use crate::error::RequestError;
use crate::model::Model;
use crate::tensor::Tensors;

/// Each call is a request. It is always ready: one beyond the queue of the model ends with [`RequestError::Overloaded`] at once, which a layer in front may retry or
/// shed. Places of the queue are taken by calls alone, so that a clone which is ready and never calls holds none.
impl tower_service::Service<Tensors> for Model {
    type Response = Tensors;
    type Error = RequestError;
    type Future = BoxFuture<'static, Result<Tensors, RequestError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), RequestError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, inputs: Tensors) -> Self::Future {
        let model = self.clone();
        Box::pin(async move { model.infer(inputs).await })
    }
}
