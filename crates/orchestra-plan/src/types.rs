//! Whether what a stage gives fits what the next one takes. Knows shapes and types, and neither files nor devices.

use orchestra_core::{DType, Dim, ImageSpec, TensorSpec};

use crate::diagnostics::{Diagnostics, Span};
use crate::fields::At;
use crate::graph::{Graph, Link, Target};
use crate::models::Model;
use crate::nearest::{list, suggestion};
use crate::placement::plural;
use crate::plan::Scores;
use crate::raw::{RawKind, RawStage, RawWorkflow};

mod advice;

use advice::image_settings;

/// A stage with all its inputs known to fit.
#[derive(Debug)]
pub(crate) enum Wired {
    Image {
        source: usize,
        spec: ImageSpec,
    },
    Infer {
        model: usize,
        /// Per model input: the stage, and which of its outputs.
        inputs: Vec<(usize, usize)>,
        /// The model's inputs with every open dimension of the row filled in.
        tensors: Vec<TensorSpec>,
        fixed_batch: Option<usize>,
    },
    Classify {
        from: usize,
        output: usize,
        top_k: usize,
        labels: Vec<String>,
        scores: Scores,
    },
}

/// Checks edges in the order of the data.
pub(crate) struct Wiring<'a> {
    pub workflow: &'a RawWorkflow,
    pub graph: &'a Graph,
    /// Per model of the file; `None` was reported, or nobody uses it.
    pub models: &'a [Option<Model>],
    /// Per stage: the labels that it names itself; `None` was reported or there are none.
    pub labels: &'a [Option<At<Vec<String>>>],
    pub diags: &'a mut Diagnostics,
    wired: Vec<Option<Wired>>,
}

impl<'a> Wiring<'a> {
    pub fn new(
        workflow: &'a RawWorkflow,
        graph: &'a Graph,
        models: &'a [Option<Model>],
        labels: &'a [Option<At<Vec<String>>>],
        diags: &'a mut Diagnostics,
    ) -> Self {
        let wired = workflow.stages.iter().map(|_| None).collect();
        Self { workflow, graph, models, labels, diags, wired }
    }

    /// Per stage what it is; `None` where it, or something before it, has an error.
    pub fn check(mut self) -> Vec<Option<Wired>> {
        for &stage in &self.graph.order {
            let raw = &self.workflow.stages[stage];
            self.wired[stage] = match &raw.kind {
                Some(RawKind::Image(spec)) => self.image(stage, spec.as_ref()),
                Some(RawKind::Infer { model, .. }) => self.infer(stage, raw, model.as_ref()),
                Some(RawKind::Classify { top_k, scores, .. }) => self.classify(stage, raw, top_k, *scores),
                None => None,
            };
        }
        self.wired
    }

    fn image(&self, stage: usize, spec: Option<&ImageSpec>) -> Option<Wired> {
        let source = self.graph.sources(stage).next()?;
        Some(Wired::Image { source, spec: spec?.clone() })
    }

    /// What a stage gives, by place; empty for a stage that gives no tensors.
    fn outputs(&self, stage: usize) -> Option<Vec<TensorSpec>> {
        match self.wired[stage].as_ref()? {
            Wired::Image { spec, .. } => Some(vec![spec.for_model().tensor()]),
            Wired::Infer { model, .. } => Some(self.models[*model].as_ref()?.file.signature.outputs.clone()),
            Wired::Classify { .. } => Some(Vec::new()),
        }
    }

    /// The output that a link means.
    fn output(&mut self, reader: &str, link: &Link) -> Option<(usize, usize, TensorSpec)> {
        let stage = link.stage()?;
        let outputs = self.outputs(stage)?;
        let name = &self.workflow.stages[stage].name.value;
        let names = || outputs.iter().map(|o| o.name.as_str());
        let place = match &link.tensor {
            Some(tensor) => names().position(|n| n == tensor),
            None if outputs.len() == 1 => Some(0),
            None => {
                self.diags
                    .error(
                        link.span,
                        format!("{reader} must say which of the outputs of stage `{name}` it reads"),
                    )
                    .help(format!("write \"{name}.tensor\"; outputs: {}", list(names())));
                return None;
            }
        };
        let Some(place) = place else {
            let tensor = link.tensor.as_deref().unwrap_or_default();
            self.diags.error(link.span, format!("stage `{name}` has no output `{tensor}`")).help(suggestion(
                "outputs",
                tensor,
                names(),
            ));
            return None;
        };
        Some((stage, place, outputs[place].clone()))
    }

