//! Whether what a stage gives fits what the next one takes. Knows shapes and types, and neither kinds nor devices.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use orchestra_core::data::{Column, ColumnType, Schema};
use orchestra_core::{DType, Dim, Iteration, PixelInput, TensorSpec};

use crate::diagnostics::Diagnostics;
use crate::fields::At;
use crate::graph::{Graph, Link};
use crate::host::Host;
use crate::iterate::Looping;
use crate::kind::{BatchDraft, Connect, Draft, Input, SourceConnected, StageConnected, StageContext};
use crate::models::Model;
use crate::nearest::{list, suggestion};
use crate::placement::plural;
use crate::plan::{ColumnRef, Origin};
use crate::raw::{RawListing, RawStage, RawWorkflow};

/// A stage with all its inputs known to fit.
#[derive(Debug)]
pub(crate) enum Wired {
    /// It runs a model.
    Batch {
        model: usize,
        /// Per model input.
        inputs: Vec<ColumnRef>,
        /// What lies in slots: the model's inputs with every open dimension of the row filled in, and what a loop keeps of each row.
        tensors: Vec<TensorSpec>,
        /// What its workers give: the model's outputs, and what a loop says of each row.
        outputs: Vec<TensorSpec>,
        /// How it loops.
        iteration: Option<Iteration>,
        /// Per model input: what the graph makes of pixels.
        pixels: Vec<Option<PixelInput>>,
        fixed_batch: Option<usize>,
        gives: Schema,
        /// Where what it is fed lies in a picture, if that is one place.
        placed: Option<ColumnRef>,
    },
    /// Anything else.
    Stage {
        /// The columns that it takes.
        reads: Vec<ColumnRef>,
        connected: StageConnected,
        /// The labels of the model whose rows it passes on as they are.
        labels: Option<At<Vec<String>>>,
        /// Where the rows that it passes on lie in a picture; its own column is among those that it gives.
        placed: Option<ColumnRef>,
        /// What the model whose rows it passes on says about itself.
        metadata: Arc<BTreeMap<String, String>>,
    },
}

impl Wired {
    /// The columns that the stage gives.
    pub fn gives(&self) -> &Schema {
        match self {
            Wired::Batch { gives, .. } => gives,
            Wired::Stage { connected, .. } => &connected.gives,
        }
    }
}

/// Checks edges in the order of the data.
pub(crate) struct Wiring<'a> {
    pub workflow: &'a RawWorkflow,
    pub graph: &'a Graph,
    /// Per source of the file; `None` was reported.
    pub sources: &'a [Option<SourceConnected>],
    /// Per model of the file; `None` was reported, or nobody uses it.
    pub models: &'a [Option<Model>],
    pub host: &'a dyn Host,
    pub folder: &'a Path,
    pub diags: &'a mut Diagnostics,
    /// Stages that cannot be looked at yet.
    pub is_late: &'a dyn Fn(&RawStage) -> bool,
    wired: Vec<Option<Wired>>,
}

impl<'a> Wiring<'a> {
    pub fn new(
        workflow: &'a RawWorkflow,
        graph: &'a Graph,
        sources: &'a [Option<SourceConnected>],
        models: &'a [Option<Model>],
        (host, folder): (&'a dyn Host, &'a Path),
        is_late: &'a dyn Fn(&RawStage) -> bool,
        diags: &'a mut Diagnostics,
    ) -> Self {
        let wired = workflow.stages.iter().map(|_| None).collect();
        Self { workflow, graph, sources, models, host, folder, diags, is_late, wired }
    }

    /// Per stage what it is; `None` where it, or something before it, has an error or cannot be looked at yet.
    pub fn check(mut self) -> Vec<Option<Wired>> {
        for stage in 0..self.graph.n_ordered {
            let raw = &self.workflow.stages[stage];
            self.wired[stage] = match &raw.draft {
                _ if (self.is_late)(raw) => None,
                Some(Draft::Batch(batch)) => self.batch(stage, raw, batch),
                Some(Draft::Stage(draft)) => self.stage(stage, raw, &**draft),
                None => None,
            };
        }
        self.wired
    }

