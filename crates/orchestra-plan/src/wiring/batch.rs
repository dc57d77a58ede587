//! What a batch stage is fed: the inputs of its model, beside what the stages before it give.

use orchestra_core::data::{Column, ColumnType, Schema};
use orchestra_core::{DType, Dim, Iteration, Placement, ProbedModel, ReadOutput, TensorSpec};

use super::{Wired, Wiring, name_of};
use crate::fields::At;
use crate::graph::Link;
use crate::host::ProbeRequest;
use crate::iteration::IteratedModel;
use crate::kind::{BatchDraft, Draft, Input, Runs};
use crate::models::Model;
use crate::nearest::{list, suggestion};
use crate::outputs::{Batches, StageOutput, UnreadableOutput};
use crate::plan::ColumnRef;
use crate::raw::RawStage;

impl<'a> Wiring<'a> {
    pub(super) fn batch(&mut self, stage: usize, raw: &RawStage, draft: &BatchDraft) -> Option<Wired> {
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
        let fixed_batch = self.fixed_batch(model, &signature.inputs);
        let links = self.inputs(stage, raw, &model.value, &signature.inputs)?;
        let mut inputs = Vec::new();
        let mut fed = Vec::new();
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
                let row = ty.tensor().map_or_else(Vec::new, |given| given.row.clone());
                fed.push(TensorSpec { row, ..want });
                tensors.push(tensor);
                pixels.push(match ty {
                    ColumnType::Pixels { input, .. } => Some(input),
                    _ => None,
                });
            }
        }
        let complete = inputs.len() == signature.inputs.len();
        let fixed_batch = fixed_batch?;
        let trim = match complete {
            true => self.trim(stage, raw, index, &inputs, draft.iteration.is_some())?,
            false => None,
        };
        let (given, unreadable) = match complete {
            true => self.given(known, draft, &fed, fixed_batch),
            false => self.given(known, draft, &[], fixed_batch),
        };
        let mut outputs: Vec<TensorSpec> = given.iter().map(|output| output.read.tensor.clone()).collect();
        let iteration = match &draft.iteration {
            Some(draft) if complete => {
                let (inputs, outputs, pixels) = (&tensors, &outputs, &pixels);
                let iterated = IteratedModel { stage: &raw.name, model: signature, inputs, outputs, pixels };
                Some(iterated.resolve(draft, self.diags)?)
            }
            _ => None,
        };
        if let Some(iteration) = &iteration {
            tensors.extend(iteration.rounds_input());
            outputs.push(Iteration::rounds_output());
        }
        if let Some((_, placed)) = trim {
            inputs.push(placed);
            tensors.push(Placement::tensor());
            pixels.push(None);
        }
        let column = |output: &TensorSpec, ty| Column { name: output.name.clone(), ty };
        let said =
            outputs[given.len()..].iter().map(|output| column(output, ColumnType::Tensor(output.clone())));
        let mut gives: Vec<Column> =
            given.iter().map(|output| column(&output.read.tensor, output.column())).chain(said).collect();
        if iteration.is_none()
            && let ([output], [StageOutput { read: ReadOutput { is_text: false, .. }, .. }]) =
                (&mut outputs[..], &given[..])
            && self.is_only_largest_read(stage, index)
            && let Some(stored) = largest(output)
        {
            let model = std::mem::replace(output, stored.clone());
            gives = vec![column(&model.clone(), ColumnType::Largest { stored, model })];
        }
        let gives = Schema(gives);
        let read = &inputs[..signature.inputs.len().min(inputs.len())];
        let mut places: Vec<ColumnRef> = read.iter().filter_map(|read| self.placed(read.from)).collect();
        places.dedup();
        let placed = places.pop().filter(|_| places.is_empty());
        complete.then_some(Wired::Batch {
            model: index,
            inputs,
            tensors,
            outputs,
            given,
            unreadable,
            iteration,
            trim: trim.map(|(trim, _)| trim),
            fixed_batch,
            gives,
            placed,
        })
    }

    /// The tensor that a link of a stage with a model means.
    fn output(&mut self, reader: &str, want: &TensorSpec, link: &Link) -> Option<(ColumnRef, ColumnType)> {
        let input = self.input(link)?;
        // Of several tensors the only one that the model can take is meant.
        let is_of_type: [fn(DType, DType) -> bool; 2] = [|give, want| give == want, DType::goes_into];
        for is_of_type in is_of_type {
            let mut fitting = (0..input.gives.0.len()).filter(|place| {
                let tensor = input.gives.0[*place].ty.tensor();
                tensor.is_some_and(|give| is_of_type(give.dtype, want.dtype) && is_same_row(want, give))
            });
            if let (None, Some(place), None) = (&input.column, fitting.next(), fitting.next()) {
                return Some((
                    ColumnRef { from: link.target, column: place },
                    input.gives.0[place].ty.clone(),
                ));
            }
        }
        self.tensor_of(reader, &input, link)
    }

    /// The tensor that a link of a stage means that takes any.
    fn any_tensor(&mut self, reader: &str, link: &Link) -> Option<(ColumnRef, ColumnType)> {
        let input = self.input(link)?;
        self.tensor_of(reader, &input, link)
    }

    fn tensor_of(&mut self, reader: &str, input: &Input, link: &Link) -> Option<(ColumnRef, ColumnType)> {
        let has_pictures = input.gives.0.iter().any(|column| column.ty == ColumnType::Picture);
        let what = match input.is_source && has_pictures {
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
        if let [(None, from)] = &raw.upstreams[..] {
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
        let mut fine = !raw.upstreams.is_empty();
        for name in raw.upstreams.iter().filter_map(|(name, _)| name.as_ref()) {
            if !names().any(|n| n == name.value) {
                fine = false;
                self.diags
                    .error(name.span, format!("model `{model}` has no input `{}`", name.value))
                    .help(suggestion("inputs", &name.value, names()));
            }
        }
        let mut found = Vec::new();
        for name in names() {
            let at =
                raw.upstreams.iter().position(|(input, _)| input.as_ref().is_some_and(|i| i.value == name));
            match at {
                Some(at) => found.push(links[at].as_ref()),
                None if raw.upstreams.is_empty() => return None,
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

    /// What the stage can have of the outputs of its model, and the others. `fed` are the inputs of the model; none where they are not known.
    fn given(
        &self,
        known: &Model,
        draft: &BatchDraft,
        fed: &[TensorSpec],
        fixed: Option<usize>,
    ) -> (Vec<StageOutput>, Vec<UnreadableOutput>) {
        if known.plan.code.is_some() {
            let outputs = known.plan.outputs.iter().cloned();
            return (outputs.map(StageOutput::of_program).collect(), Vec::new());
        }
        let of_model =
            || self.workflow.models.iter().find(|m| m.name.value == known.plan.name)?.max_batch.as_ref();
        let asked = draft.max_batch.as_ref().or_else(of_model).map(|asked| asked.value);
        let is_single = fixed.map_or(asked == Some(1), |batch| batch == 1);
        let probed = self.probed(known, fed, fixed, is_single);
        let size_limit = probed.as_ref().ok().and_then(|found| found.size_limit.as_ref());
        let size_limit = size_limit.filter(|limit| !is_single || limit.runs > 1);
        let batches = Batches { fixed, is_single, size_limit };
        let batch = fixed.map_or(Dim::Dynamic, Dim::Fixed);
        let (mut given, mut unreadable) = (Vec::new(), Vec::new());
        for output in &known.declared {
            let probed = match &probed {
                Ok(found) => found.outputs.iter().find(|found| found.name == output.name).ok_or(None),
                Err(why) => Err(why.as_deref()),
            };
            match output.stage_output(batch, batches, probed, known.has_zip_map) {
                Ok(output) => given.push(output),
                Err(output) => unreadable.push(output),
            }
        }
        (given, unreadable)
    }

    /// What a probe says of a model; an error without a reason where none is made.
    fn probed(
        &self,
        known: &Model,
        fed: &[TensorSpec],
        batch: Option<usize>,
        is_single: bool,
    ) -> Result<ProbedModel, Option<String>> {
        if fed.is_empty() {
            return Err(None);
        }
        let tensors = known.declared.iter().filter(|output| output.is_tensor());
        let outputs: Vec<String> = tensors.map(|output| output.name.clone()).collect();
        let is_alone = is_single && !known.declared.iter().any(|output| output.is_open(batch));
        let request = ProbeRequest { model: &known.plan, inputs: fed, outputs: &outputs, batch, is_alone };
        self.host.probe(&request).ok_or(None)?.map_err(Some)
    }

    /// The only batch the model takes, if there is one. `None` after an error.
    fn fixed_batch(&mut self, model: &At<String>, inputs: &[TensorSpec]) -> Option<Option<usize>> {
        let batch = inputs.first()?.batch;
        let Some(other) = inputs.iter().find(|input| input.batch != batch) else {
            return Some(batch.fixed());
        };
        let message = format!("the inputs of model `{}` have different batch dimensions", model.value);
        self.diags
            .error(model.span, message)
            .label(format!("`{}` is {}, `{}` is {other}", inputs[0].name, inputs[0], other.name));
        None
    }

    /// The tensor as it lies in a slot, or an error.
    fn fits(&mut self, model: &str, want: &TensorSpec, link: &Link, ty: &ColumnType) -> Option<TensorSpec> {
        let give = ty.tensor()?;
        let giver = name_of(self.workflow, link.target);
        if let Some(Wired::Stage { connected, .. }) =
            link.stage().and_then(|stage| self.wired[stage].as_ref())
            && matches!(connected.runs, Runs::Reduce(_))
        {
            self.diags
                .error(link.span, format!("stage `{giver}` gives its rows when all items have ended, so only sinks can read it"))
                .help("write them by a sink, and read its file in a workflow of its own; a task may run that: command = [\"orchestra\", \"run\", \"next.toml\"], after = [\"sinks.NAME\"]");
            return None;
        }
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
        // Pixels become what the model takes inside of its graph, and nothing else is made of them.
        let fits = give.dtype == want.dtype || ty.stored() == Some(give) && give.dtype.goes_into(want.dtype);
        if !same_row || !fits {
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
        // What lies in a slot.
        let lies = ty.stored()?;
        let dtype = if give.dtype == want.dtype { lies.dtype } else { want.dtype };
        Some(TensorSpec { name: want.name.clone(), batch: want.batch, dtype, ..lies.clone() })
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

/// Whether rows of `give` have the shape that `want` asks for.
fn is_same_row(want: &TensorSpec, give: &TensorSpec) -> bool {
    let fits = |(want, give): (&Dim, &Dim)| want.fixed().is_none_or(|n| give.fixed() == Some(n));
    want.row.len() == give.row.len() && give.fixed_row().is_some() && want.row.iter().zip(&give.row).all(fits)
}
