//! Whether the settings of a loop fit its model. Loads nothing.

use orchestra_core::iteration::{Feed, Iteration, ROUNDS, Until};
use orchestra_core::{PixelInput, TensorSpec};

use crate::cx::Cx;
use crate::diagnostics::{Reported, Span};
use crate::fields::Spanned;
use crate::kind::{IterationDraft, UntilDraft};
use crate::nearest::{list, suggestion};
use crate::plan::ModelPlan;

/// A stage that loops, and its model.
pub(super) struct IteratedModel<'a> {
    /// Name and place of the stage.
    pub stage: &'a Spanned<String>,
    pub model: &'a ModelPlan,
    /// The inputs of the model as they lie in slots.
    pub inputs: &'a [TensorSpec],
    /// The outputs of the model that the stage can have.
    pub outputs: &'a [TensorSpec],
    /// Those that lie there as pixels.
    pub pixels: &'a [Option<PixelInput>],
}

impl IteratedModel<'_> {
    /// The loop in terms of the model.
    pub fn resolve(&self, draft: &IterationDraft, cx: &mut Cx<'_>) -> Result<Iteration, Reported> {
        self.check_model(cx)?;
        let feed = self.feed(draft, cx);
        let until = draft.until.as_ref().map(|until| self.until(until, cx)).transpose()?;
        Ok(Iteration { rounds: draft.rounds, feed: feed?, until })
    }

    fn name(&self) -> &str {
        &self.model.name
    }

    /// Whether rows can be kept one by one, and the output `rounds` has its name for itself.
    fn check_model(&self, cx: &mut Cx<'_>) -> Result<(), Reported> {
        let (stage, model) = (&self.stage.value, self.name());
        let outputs = self.outputs;
        if let Some(text) = self.model.text_inputs.first() {
            let message = format!(
                "stage `{stage}` cannot loop over model `{model}`: its input `{}` takes texts",
                text.name
            );
            let help = "run the model once by an `infer` stage, or split off what makes numbers of the texts";
            return cx.error(self.stage.span, message).help(help).fail();
        }
        if let Some(open) = outputs.iter().find(|output| output.fixed_row().is_none()) {
            let message = format!(
                "stage `{stage}` cannot loop over model `{model}`: its output `{}` has no fixed shape",
                open.name
            );
            return cx
                .error(self.stage.span, message)
                .label(format!("it is {open}"))
                .help("export the model with fixed dimensions other than the batch")
                .fail();
        }
        if outputs.iter().any(|output| output.name == ROUNDS) {
            let message = format!(
                "stage `{stage}` gives an output `{ROUNDS}` of its own, and model `{model}` has one of that name"
            );
            let help = "export the model with another name for it";
            return cx.error(self.stage.span, message).help(help).fail();
        }
        Ok(())
    }

    fn feed(&self, draft: &IterationDraft, cx: &mut Cx<'_>) -> Result<Vec<Feed>, Reported> {
        let Some(pairs) = &draft.feed else {
            let ([_], [_]) = (self.inputs, self.outputs) else {
                let names = |specs: &[TensorSpec]| list(specs.iter().map(|spec| spec.name.as_str()));
                let message =
                    format!("stage `{}` must say what a round takes of the one before", self.stage.value);
                let help = format!(
                    "write feed = {{ input = \"output\" }}; inputs of model `{}`: {}; outputs: {}",
                    self.name(),
                    names(&self.model.inputs),
                    names(self.outputs)
                );
                return cx.error(self.stage.span, message).label("`feed` is missing").help(help).fail();
            };
            return self.fits(Feed { output: 0, input: 0 }, self.stage.span, cx).map(|feed| vec![feed]);
        };
        let mut found: Result<Vec<Feed>, Reported> = Ok(Vec::new());
        let mut taken = Vec::new();
        for (input, at) in pairs {
            let input = self.place("input", &self.model.inputs, input, cx);
            let output = self.place("output", self.outputs, at, cx);
            let fed = input.and_then(|input| {
                let output = output?;
                if taken.contains(&output) {
                    let (output, stage) = (&at.value, &self.stage.value);
                    let message = format!("output `{output}` becomes two inputs of stage `{stage}`");
                    return cx
                        .error(at.span, message)
                        .help("let the model give it twice, under two names")
                        .fail();
                }
                taken.push(output);
                self.fits(Feed { output, input }, at.span, cx)
            });
            found = found.and_then(|found| Ok([found, vec![fed?]].concat()));
        }
        found
    }

    fn fits(&self, feed: Feed, span: Span, cx: &mut Cx<'_>) -> Result<Feed, Reported> {
        let (gives, takes) = (&self.outputs[feed.output], self.inputs.get(feed.input).ok_or(Reported)?);
        let is_pixels = self.pixels.get(feed.input).is_some_and(Option::is_some);
        if gives.dtype == takes.dtype && gives.fixed_row() == takes.fixed_row() && !is_pixels {
            return Ok(feed);
        }
        let (model, output, input) = (self.name(), &gives.name, &takes.name);
        let message = format!(
            "output `{output}` of model `{model}` cannot become its input `{input}` in the next round"
        );
        let d = cx.error(span, message);
        match is_pixels {
            true => d.label(format!("`{output}` is {gives}, `{input}` is given pixels: {takes}")).help(
                "write `normalize = \"host\"` in the image stage: then the input is what the model takes",
            ),
            false => d
                .label(format!("`{output}` is {gives}, `{input}` is {takes}"))
                .help("type and shape must be the same"),
        };
        d.fail()
    }

    fn until(&self, draft: &UntilDraft, cx: &mut Cx<'_>) -> Result<Until, Reported> {
        let output = self.place("output", self.outputs, &draft.output, cx)?;
        let spec = &self.outputs[output];
        if let Some(n) = spec.row_len().filter(|n| *n != 1) {
            let message = format!(
                "`until` of stage `{}` compares one number per row, and output `{}` has {n}",
                self.stage.value, spec.name
            );
            return cx
                .error(draft.output.span, message)
                .label(format!("it is {spec}"))
                .help("let the model give the largest or the sum of them as an output of its own")
                .fail();
        }
        Ok(Until { output, below: draft.below, or_equal: draft.or_equal })
    }

    fn place(
        &self,
        what: &str,
        specs: &[TensorSpec],
        name: &Spanned<String>,
        cx: &mut Cx<'_>,
    ) -> Result<usize, Reported> {
        specs.iter().position(|spec| spec.name == name.value).ok_or(()).or_else(|()| {
            let names = specs.iter().map(|spec| spec.name.as_str());
            let help = suggestion(&format!("{what}s"), &name.value, names);
            let message = format!("model `{}` has no {what} `{}`", self.name(), name.value);
            cx.error(name.span, message).help(help).fail()
        })
    }
}