    fn stage(&mut self, stage: usize, raw: &RawStage, draft: &dyn Connect) -> Option<Wired> {
        let links: Vec<&Link> = self.graph.reads[stage].iter().map(Option::as_ref).collect::<Option<_>>()?;
        let inputs: Vec<Input> = links.iter().map(|link| self.input(link)).collect::<Option<_>>()?;
        let mut context = StageContext {
            name: &raw.name.value,
            span: raw.name.span,
            inputs: &inputs,
            host: self.host,
            folder: self.folder,
            diags: self.diags,
        };
        let connected = draft.connect(&mut context)?;
        for (at, input) in inputs.iter().enumerate() {
            if connected.reads.iter().all(|(read, _)| *read != at) {
                let message = format!("stage `{}` takes nothing of {}", raw.name.value, input.described());
                self.diags.error(input.span, message).help("leave it out of `from`");
                return None;
            }
        }
        let read = |(input, column): &(usize, usize)| {
            let (from, column) = (links[*input].target, *column);
            // Behind the columns that a stage gives stands the placement of an earlier one.
            let is_own = column < self.n_columns(from);
            if is_own { Some(ColumnRef { from, column }) } else { self.placed(from) }
        };
        let reads = connected.reads.iter().map(read).collect::<Option<_>>()?;
        let passes_on = match &inputs[..] {
            [input] => connected.gives.0.iter().all(|column| input.gives.0.contains(column)),
            _ => false,
        };
        let (labels, placed, metadata) = match passes_on {
            true => {
                let input = &inputs[0];
                (input.labels.clone(), self.placed(links[0].target), Arc::clone(&input.metadata))
            }
            false => Default::default(),
        };
        Some(Wired::Stage { reads, connected, labels, placed, metadata })
    }

    fn n_columns(&self, from: Origin) -> usize {
        match from {
            Origin::Source(source) => self.sources[source.index()].as_ref().map_or(0, |s| s.gives.0.len()),
            Origin::Stage(stage) => self.wired[stage.index()].as_ref().map_or(0, |w| w.gives().0.len()),
        }
    }

    fn placed(&self, from: Origin) -> Option<ColumnRef> {
        placed(&self.wired, from)
    }

    /// What a link leads to, as kinds see it.
    pub fn input(&self, link: &Link) -> Option<Input> {
        input(self.workflow, self.sources, self.models, &self.wired, link)
    }

    /// The tensor that a link of a stage with a model means.
    fn output(&mut self, reader: &str, want: &TensorSpec, link: &Link) -> Option<(ColumnRef, ColumnType)> {
        let input = self.input(link)?;
        // Of several tensors the only one that the model can take is meant.
        let mut fitting = (0..input.gives.0.len()).filter(|place| {
            let tensor = input.gives.0[*place].ty.tensor();
            tensor.is_some_and(|give| give.dtype == want.dtype && is_same_row(want, give))
        });
        if let (None, Some(place), None) = (&input.column, fitting.next(), fitting.next()) {
            return Some((ColumnRef { from: link.target, column: place }, input.gives.0[place].ty.clone()));
        }
        self.tensor_of(reader, &input, link)
    }

    /// The tensor that a link of a stage means that takes any.
    fn any_tensor(&mut self, reader: &str, link: &Link) -> Option<(ColumnRef, ColumnType)> {
        let input = self.input(link)?;
        self.tensor_of(reader, &input, link)
    }

    fn tensor_of(&mut self, reader: &str, input: &Input, link: &Link) -> Option<(ColumnRef, ColumnType)> {
        let what = match input.is_source {
            true => format!(
                "a tensor: put an image stage in between: [stages.pixels], kind = \"image\", from = \"{}\", size = [..]",
                input.name
            ),
            false => "a tensor".to_owned(),
        };
        let place = input.column(reader, &what, |column| column.ty.tensor().is_some(), self.diags)?;
        Some((ColumnRef { from: link.target, column: place }, input.gives.0[place].ty.clone()))
    }

    /// Whether a link gives pixels that the graph of a model would normalise, which is reported: a program has none.
    fn is_normalised_later(&mut self, reader: &str, link: &Link, ty: &ColumnType) -> bool {
        let is_later = matches!(ty, ColumnType::Pixels { .. });
        if is_later {
            let giver = name_of(self.workflow, link.target);
            self.diags
                .error(
                    link.span,
                    format!(
                        "{reader} runs a program, and `{giver}` leaves normalising to the graph of a model"
                    ),
                )
                .help(format!("leave `normalize` of `{giver}` out"));
        }
        is_later
    }

