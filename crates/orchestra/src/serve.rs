//! Serves a model to the program itself: plans one batch stage from the model file alone, and starts it as the runtime's [`Service`].

use std::io;
use std::path::Path;
use std::sync::Arc;

use orchestra_core::data::{Column, ColumnType, Refusal, Schema, Value, fixed_tensor};
use orchestra_core::shapes::{Fetch, FetchRun};
use orchestra_core::{StageId, TensorSpec};
use orchestra_machine::Machine;
use orchestra_onnx::library::Silent;
use orchestra_plan::{Plan, PlanOptions, RenderStyle, SourceConnected, SourceContext, SourceKind};
use orchestra_runtime::{Service, StartServiceError};
use thiserror::Error;

use crate::{StartError, StartOptions, kinds, machine_view, run_options, runtime_library};

/// How a model is served.
#[derive(Clone, Default)]
pub struct ServeOptions {
    /// Names of inputs and the shapes of their rows, for inputs of which the model file leaves a dimension beside the batch open.
    pub shapes: Vec<(String, Vec<usize>)>,
    /// `set` takes the keys of `models.model` and of its stage `stages.model`, as a workflow file has them, for example
    /// `("models.model.workers", "2")` and `("stages.model.batch.max", "8")`; `devices` those to use.
    pub plan: PlanOptions,
    /// Workers and their libraries. `earlier` has no effect, because a service writes nothing. A tracer is told of workers and batches, but not of
    /// requests, which are no items.
    pub start: StartOptions,
}

