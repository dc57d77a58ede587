//! What feeds the inputs of a model or program: the links of a stage, and whether the columns that they lead to fit. Loads nothing.

use orchestra_core::data::{Column, ColumnType};
use orchestra_core::iteration::{FirstRound, LoopInput};
use orchestra_core::{Code, DType, Dim, InputConstant, PixelInput, TensorSpec, TextInput};

use super::{Wiring, input, links};
use crate::diagnostics::Reported;
use crate::fields::Spanned;
use crate::kind::{Draft, Input};
use crate::nearest::{list, suggestion, toml_key};
use crate::plan::{ColumnRef, ModelPlan, ScalarInput};
use crate::workflow::{KnownModel, Link, StageNode};

/// An input of a model, and what feeds it.
pub(super) struct Fed {
    pub read: ColumnRef,
    /// The input with what is given for its open dimensions.
    pub want: TensorSpec,
    /// The tensor as it lies in a slot.
    pub stored: TensorSpec,
    pub pixels: Option<PixelInput>,
}

/// What feeds the inputs: tensors in slots, texts, and, of a program, columns of any other type, under the names of the inputs.
#[derive(Default)]
pub(super) struct ModelFeeds {
    pub slots: Vec<Fed>,
    pub values: Vec<Column>,
    pub passthrough_columns: Vec<ColumnRef>,
    /// Inputs of a loop that lie in no slot.
    pub in_loop: Vec<LoopInput>,
}

/// The inputs of a model that rows feed: those that are no constants.
pub(super) struct FedInputs<'k> {
    /// Tensors, and whether each takes any.
    pub rows: Vec<(&'k TensorSpec, bool)>,
    pub texts: Vec<&'k TextInput>,
    /// Single values that no constant says.
    missing: Vec<&'k ScalarInput>,
}

impl<'k> FedInputs<'k> {
    pub fn of(known: &'k KnownModel, constants: &[InputConstant]) -> Self {
        let is_fed = |name: &str| constants.iter().all(|constant| constant.input != name);
        let rows = known.plan.inputs.iter().zip(known.open_inputs.iter().copied());
        Self {
            rows: rows.filter(|(input, _)| is_fed(&input.name)).collect(),
            texts: known.plan.text_inputs.iter().filter(|input| is_fed(&input.name)).collect(),
            missing: known.plan.scalars.iter().filter(|scalar| is_fed(&scalar.name)).collect(),
        }
    }

    pub fn tensors(&self) -> Vec<&'k TensorSpec> {
        self.rows.iter().map(|(input, _)| *input).collect()
    }

    fn names(&self) -> impl Iterator<Item = &'k str> + Clone {
        let texts = self.texts.iter().map(|input| &*input.name);
        self.rows.iter().map(|(input, _)| &*input.name).chain(texts)
    }
}