    fn batch(&mut self, stage: usize, raw: &RawStage, draft: &BatchDraft) -> Option<Wired> {
        let model = draft.model.as_ref()?;
        let models = || self.workflow.models.iter().map(|m| m.name.value.as_str());
        let Some(index) = models().position(|m| m == model.value) else {
            let message = format!(
                "stage `{}` uses model `{}`, but there is no such model",
                raw.name.value, model.value
            );
            let help = suggestion("models", &model.value, models());
            self.diags.error(model.span, message).help(help);
            return None;
        };
        let known = self.models[index].as_ref()?;
        let signature = &known.plan;
        let mut open_inputs = known.open_inputs.iter().copied();
        let fixed_batch = self.fixed_batch(model, &signature.inputs, &signature.outputs);
        let links = self.inputs(stage, raw, &model.value, &signature.inputs)?;
        let mut inputs = Vec::new();
        let mut tensors = Vec::new();
        let mut pixels = Vec::new();
        for (want, link) in signature.inputs.iter().zip(links) {
            let reader = format!("stage `{}`", raw.name.value);
            let is_open = open_inputs.next().unwrap_or(false);
            let found = match is_open {
                true => self.any_tensor(&reader, link),
                false => self.output(&reader, want, link),
            };
            let Some((read, ty)) = found else { continue };
            let want = match ty.tensor() {
                Some(given) if is_open => {
                    TensorSpec { name: want.name.clone(), batch: Dim::Dynamic, ..given.clone() }
                }
                _ => want.clone(),
            };
            if known.plan.code.is_some() && self.is_normalised_later(&reader, link, &ty) {
                continue;
            }
            if let Some(tensor) = self.fits(&model.value, &want, link, &ty) {
                inputs.push(read);
                tensors.push(tensor);
                pixels.push(match ty {
                    ColumnType::Pixels { input, .. } => Some(input),
                    _ => None,
                });
            }
        }
        let complete = inputs.len() == signature.inputs.len();
        let fixed_batch = fixed_batch?;
        let iteration = match &draft.iterate {
            Some(draft) if complete => {
                let looping =
                    Looping { stage: &raw.name, model: signature, inputs: &tensors, pixels: &pixels };
                Some(looping.resolve(draft, self.diags)?)
            }
            _ => None,
        };
        let mut outputs = signature.outputs.clone();
        if let Some(iteration) = &iteration {
            tensors.extend(iteration.rounds_input());
            outputs.push(Iteration::rounds_output());
        }
        let column = |output: &TensorSpec, ty| Column { name: output.name.clone(), ty };
        let mut gives: Vec<Column> =
            outputs.iter().map(|output| column(output, ColumnType::Tensor(output.clone()))).collect();
        if iteration.is_none()
            && let [output] = &mut outputs[..]
            && self.is_only_largest_read(stage, index)
            && let Some(stored) = largest(output)
        {
            let model = std::mem::replace(output, stored.clone());
            gives = vec![column(&model.clone(), ColumnType::Largest { stored, model })];
        }
        let gives = Schema(gives);
        let mut places: Vec<ColumnRef> = inputs.iter().filter_map(|read| self.placed(read.from)).collect();
        places.dedup();
        let placed = places.pop().filter(|_| places.is_empty());
        complete.then_some(Wired::Batch {
            model: index,
            inputs,
            tensors,
            outputs,
            iteration,
            pixels,
            fixed_batch,
            gives,
            placed,
        })
    }

    /// Whether all that reads the output of a batch stage reads the largest numbers of it alone, and the model can give them.
    fn is_only_largest_read(&self, stage: usize, model: usize) -> bool {
        let is_this = |links: &[Option<Link>]| links.iter().flatten().any(|link| link.stage() == Some(stage));
        let draft = |reader: usize| self.workflow.stages[reader].draft.as_ref();
        let mut readers = (0..self.graph.reads.len()).filter(|reader| is_this(&self.graph.reads[*reader]));
        // `TopK` with `k` as an input.
        self.models[model].as_ref().is_some_and(|model| model.opset >= 10)
            && !self.graph.sinks.iter().any(|links| is_this(links))
            && readers
                .all(|reader| matches!(draft(reader), Some(Draft::Stage(draft)) if draft.reads_largest()))
    }