/// Why a model is not served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The model cannot be read or planned, or an option says what cannot be.
    #[error("{0}")]
    Plan(String),
    /// What its workers need is not there.
    #[error(transparent)]
    Start(#[from] StartError),
    /// No worker could be started.
    #[error(transparent)]
    Service(#[from] StartServiceError),
    /// A thread cannot be started.
    #[error("the service cannot be started: {0}")]
    Io(#[from] io::Error),
}

/// Serves an ONNX model: its workers are started on the devices of `machine`, and requests of many tasks share batches. Returns once a worker
/// is loaded.
///
/// A request has a [`Tensor`](crate::Tensor) for each input of the model, in the order of [`Service::inputs`]; the first dimension counts its
/// rows. A worker that dies costs no request: its rows run again elsewhere, and a row that kills workers fails alone. Nothing is written.
/// Dropping the service kills its workers.
///
/// ```no_run
/// # async fn service() -> Result<(), Box<dyn std::error::Error>> {
/// use orchestra::{DType, ServeOptions, Tensor};
///
/// let machine = orchestra::usable_machine(None, false);
/// let model = orchestra::serve_model("digits.onnx".as_ref(), &machine, ServeOptions::default()).await?;
/// // Two rows of a model that takes f32 [batch, 1, 28, 28].
/// let pixels = vec![0.0_f32; 2 * 28 * 28].into_iter().flat_map(f32::to_ne_bytes).collect();
/// let request = Tensor { dtype: DType::F32, shape: vec![2, 1, 28, 28], data: pixels };
/// let answer = model.infer(&[request]).await?;
/// println!("{} {:?}", answer[0].dtype, answer[0].shape);
/// model.close().await;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// See [`ServeError`]. Nothing runs then.
pub async fn serve_model(
    model: &Path,
    machine: &Machine,
    options: ServeOptions,
) -> Result<Service, ServeError> {
    let (model, machine) = (model.to_owned(), machine.clone());
    let blocking = tokio::task::spawn_blocking(move || {
        let ServeOptions { shapes, plan, start } = options;
        let plan = plan_of(&model, &machine, &shapes, plan, &start)?;
        let (library, offline) = (start.ort_library.clone(), start.offline);
        let library = runtime_library(&plan, library, offline, &mut Silent).map_err(StartError::from)?;
        let options = run_options(start, &plan, library.as_ref())?;
        Ok::<_, ServeError>((plan, options))
    });
    let (plan, options) = blocking.await.map_err(io::Error::other)??;
    let stage = plan.batch_stages().map(|(stage, _)| stage).next().unwrap_or(StageId(0));
    Ok(Service::start(Arc::new(plan), stage, options).await?)
}

/// Plans the stage `model`. The planner needs a source and a sink around it; the source names the manifest `-`, which is never read.
fn plan_of(
    model: &Path,
    machine: &Machine,
    shapes: &[(String, Vec<usize>)],
    mut options: PlanOptions,
    start: &StartOptions,
) -> Result<Plan, ServeError> {
    let path = std::path::absolute(model)?;
    let file = orchestra_plan::read_model(&path);
    let file = file.map_err(|error| ServeError::Plan(format!("model `{}`: {error}", path.display())))?;
    let inputs: Vec<Column> =
        file.signature.inputs.iter().map(|input| column(input, shapes)).collect::<Result<_, _>>()?;
    if let Some((name, _)) = shapes.iter().find(|(name, _)| inputs.iter().all(|i| i.name != *name)) {
        let names: Vec<&str> = inputs.iter().map(|input| &*input.name).collect();
        let (model, names) = (path.display(), names.join("`, `"));
        let what = format!("model `{model}` has no input `{name}`, which `shapes` names; inputs: `{names}`");
        return Err(ServeError::Plan(what));
    }
    let feeds: Vec<String> = inputs
        .iter()
        .map(|input| format!("{:?} = {:?}", input.name, format!("requests.{}", input.name)))
        .collect();
    let text = format!(
        "version = 1\n[sources.requests]\nkind = \"requests\"\nmanifest = \"-\"\n[models.model]\n[stages.model]\nkind = \"infer\"\n\
         model = \"model\"\ninputs = {{ {} }}\n[sinks.answers]\nkind = \"jsonl\"\nfrom = \"model\"\n",
        feeds.join(", ")
    );
    // `set` parses TOML first; an absolute path is no TOML, so it is taken as a string.
    options.set.insert(0, ("models.model.path".to_owned(), path.display().to_string()));
    let host = crate::host(kinds().with_source(Requests(Schema(inputs))), machine_view(machine), start);
    let name = format!("service of {}", path.file_name().unwrap_or_default().to_string_lossy());
    let (plan, diagnostics) = orchestra_plan::plan(&text, &path.with_file_name(name), &options, &host);
    let said = || diagnostics.render(RenderStyle::Plain);
    let plan = plan.ok_or_else(|| ServeError::Plan(said()))?;
    if !diagnostics.all().is_empty() {
        tracing::warn!(model = %path.display(), diagnostics = %said(), "the service starts with warnings");
    }
    Ok(plan)
}

/// An input of the model as requests have it: every dimension of a row is known.
fn column(input: &TensorSpec, shapes: &[(String, Vec<usize>)]) -> Result<Column, ServeError> {
    let name = &input.name;
    let said = shapes.iter().find(|(of, _)| of == name).map(|(_, row)| row.clone());
    let row = said.or_else(|| input.fixed_row()).ok_or_else(|| {
        ServeError::Plan(format!(
            "input `{name}` is {input}, and every dimension but the batch must be known: say it in `ServeOptions::shapes`"
        ))
    })?;
    Ok(Column { name: name.clone(), ty: ColumnType::Tensor(fixed_tensor(name, input.dtype, &row)) })
}

/// A kind of source that gives the inputs of the model.
struct Requests(Schema);

impl SourceKind for Requests {
    fn name(&self) -> &'static str {
        "requests"
    }

    fn about(&self) -> &'static str {
        "requests to a service"
    }

    fn connect(&self, _: &mut SourceContext<'_, '_>) -> Option<SourceConnected> {
        Some(SourceConnected {
            gives: self.0.clone(),
            fetch: Arc::new(NoFetch),
            expand: None,
            names_repeat: false,
            settings: serde_json::Value::Null,
            decoders: None,
        })
    }
}

/// A service has no loaders, so nothing is ever fetched.
#[derive(Debug)]
struct NoFetch;

impl Fetch for NoFetch {
    fn start(&self) -> Box<dyn FetchRun> {
        Box::new(NoFetch)
    }
}

impl FetchRun for NoFetch {
    fn fetch(&mut self, _: &[u8]) -> Result<u64, Refusal> {
        Err(Refusal::result("a request is not fetched"))
    }

    fn with_row(&self, _: &mut dyn FnMut(&[Value<'_>])) {}
}
