//! A program without an executor: square roots by Newton's method, a round of which is one request to a model.
//!
//!     cargo run -p orchestra --example blocking -- 2

use std::error::Error;

use orchestra::{Blocking, Orchestra, Tensor};

/// f32 `x` and `a` [batch, 1] to `next` = (x + a / x) / 2 and `residual` = |next * next - a|.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/square-root.onnx");

fn main() -> Result<(), Box<dyn Error>> {
    orchestra::run_if_worker(); // workers are copies of this program
    let a: f32 = std::env::args().nth(1).as_deref().unwrap_or("2").parse()?;

    let blocking = Blocking::new()?;
    let orchestra = blocking.wait(Orchestra::builder().build())?;
    let model = blocking.wait(orchestra.model(MODEL).devices(["cpu"]).workers(1).start())?;

    let mut x = a.max(1.0);
    for round in 1..=32 {
        let row = |value| Tensor::new([1, 1], vec![value]);
        let answer = blocking.wait(model.infer([("x", row(x)?), ("a", row(a)?)]))?;
        x = answer["next"].as_slice::<f32>()?[0];
        let residual = answer["residual"].as_slice::<f32>()?[0];
        println!("{round}: {x}");
        if residual <= a * 1e-6 {
            break;
        }
    }
    blocking.wait(model.drain());
    Ok(())
}
