//! The library for programs without an executor: it starts one, and waits on it.

use std::future::IntoFuture;
use std::io;

use tokio::runtime::{Builder, Runtime};

/// An executor with threads of its own, on which runs, models and flows live. Dropping it kills them.
///
/// ```no_run
/// # fn program(pixels: Vec<f32>) -> Result<(), Box<dyn std::error::Error>> {
/// use orchestra::{Blocking, Orchestra, Tensor};
///
/// let blocking = Blocking::new()?;
/// let orchestra = blocking.wait(Orchestra::builder().build())?;
/// let model = blocking.wait(orchestra.model("digits.onnx").start())?;
/// let answer = blocking.wait(model.infer(Tensor::new([1, 1, 28, 28], pixels)?))?;
/// println!("{:?}", answer["logits"].as_slice::<f32>()?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Blocking(Runtime);

impl Blocking {
    /// Starts its threads.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn new() -> io::Result<Self> {
        // Messages alone are handled there: what computes has processes and threads of its own.
        Builder::new_multi_thread().worker_threads(2).enable_all().build().map(Self)
    }

    /// Waits for what is asked. May be called from many threads at once.
    ///
    /// # Panics
    /// It is called on a thread of an executor, which it would block: await there instead.
    pub fn wait<F: IntoFuture>(&self, asked: F) -> F::Output {
        self.0.block_on(asked.into_future())
    }
}
