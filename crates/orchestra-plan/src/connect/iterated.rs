//! Whether the settings of a loop fit its model or program. Loads nothing.

use orchestra_core::PixelInput;
use orchestra_core::data::{Column, ColumnType};
use orchestra_core::iteration::{Feed, Iteration, ROUNDS, Until};

use crate::cx::Cx;
use crate::diagnostics::{Reported, Span};
use crate::fields::Spanned;
use crate::kind::{IterationDraft, UntilDraft};
use crate::nearest::{list, suggestion};
use crate::workflow::KnownModel;

/// A stage that loops, and its model or program.
pub(super) struct IteratedModel<'a> {
    /// Name and place of the stage.
    pub stage: &'a Spanned<String>,
    pub known: &'a KnownModel,
    /// What is fed: the inputs as they lie in slots, then those that do not.
    pub inputs: Vec<Column>,
    /// The outputs that the stage can have.
    pub outputs: Vec<Column>,
    /// Those of the first inputs that lie there as pixels.
    pub pixels: &'a [Option<PixelInput>],
    /// The model was not run to find out more of its outputs.
    pub is_untried: bool,
}

impl IteratedModel<'_> {
    /// The loop in terms of the model, of whose inputs the last `in_loop` lie in no slot: those that step through a row come first.
    pub fn resolve(
        &self,
        draft: &IterationDraft,
        in_loop: usize,
        cx: &mut Cx<'_>,
    ) -> Result<Iteration, Reported> {
        self.check_model(cx)?;
        let each = self.places("input", &self.inputs, &draft.each, cx)?;
        let collect = self.places("output", &self.outputs, &draft.collect, cx)?;
        let feed = self.feed(draft, cx)?;
        for (place, name) in each.iter().zip(&draft.each) {
            let (input, stage) = (&name.value, &self.stage.value);
            if feed.iter().any(|feed| feed.input == *place) {
                let message = format!(
                    "input `{input}` of stage `{stage}` cannot step through a row: it takes an output of the round before"
                );
                return cx.error(name.span, message).help("name it in `feed` or in `each`").fail();
            }
        }
        let until = draft.until.as_ref().map(|until| self.until(until, cx)).transpose()?;
        let each = (self.inputs.len() - in_loop..).take(each.len()).collect();
        Ok(Iteration { rounds: draft.rounds, feed, each, collect, until })
    }

    /// The places of these inputs or outputs, each of which is named once.
    fn places(
        &self,
        what: &str,
        columns: &[Column],
        names: &[Spanned<String>],
        cx: &mut Cx<'_>,
    ) -> Result<Vec<usize>, Reported> {
        let mut places = Vec::new();
        for name in names {
            let place = self.place(what, columns, name, cx)?;
            if places.contains(&place) {
                let message =
                    format!("{what} `{}` of stage `{}` is named twice", name.value, self.stage.value);
                return cx.error(name.span, message).help("name it once").fail();
            }
            places.push(place);
        }
        Ok(places)
    }

    fn name(&self) -> String {
        self.known.plan.in_words()
    }

    fn is_program(&self) -> bool {
        self.known.plan.code.is_some()
    }

    /// Whether rows can be kept one by one, and the output `rounds` has its name for itself.
    fn check_model(&self, cx: &mut Cx<'_>) -> Result<(), Reported> {
        let (stage, model) = (&self.stage.value, self.name());
        let cannot = |why: String| format!("stage `{stage}` cannot loop over {model}: {why}");
        let text = self.known.plan.text_inputs.first();
        let open = self.outputs.iter().find(|output| !is_fixed(output));
        let (why, help) = match (text, open) {
            _ if self.known.drops => (
                cannot("it drops rows".to_owned()),
                "leave `drops` of the decorator out, and put a `filter` behind the stage",
            ),
            (Some(text), _) => (
                cannot(format!("its input `{}` takes texts", text.name)),
                "run the model once by an `infer` stage, or split off what makes numbers of the texts",
            ),
            (None, Some(open)) if self.is_untried => {
                let message =
                    format!("the shape of output `{}` of {model} is not known before it is run", open.name);
                cx.warning(self.stage.span, message)
                    .label(format!("it is {}", open.ty))
                    .help("`orchestra plan` runs the model and finds out; the loop was not looked at");
                cx.diags.leave_open();
                return Err(Reported);
            }
            (None, Some(open)) if !self.is_program() => {
                let message = cannot(format!("its output `{}` has no fixed shape", open.name));
                return cx
                    .error(self.stage.span, message)
                    .label(format!("it is {}", open.ty))
                    .help("export the model with fixed dimensions other than the batch")
                    .fail();
            }
            _ if self.outputs.iter().any(|output| output.name == ROUNDS) => (
                format!(
                    "stage `{stage}` gives an output `{ROUNDS}` of its own, and {model} has one of that name"
                ),
                match self.is_program() {
                    true => "give it another name in the script",
                    false => "export the model with another name for it",
                },
            ),
            _ => return Ok(()),
        };
        cx.error(self.stage.span, why).help(help).fail()
    }

    fn feed(&self, draft: &IterationDraft, cx: &mut Cx<'_>) -> Result<Vec<Feed>, Reported> {
        let Some(pairs) = &draft.feed else {
            // What steps through a row may keep nothing from round to round.
            return if draft.each.is_empty() { self.feed_by_default(cx) } else { Ok(Vec::new()) };
        };
        let mut found: Result<Vec<Feed>, Reported> = Ok(Vec::new());
        let mut taken = Vec::new();
        for (input, at) in pairs {
            let input = self.place("input", &self.inputs, input, cx);
            let output = self.place("output", &self.outputs, at, cx);
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

    /// Outputs become the inputs of their names; of one input and one output, whatever their names are.
    fn feed_by_default(&self, cx: &mut Cx<'_>) -> Result<Vec<Feed>, Reported> {
        let of_its_name = |(input, column): (usize, &Column)| {
            let output = self.outputs.iter().position(|output| output.name == column.name)?;
            Some(Feed { output, input })
        };
        let mut feeds: Vec<Feed> = self.inputs.iter().enumerate().filter_map(of_its_name).collect();
        if let (true, [_], [_]) = (feeds.is_empty(), &self.inputs[..], &self.outputs[..]) {
            feeds.push(Feed { output: 0, input: 0 });
        }
        if feeds.is_empty() {
            let names = |columns: &[Column]| list(columns.iter().map(|column| column.name.as_str()));
            let message =
                format!("stage `{}` must say what a round takes of the one before", self.stage.value);
            let help = format!(
                "write feed = {{ input = \"output\" }}; inputs of {}: {}; outputs: {}",
                self.name(),
                names(&self.inputs),
                names(&self.outputs)
            );
            return cx.error(self.stage.span, message).label("`feed` is missing").help(help).fail();
        }
        feeds.into_iter().map(|feed| self.fits(feed, self.stage.span, cx)).collect()
    }

    fn fits(&self, feed: Feed, span: Span, cx: &mut Cx<'_>) -> Result<Feed, Reported> {
        let (gives, takes) = (&self.outputs[feed.output], &self.inputs[feed.input]);
        let is_pixels = self.pixels.get(feed.input).is_some_and(Option::is_some);
        let is_same = match (gives.ty.tensor(), takes.ty.tensor()) {
            (Some(gives), Some(takes)) => {
                let row = gives.fixed_row();
                gives.dtype == takes.dtype && row.is_some() && row == takes.fixed_row()
            }
            _ => gives.ty == ColumnType::Text && *takes.ty.required() == ColumnType::Text,
        };
        if is_same && !is_pixels {
            return Ok(feed);
        }
        let (model, output, input) = (self.name(), &gives.name, &takes.name);
        let message =
            format!("output `{output}` of {model} cannot become its input `{input}` in the next round");
        let (gives, takes) = (&gives.ty, &takes.ty);
        let d = cx.error(span, message);
        match is_pixels {
            true => d.label(format!("`{output}` is {gives}, `{input}` is given pixels: {takes}")).help(
                "write `normalize = \"host\"` in the image stage: then the input is what the model takes",
            ),
            false => d
                .label(format!("`{output}` is {gives}, `{input}` is {takes}"))
                .help("both must be arrays of the same type and fixed shape, or texts of a program"),
        };
        d.fail()
    }

    fn until(&self, draft: &UntilDraft, cx: &mut Cx<'_>) -> Result<Until, Reported> {
        let output = self.place("output", &self.outputs, &draft.output, cx)?;
        let Column { name, ty } = &self.outputs[output];
        let len = ty.tensor().and_then(|tensor| tensor.row_len());
        if len != Some(1) {
            let has = len.map_or_else(|| "has no fixed number of them".to_owned(), |n| format!("has {n}"));
            let message = format!(
                "`until` of stage `{}` compares one number per row, and output `{name}` {has}",
                self.stage.value
            );
            return cx
                .error(draft.output.span, message)
                .label(format!("it is {ty}"))
                .help("let the model give the largest or the sum of them as an output of its own")
                .fail();
        }
        Ok(Until { output, below: draft.below, or_equal: draft.or_equal })
    }

    fn place(
        &self,
        what: &str,
        columns: &[Column],
        name: &Spanned<String>,
        cx: &mut Cx<'_>,
    ) -> Result<usize, Reported> {
        columns.iter().position(|column| column.name == name.value).ok_or(()).or_else(|()| {
            let names = columns.iter().map(|column| column.name.as_str());
            let help = suggestion(&format!("{what}s"), &name.value, names);
            let message = format!("{} has no {what} `{}`", self.name(), name.value);
            cx.error(name.span, message).help(help).fail()
        })
    }
}

/// Whether it is a tensor of fixed shape.
fn is_fixed(column: &Column) -> bool {
    column.ty.tensor().is_some_and(|tensor| tensor.fixed_row().is_some())
}