    /// The link of each model input, in the order of the model.
    fn inputs(
        &mut self,
        stage: usize,
        raw: &RawStage,
        model: &str,
        wanted: &[TensorSpec],
    ) -> Option<Vec<&'a Link>> {
        let links = &self.graph.reads[stage];
        let names = || wanted.iter().map(|w| w.name.as_str());
        if let [(None, from)] = &raw.reads[..] {
            if wanted.len() > 1 {
                self.diags
                    .error(
                        from.span,
                        format!("model `{model}` has {} inputs, but `from` names one stage", wanted.len()),
                    )
                    .help(format!("write inputs = {{ name = \"stage\", .. }}; inputs: {}", list(names())));
                return None;
            }
            return links.iter().map(Option::as_ref).collect();
        }
        let mut fine = !raw.reads.is_empty();
        for name in raw.reads.iter().filter_map(|(name, _)| name.as_ref()) {
            if !names().any(|n| n == name.value) {
                fine = false;
                self.diags
                    .error(name.span, format!("model `{model}` has no input `{}`", name.value))
                    .help(suggestion("inputs", &name.value, names()));
            }
        }
        let mut found = Vec::new();
        for name in names() {
            let at = raw.reads.iter().position(|(input, _)| input.as_ref().is_some_and(|i| i.value == name));
            match at {
                Some(at) => found.push(links[at].as_ref()),
                None if raw.reads.is_empty() => return None,
                None => {
                    fine = false;
                    let message =
                        format!("stage `{}` does not feed input `{name}` of model `{model}`", raw.name.value);
                    self.diags
                        .error(raw.name.span, message)
                        .help(format!("add it to `inputs`: {name} = \"stage\""));
                }
            }
        }
        if fine { found.into_iter().collect() } else { None }
    }

    /// The only batch the model takes, if there is one. `None` after an error.
    fn fixed_batch(
        &mut self,
        model: &At<String>,
        inputs: &[TensorSpec],
        outputs: &[TensorSpec],
    ) -> Option<Option<usize>> {
        let batch = inputs.first()?.batch;
        let differs = |t: &&TensorSpec| t.batch != batch;
        if let Some(other) = inputs.iter().find(differs) {
            let message = format!("the inputs of model `{}` have different batch dimensions", model.value);
            self.diags
                .error(model.span, message)
                .label(format!("`{}` is {}, `{}` is {other}", inputs[0].name, inputs[0], other.name));
            return None;
        }
        for output in outputs.iter().filter(differs) {
            match (batch, output.batch) {
                (Dim::Fixed(n), Dim::Fixed(_)) => {
                    let message = format!(
                        "output `{}` of model `{}` is {output} for a batch of {n}: it has no row per item",
                        output.name, model.value
                    );
                    self.diags.error(model.span, message);
                    return None;
                }
                (Dim::Dynamic, Dim::Fixed(n)) => {
                    let message = format!(
                        "model `{}` says that its output `{}` has {} whatever the batch",
                        model.value,
                        output.name,
                        plural(n, "row")
                    );
                    self.diags.warning(model.span, message).help("the run expects one row per item");
                }
                _ => {}
            }
        }
        Some(batch.fixed())
    }

    /// The tensor as it lies in a slot, or an error.
    fn fits(&mut self, model: &str, want: &TensorSpec, link: &Link, ty: &ColumnType) -> Option<TensorSpec> {
        let give = ty.tensor()?;
        let giver = name_of(self.workflow, link.target);
        let Some(_) = give.fixed_row() else {
            self.diags
                .error(
                    link.span,
                    format!(
                        "output `{}` of stage `{giver}` has no fixed shape, so it cannot be fed on",
                        give.name
                    ),
                )
                .label(format!("`{giver}` gives {give}"))
                .help("export the model with fixed dimensions other than the batch");
            return None;
        };
        let same_row = is_same_row(want, give);
        if !same_row || want.dtype != give.dtype {
            let what = if same_row { "type" } else { "shape" };
            let advice = link.stage().and_then(|stage| match &self.workflow.stages[stage].draft {
                Some(Draft::Stage(draft)) => draft.advice(giver, want),
                _ => None,
            });
            let d = self.diags.error(
                link.span,
                format!(
                    "stage `{giver}` gives another {what} than input `{}` of model `{model}` takes",
                    want.name
                ),
            );
            d.label(format!("`{giver}` gives {give}, `{model}` takes {want}"));
            if let Some(advice) = advice {
                d.help(advice);
            }
            return None;
        }
        // What lies in a slot; pixels only become what the model takes inside of its graph.
        let lies = ty.stored()?;
        Some(TensorSpec { name: want.name.clone(), batch: want.batch, ..lies.clone() })
    }
}