impl<'a> Wiring<'a, '_> {
    pub(super) fn feeds(
        &mut self,
        node: &'a StageNode,
        known: &KnownModel,
        takes: &FedInputs<'_>,
    ) -> Result<ModelFeeds, Reported> {
        let links = match &node.upstreams[..] {
            [] => return Err(Reported),
            [(None, from)] => self.only_input(node, (known, takes), from)?,
            _ => self.inputs(node, known, takes)?,
        };
        let (links, of_texts) = links.split_at(takes.rows.len());
        let (mut feeds, mut all) = (ModelFeeds::default(), Ok(()));
        let each = node.batch().and_then(|batch| Some(&batch.iteration.as_ref()?.each));
        let steps =
            |input: &TensorSpec| each.is_some_and(|each| each.iter().any(|name| name.value == input.name));
        for (input, link) in takes.rows.iter().zip(links) {
            let fed = match steps(input.0) {
                true => self.feed_parts(node, input.0, link, &mut feeds),
                false => self.feed(node, known, *input, link, &mut feeds),
            };
            all = fed.and(all);
        }
        for (want, link) in takes.texts.iter().zip(of_texts) {
            all = self.feed_texts(node, want, link, &mut feeds).and(all);
        }
        all.map(|()| feeds)
    }

    /// Adds what a link feeds an input of the model; one that is open takes any tensor, and one of a program any column.
    fn feed(
        &mut self,
        node: &StageNode,
        known: &KnownModel,
        (want, is_open): (&TensorSpec, bool),
        link: &Link,
        feeds: &mut ModelFeeds,
    ) -> Result<(), Reported> {
        let reader = format!("stage `{}`", node.name.value);
        let input = input(self.workflow, link)?;
        let takes_any = is_open && matches!(known.plan.code, Some(Code::Program(_)));
        let is_by_name = is_by_name(node, known);
        let column = match only_fitting(&input, want).filter(|_| !is_open) {
            // That there is none was reported.
            _ if is_by_name => input.gives.position(&want.name).ok_or(Reported)?,
            Some(column) => column,
            None if takes_any => self.any_column(&reader, &input, &want.name)?,
            None => self.tensor_of(&reader, &input, want, link)?,
        };
        let ty = &input.gives.0[column].ty;
        let fills_slot = ty.tensor().is_some_and(|tensor| tensor.fixed_row().is_some());
        if takes_any && (!fills_slot || matches!(ty, ColumnType::Optional(_))) {
            if ty.required().list().is_some() && ty.has_pictures() {
                let message = format!("{reader} cannot take pictures in a list");
                let help = "have the stage read the parts before they are gathered";
                return self.cx.error(link.span, message).help(help).fail();
            }
            feeds.values.push(Column { name: want.name.clone(), ty: ty.clone() });
            feeds.passthrough_columns.push(ColumnRef { from: link.target, column });
            return Ok(());
        }
        let tensor = ty.tensor().ok_or(Reported)?;
        let want = match is_open {
            true => TensorSpec { name: want.name.clone(), batch: Dim::Dynamic, ..tensor.clone() },
            false => want.clone(),
        };
        let pixels = match ty {
            ColumnType::Pixels { input, .. } => Some(input.clone()),
            _ => None,
        };
        let takes_no_pixels = match known.plan.batch_axis(&want.name) {
            _ if known.plan.code.is_some() => Some("runs a program".to_owned()),
            0 => None,
            axis => Some(format!("gives rows to an input whose items lie along axis {axis}")),
        };
        if let Some(why) = takes_no_pixels.filter(|_| pixels.is_some()) {
            let giver = &input.name;
            let message = format!("{reader} {why}, and `{giver}` leaves normalising to the graph of a model");
            let help = format!("leave `normalize` of `{giver}` out");
            return self.cx.error(link.span, message).help(help).fail();
        }
        let stored = self.fits(&known.plan, &want, link, ty)?;
        let (read, row) = (ColumnRef { from: link.target, column }, tensor.row.clone());
        feeds.slots.push(Fed { read, want: TensorSpec { row, ..want }, stored, pixels });
        Ok(())
    }

    /// Adds what a link feeds an input that steps through it: a tensor with one dimension more than the input.
    fn feed_parts(
        &mut self,
        node: &StageNode,
        want: &TensorSpec,
        link: &Link,
        feeds: &mut ModelFeeds,
    ) -> Result<(), Reported> {
        let reader = format!("stage `{}`", node.name.value);
        let input = input(self.workflow, link)?;
        let parts = |column: &Column| {
            let tensor = column.ty.required().tensor()?;
            let row = tensor.row.get(1..)?;
            let part = TensorSpec {
                name: want.name.clone(),
                batch: want.batch,
                row: row.to_vec(),
                ..tensor.clone()
            };
            (part.dtype == want.dtype && is_same_row(want, &part)).then_some(part)
        };
        let shape: Vec<String> = [Dim::Dynamic].iter().chain(&want.row).map(ToString::to_string).collect();
        let (dtype, shape) = (want.dtype, shape.join(", "));
        let what = format!(
            "a tensor for `{}` to step through, {dtype}[{shape}]: a function in Python makes one of other columns",
            want.name
        );
        let own = input.gives.position(&want.name).filter(|_| input.column.is_none());
        let own = own.filter(|place| parts(&input.gives.0[*place]).is_some());
        let column = match own {
            Some(column) => column,
            None => input.column(&reader, &what, |column| parts(column).is_some(), &mut self.cx.diags)?,
        };
        let Column { ty, .. } = &input.gives.0[column];
        let tensor = parts(&input.gives.0[column]).ok_or(Reported)?;
        feeds.in_loop.push(LoopInput { tensor, first: FirstRound::Part });
        // An item that lacks its value fails.
        feeds.values.push(Column { name: want.name.clone(), ty: ty.required().clone() });
        feeds.passthrough_columns.push(ColumnRef { from: link.target, column });
        Ok(())
    }

    /// Adds what a link feeds an input of texts.
    fn feed_texts(
        &mut self,
        node: &StageNode,
        want: &TextInput,
        link: &Link,
        feeds: &mut ModelFeeds,
    ) -> Result<(), Reported> {
        let reader = format!("stage `{}`", node.name.value);
        let input = input(self.workflow, link)?;
        let column = self.texts_of(&reader, &input, want)?;
        // An item that lacks its text fails.
        let ty = input.gives.0[column].ty.required().clone();
        feeds.values.push(Column { name: want.name.clone(), ty });
        feeds.passthrough_columns.push(ColumnRef { from: link.target, column });
        Ok(())
    }

    /// The column that feeds the one input of a program: the one that is named, that of the input's name, or the only one.
    fn any_column(&mut self, reader: &str, input: &Input, name: &str) -> Result<usize, Reported> {
        let own = input.gives.position(name).filter(|_| input.column.is_none());
        own.map_or_else(
            || {
                let is_column = |column: &Column| column.ty != ColumnType::Placement;
                let what = format!("one of its columns, by its name or that of the argument, `{name}`");
                input.column(reader, &what, is_column, &mut self.cx.diags)
            },
            Ok,
        )
    }

    /// The link of each input of a stage with `from`: of the only one, or of a program that takes the columns of the names of its inputs.
    fn only_input(
        &mut self,
        node: &'a StageNode,
        (known, takes): (&KnownModel, &FedInputs<'_>),
        from: &Spanned<String>,
    ) -> Result<Vec<&'a Link>, Reported> {
        let (model, names) = (known.plan.in_words(), || takes.names());
        let n = names().count();
        let (message, help) = match takes.missing.first() {
            _ if is_by_name(node, known) => return self.inputs_by_name(node, takes, from),
            Some(scalar) => {
                let feeds = |name: &str| format!("{} = \"{}\"", toml_key(name), from.value);
                let fed: Vec<String> = names()
                    .map(feeds)
                    .chain(takes.missing.iter().map(|scalar| constant_for(scalar)))
                    .collect();
                let message = format!(
                    "{model} has an input `{}` that is a single value, and `from` feeds one input alone",
                    scalar.name
                );
                (message, format!("write inputs = {{ {} }}", fed.join(", ")))
            }
            None if n > 1 => (
                format!("{model} has {n} inputs, but `from` names one stage"),
                format!("write inputs = {{ name = \"stage\", .. }}; inputs: {}", list(names())),
            ),
            None => return links(&node.links),
        };
        self.cx.error(from.span, message).help(help).fail()
    }

    /// The link of a program to the stage whose columns have the names of its inputs, for each of them.
    fn inputs_by_name(
        &mut self,
        node: &'a StageNode,
        takes: &FedInputs<'_>,
        from: &Spanned<String>,
    ) -> Result<Vec<&'a Link>, Reported> {
        let link = links(&node.links)?.first().copied().ok_or(Reported)?;
        let input = input(self.workflow, link)?;
        let missing: Vec<&str> = takes.names().filter(|name| input.gives.position(name).is_none()).collect();
        let Some(first) = missing.first() else { return Ok(vec![link; takes.names().count()]) };
        let (stage, giver) = (&node.name.value, input.described());
        let columns = list(input.gives.names());
        let (giver_name, column) = (&input.name, input.gives.names().next().unwrap_or_default());
        let takes = list(missing.iter().copied());
        let message = format!("stage `{stage}` takes {takes}, which {giver} does not give");
        let help = format!(
            "call its arguments as the columns that they take: {columns}; or write inputs = {{ {first} = \"{giver_name}.{column}\", .. }}"
        );
        self.cx.error(from.span, message).help(help).fail()
    }

    /// The link of each model input, in the order of the model.
    fn inputs(
        &mut self,
        node: &'a StageNode,
        known: &KnownModel,
        takes: &FedInputs<'_>,
    ) -> Result<Vec<&'a Link>, Reported> {
        let (model, mut found) = (known.plan.in_words(), Ok(Vec::new()));
        let given = || node.upstreams.iter().filter_map(|(name, _)| name.as_ref());
        for name in given().filter(|name| takes.names().all(|of| of != name.value)) {
            let (message, help) = match takes.missing.iter().find(|scalar| scalar.name == name.value) {
                Some(scalar) => (
                    format!(
                        "input `{}` of {model} is a single value, the same for all items: no rows can feed it",
                        name.value
                    ),
                    format!("write the value: inputs = {{ .., {} }}", constant_for(scalar)),
                ),
                None => (
                    format!("{model} has no input `{}`", name.value),
                    suggestion("inputs", &name.value, known.plan.all_inputs()),
                ),
            };
            found = self.cx.error(name.span, message).help(help).fail();
        }
        let mut unfed = |name: &str, help: String| {
            let message = format!("stage `{}` does not feed input `{name}` of {model}", node.name.value);
            self.cx.error(node.name.span, message).help(help).fail()
        };
        for scalar in takes.missing.iter().filter(|scalar| given().all(|name| name.value != scalar.name)) {
            let help = format!("it is a single value; add it to `inputs`: {}", constant_for(scalar));
            found = unfed(&scalar.name, help);
        }
        for name in takes.names() {
            let is_it =
                |(input, _): &(Option<Spanned<String>>, _)| input.as_ref().is_some_and(|i| i.value == name);
            match node.upstreams.iter().position(is_it).map(|at| node.links[at].as_ref()) {
                Some(Some(link)) => found.iter_mut().for_each(|found| found.push(link)),
                Some(None) => found = Err(Reported),
                None => found = unfed(name, format!("add it to `inputs`: {name} = \"stage\"")),
            }
        }
        found
    }

    /// Says why rows of an open shape can feed no model, and what to do.
    fn refuse_open<T>(
        &mut self,
        link: &Link,
        stage: Option<&StageNode>,
        give: &TensorSpec,
    ) -> Result<T, Reported> {
        let (giver, output) = (self.workflow.name_of(link.target), &give.name);
        let slots = stage.and_then(|stage| stage.connected.as_ref()?.slots.as_ref());
        let mut given = slots.iter().flat_map(|slots| &slots.given);
        if given.any(|given| given.is_untried && given.read.tensor.name == *output) {
            let message = format!(
                "the shape of output `{output}` of stage `{giver}` is not known before its model is run"
            );
            self.cx.warning(link.span, message).label(format!("`{giver}` gives {give}")).help(
                "`orchestra plan` runs the model and finds out; what reads from here on was not looked at",
            );
            self.cx.diags.leave_open();
            return Err(Reported);
        }
        let message =
            format!("output `{output}` of stage `{giver}` has no fixed shape, so it cannot be fed on");
        let help = match stage.and_then(StageNode::batch) {
            Some(batch) if batch.program.is_none() => {
                "its shape differs from row to row, by values or by size (`trim`, `matrix`, `collect`): a function in Python takes it as it is, \
                 and makes rows of one shape; or put both models into one file"
            }
            _ => {
                "a model takes rows of one shape: a function in Python makes such rows, and takes tensors of any"
            }
        };
        let label = format!("`{giver}` gives {give}");
        self.cx.error(link.span, message).label(label).help(help).fail()
    }

    /// The tensor as it lies in a slot.
    fn fits(
        &mut self,
        model: &ModelPlan,
        want: &TensorSpec,
        link: &Link,
        ty: &ColumnType,
    ) -> Result<TensorSpec, Reported> {
        let give = ty.tensor().ok_or(Reported)?;
        let giver = self.workflow.name_of(link.target);
        let stage = link.stage().map(|stage| &self.workflow.stages[stage]);
        if give.fixed_row().is_none() {
            return self.refuse_open(link, stage, give);
        }
        let same_row = is_same_row(want, give);
        // Pixels become what the model takes inside of its graph, and nothing else is made of them.
        let fits = give.dtype == want.dtype || ty.stored() == Some(give) && give.dtype.goes_into(want.dtype);
        if !same_row || !fits {
            let what = if same_row { "type" } else { "shape" };
            let advice = match stage.map(|stage| &stage.draft) {
                Some(Some(Draft::Stage(draft))) => draft.advice(giver, want),
                _ => self.remedy(link, give, want),
            };
            let (input, model) = (&want.name, model.in_words());
            let message =
                format!("stage `{giver}` gives another {what} than input `{input}` of {model} takes");
            let d = self.cx.error(link.span, message);
            let model = model.trim_start_matches("model ");
            d.label(format!("`{giver}` gives {give}, {model} takes {want}"));
            d.help.extend(advice);
            return d.fail();
        }
        // What lies in a slot.
        let lies = ty.stored().ok_or(Reported)?;
        let dtype = if give.dtype == want.dtype { lies.dtype } else { want.dtype };
        Ok(TensorSpec { name: want.name.clone(), batch: want.batch, dtype, ..lies.clone() })
    }
}

