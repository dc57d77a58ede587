//! A real ONNX Runtime session over a test model.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::Path;
use std::sync::OnceLock;

use orchestra_onnx::library::{Env, Flavor, Request, Silent, find_or_fetch};
use ort::environment::Environment;
use ort::session::Session;

/// One per process: a second environment is an error.
pub fn environment() -> &'static Environment {
    static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();
    ENVIRONMENT.get_or_init(|| {
        let request = Request { flavor: Flavor::Cpu, explicit: None, offline: false };
        let library = find_or_fetch(&request, &Env::from_process(), &mut Silent).unwrap();
        ort::init_from(&library.path).unwrap().with_name("testkit").with_telemetry(false).build().unwrap()
    })
}

pub fn session(model: &Path, operators: Option<&Path>) -> ort::Result<Session> {
    let builder = Session::builder(environment())?.with_intra_threads(1)?;
    let mut builder = match operators {
        Some(library) => builder.with_operator_library(library)?,
        None => builder,
    };
    builder.commit_from_file(model)
}

/// Runs a model with one f32 input and gives the shape and elements of its first output.
pub fn run(session: &mut Session, shape: &[i64], elements: &[f32]) -> ort::Result<(Vec<i64>, Vec<f32>)> {
    let name = session.inputs()[0].name().to_owned();
    let input = ort::value::TensorRef::from_array_view((shape.to_vec(), elements))?;
    let outputs = session.run(ort::inputs![name => input])?;
    let (shape, elements) = outputs[0].try_extract_tensor::<f32>()?;
    Ok((shape.to_vec(), elements.to_vec()))
}