/// The largest numbers of an output along its last dimension and their places, as they lie in memory. `None` where that would not be much less
/// than the output, or a place would be no exact f32.
fn largest(output: &TensorSpec) -> Option<TensorSpec> {
    const LEAST: usize = 64;
    const MOST: usize = 1 << f32::MANTISSA_DIGITS;
    let [row @ .., last] = &output.row[..] else { return None };
    let is_float = matches!(output.dtype, DType::F32 | DType::F16);
    let fits = is_float && last.fixed().is_some_and(|n| (LEAST..=MOST).contains(&n));
    let row = row.iter().copied().chain([Dim::Fixed(2)]).collect();
    fits.then(|| TensorSpec { row, dtype: DType::F32, ..output.clone() })
}

/// What a link leads to, as kinds see it; `None` where that has an error.
pub(crate) fn input(
    workflow: &RawWorkflow,
    sources: &[Option<SourceConnected>],
    models: &[Option<Model>],
    wired: &[Option<Wired>],
    link: &Link,
) -> Option<Input> {
    let (kind, mut gives, labels, metadata) = match link.target {
        Origin::Source(source) => {
            let kind = workflow.sources[source.index()].kind.as_ref()?.name();
            (kind, sources[source.index()].as_ref()?.gives.clone(), None, Arc::default())
        }
        Origin::Stage(stage) => {
            let is = wired[stage.index()].as_ref()?;
            let (labels, metadata) = match is {
                Wired::Batch { model, .. } => {
                    let model = models[*model].as_ref()?;
                    (model.labels.clone(), Arc::clone(&model.metadata))
                }
                Wired::Stage { labels, metadata, .. } => (labels.clone(), Arc::clone(metadata)),
            };
            (workflow.stages[stage.index()].kind_name(), is.gives().clone(), labels, metadata)
        }
    };
    if gives.0.iter().all(|column| column.ty != ColumnType::Placement) && placed(wired, link.target).is_some()
    {
        gives.0.push(Column { name: "placed".to_owned(), ty: ColumnType::Placement });
    }
    Some(Input {
        name: name_of(workflow, link.target).to_owned(),
        kind,
        is_source: link.stage().is_none(),
        span: link.span,
        paths: paths_of(workflow, link.target),
        gives,
        column: link.tensor.clone(),
        labels,
        metadata,
    })
}

/// The column that says where the rows of a stage lie in a picture.
fn placed(wired: &[Option<Wired>], from: Origin) -> Option<ColumnRef> {
    let stage = wired[from.stage()?.index()].as_ref()?;
    let own = stage.gives().0.iter().position(|column| column.ty == ColumnType::Placement);
    match (own, stage) {
        (Some(column), _) => Some(ColumnRef { from, column }),
        (None, Wired::Batch { placed, .. } | Wired::Stage { placed, .. }) => *placed,
    }
}

fn paths_of(workflow: &RawWorkflow, target: Origin) -> Vec<String> {
    let Origin::Source(source) = target else { return Vec::new() };
    match &workflow.sources[source.index()].listing {
        Some(RawListing::Paths(paths)) => paths.iter().map(|path| path.value.clone()).collect(),
        _ => Vec::new(),
    }
}

fn name_of(workflow: &RawWorkflow, target: Origin) -> &str {
    match target {
        Origin::Source(source) => &workflow.sources[source.index()].name.value,
        Origin::Stage(stage) => &workflow.stages[stage.index()].name.value,
    }
}

/// Whether rows of `give` have the shape that `want` asks for.
fn is_same_row(want: &TensorSpec, give: &TensorSpec) -> bool {
    let fits = |(want, give): (&Dim, &Dim)| want.fixed().is_none_or(|n| give.fixed() == Some(n));
    want.row.len() == give.row.len() && give.fixed_row().is_some() && want.row.iter().zip(&give.row).all(fits)
}