    fn infer(&mut self, stage: usize, raw: &RawStage, model: Option<&At<String>>) -> Option<Wired> {
        let model = model?;
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
        let signature = &self.models[index].as_ref()?.file.signature;
        let fixed_batch = self.fixed_batch(model, &signature.inputs, &signature.outputs);
        let links = self.inputs(stage, raw, &model.value, &signature.inputs)?;
        self.one_origin(raw, &links);
        let mut inputs = Vec::new();
        let mut tensors = Vec::new();
        for (want, link) in signature.inputs.iter().zip(links) {
            if let Some(found) = self.output(&format!("stage `{}`", raw.name.value), link)
                && let Some(tensor) = self.fits(&model.value, want, link, &found)
            {
                inputs.push((found.0, found.1));
                tensors.push(tensor);
            }
        }
        let complete = inputs.len() == signature.inputs.len();
        let fixed_batch = fixed_batch?;
        complete.then_some(Wired::Infer { model: index, inputs, tensors, fixed_batch })
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

    /// All inputs must come from image stages of one source, or from one infer stage: only then do rows belong to one item.
    fn one_origin(&mut self, raw: &RawStage, links: &[&Link]) {
        #[derive(PartialEq)]
        enum Origin {
            Source(usize),
            Infer(usize),
        }
        let origin = |link: &Link| {
            let stage = link.stage()?;
            match &self.workflow.stages[stage].kind {
                Some(RawKind::Image(_)) => match self.graph.reads[stage].first()?.as_ref()?.target {
                    Target::Source(source) => Some(Origin::Source(source)),
                    Target::Stage(_) => None,
                },
                _ => Some(Origin::Infer(stage)),
            }
        };
        let mut first = None;
        for link in links {
            let Some(found) = origin(link) else { continue };
            if first.as_ref().is_some_and(|f| *f != found) {
                let message = format!("the inputs of stage `{}` come from different places", raw.name.value);
                self.diags
                    .error(link.span, message)
                    .help("all inputs come from image stages of one source, or all from one infer stage");
                return;
            }
            first.get_or_insert(found);
        }
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

    /// The tensor as it will be fed, or an error.
    fn fits(
        &mut self,
        model: &str,
        want: &TensorSpec,
        link: &Link,
        (stage, _, give): &(usize, usize, TensorSpec),
    ) -> Option<TensorSpec> {
        let giver = &self.workflow.stages[*stage].name.value;
        let Some(row) = give.fixed_row() else {
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
        let same_row = want.row.len() == row.len()
            && want.row.iter().zip(&row).all(|(want, give)| want.fixed().is_none_or(|n| n == *give));
        if !same_row || want.dtype != give.dtype {
            let what = if same_row { "type" } else { "shape" };
            let d = self.diags.error(
                link.span,
                format!(
                    "stage `{giver}` gives another {what} than input `{}` of model `{model}` takes",
                    want.name
                ),
            );
            d.label(format!("`{giver}` gives {give}, `{model}` takes {want}"));
            if let Some(Wired::Image { spec, .. }) = &self.wired[*stage] {
                d.help(image_settings(giver, &spec.for_model(), want));
            }
            return None;
        }
        // What lies in a slot; pixels only become what the model takes inside of its graph.
        let lies = match &self.wired[*stage] {
            Some(Wired::Image { spec, .. }) => spec.tensor(),
            _ => TensorSpec { row: row.into_iter().map(Dim::Fixed).collect(), ..give.clone() },
        };
        Some(TensorSpec { name: want.name.clone(), batch: want.batch, ..lies })
    }

    fn classify(&mut self, stage: usize, raw: &RawStage, top_k: &At<u64>, scores: Scores) -> Option<Wired> {
        let link = self.graph.reads[stage].first()?.as_ref()?;
        let (from, output, tensor) = self.output(&format!("stage `{}`", raw.name.value), link)?;
        let Some(Wired::Infer { model, .. }) = &self.wired[from] else { return None };
        let model_labels = self.models[*model].as_ref().and_then(|m| m.labels.as_ref());
        let labels = self.labels[stage].as_ref().or(model_labels);
        let classes = self.classes(raw, link.span, &tensor)?;
        if let (Some(classes), Some(labels)) = (classes, labels)
            && labels.value.len() != classes
        {
            self.diags
                .error(
                    labels.span,
                    format!(
                        "there are {} labels for {classes} classes of output `{}`",
                        labels.value.len(),
                        tensor.name
                    ),
                )
                .help("a labels file has one line per class, in the order of the classes");
        }
        let top_k_value = top_k.value as usize;
        if let Some(classes) = classes
            && top_k_value > classes
        {
            self.diags
                .error(top_k.span, format!("`top_k` is {top_k_value}, but there are {classes} classes"));
        }
        let labels = labels.map_or_else(Vec::new, |l| l.value.clone());
        Some(Wired::Classify { from, output, top_k: top_k_value, labels, scores })
    }

    /// How many classes the tensor scores, where that is known. `None` after an error.
    fn classes(&mut self, raw: &RawStage, span: Span, tensor: &TensorSpec) -> Option<Option<usize>> {
        let mut wide = tensor.row.iter().filter(|d| **d != Dim::Fixed(1));
        // A row of ones, or of nothing, is a single score.
        let classes = wide.next().copied().unwrap_or(Dim::Fixed(1));
        let floats = matches!(tensor.dtype, DType::F32 | DType::F16);
        if floats && wide.next().is_none() {
            return Some(classes.fixed());
        }
        self.diags
            .error(span, format!("stage `{}` cannot classify output `{}`", raw.name.value, tensor.name))
            .label(format!("it is {tensor}"))
            .help("classify takes one score per class: f32[batch, classes] or f16[batch, classes]");
        None
    }
}