/// A constant for a single value, as the file has it.
fn constant_for(scalar: &ScalarInput) -> String {
    let value = if scalar.dtype.is_some() { "0" } else { "{ value = \"text\" }" };
    format!("{} = {value}", toml_key(&scalar.name))
}

/// Whether the inputs of a program are the columns of these names of the one stage that it reads.
fn is_by_name(node: &StageNode, known: &KnownModel) -> bool {
    let is_program = matches!(known.plan.code, Some(Code::Program(_)));
    let is_whole = |link: &Option<Link>| link.as_ref().is_some_and(|link| link.tensor.is_none());
    is_program
        && known.plan.inputs.len() > 1
        && matches!(&node.upstreams[..], [(None, _)])
        && node.links.first().is_some_and(is_whole)
}

/// Of several tensors the only one that the model can take is meant.
fn only_fitting(input: &Input, want: &TensorSpec) -> Option<usize> {
    let is_of_type: [fn(DType, DType) -> bool; 2] = [|give, want| give == want, DType::goes_into];
    is_of_type.into_iter().filter(|_| input.column.is_none()).find_map(|is_of_type| {
        let mut fitting = (0..input.gives.0.len()).filter(|place| {
            let tensor = input.gives.0[*place].ty.tensor();
            tensor.is_some_and(|give| is_of_type(give.dtype, want.dtype) && is_same_row(want, give))
        });
        fitting.next().filter(|_| fitting.next().is_none())
    })
}

/// Whether rows of `give` have the shape that `want` asks for.
pub(super) fn is_same_row(want: &TensorSpec, give: &TensorSpec) -> bool {
    let fits = |(want, give): (&Dim, &Dim)| want.fixed().is_none_or(|n| give.fixed() == Some(n));
    want.row.len() == give.row.len() && give.fixed_row().is_some() && want.row.iter().zip(&give.row).all(fits)
}
