//! What a batch stage is fed: the inputs of its model, beside what the stages before it give.

use std::sync::Arc;

use orchestra_core::data::{Column, ColumnType, Schema};
use orchestra_core::{
    Code, DType, Dim, Iteration, ModelId, PixelInput, Placement, ProbedModel, TensorSpec, TextInput,
};

use super::iterated::IteratedModel;
use super::{Wiring, input, links, placed, stage_plan};
use crate::diagnostics::Reported;
use crate::fields::Spanned;
use crate::host::ProbeRequest;
use crate::kind::{BatchDraft, Draft, Input};
use crate::nearest::{list, suggestion};
use crate::outputs::{ReaderBatches, StageOutput, UnreadableOutput};
use crate::plan::{BatchPlan, ColumnRef, ModelPlan, Shape, StagePlan};
use crate::rules::{largest, trim};
use crate::workflow::{Connected, KnownModel, Link, ModelNode, SlotTensors, StageNode};

/// An input of a model, and what feeds it.
struct Fed {
    read: ColumnRef,
    /// The input with what is given for its open dimensions.
    want: TensorSpec,
    /// The tensor as it lies in a slot.
    stored: TensorSpec,
    pixels: Option<PixelInput>,
}

/// What feeds the inputs: tensors in slots, texts, and, of a program, columns of any other type, under the names of the inputs.
#[derive(Default)]
struct ModelFeeds {
    slots: Vec<Fed>,
    values: Vec<Column>,
    passthrough_columns: Vec<ColumnRef>,
}

impl<'a> Wiring<'a, '_> {
    /// Where the rows of these columns lie in their picture, if that is the same place for all.
    fn only_placement<'c>(&self, reads: impl Iterator<Item = &'c ColumnRef>) -> Option<ColumnRef> {
        let mut places: Vec<ColumnRef> = reads.filter_map(|read| placed(self.workflow, read.from)).collect();
        places.dedup();
        places.pop().filter(|_| places.is_empty())
    }

    pub(super) fn batch(
        &mut self,
        stage: usize,
        node: &'a StageNode,
        draft: &BatchDraft,
    ) -> Result<Connected, Reported> {
        // That there is no such model was reported.
        let index = node.model.ok_or(Reported)?;
        let model = &self.workflow.models[index];
        let known = model.known.as_ref().ok_or(Reported)?;
        let signature = &known.plan;
        let fixed_batch = self.fixed_batch(node, signature);
        let feeds = self.feeds(node, model, known);
        let (fixed_batch, ModelFeeds { slots: fed, values, passthrough_columns }) = (fixed_batch?, feeds?);
        let mut inputs: Vec<ColumnRef> = fed.iter().map(|fed| fed.read).collect();
        let placed = self.only_placement(inputs.iter().chain(&passthrough_columns));
        let trim = trim::trim(self.workflow, stage, &inputs, self.cx)?;
        let wants: Vec<TensorSpec> = fed.iter().map(|fed| fed.want.clone()).collect();
        let mut tensors: Vec<TensorSpec> = fed.iter().map(|fed| fed.stored.clone()).collect();
        let (given, unreadable) = self.given(model, known, draft, &wants, fixed_batch);
        let mut outputs: Vec<TensorSpec> = given.iter().map(|output| output.read.tensor.clone()).collect();
        let pixels: Vec<Option<PixelInput>> = fed.into_iter().map(|fed| fed.pixels).collect();
        let iteration = draft.iteration.as_ref().map(|draft| {
            let column =
                |spec: &TensorSpec| Column { name: spec.name.clone(), ty: ColumnType::Tensor(spec.clone()) };
            let inputs = tensors.iter().map(column).chain(values.iter().cloned()).collect();
            let (stage, outputs, pixels) = (&node.name, columns(&given, &outputs), &pixels);
            IteratedModel { stage, known, inputs, outputs, pixels }.resolve(draft, self.cx)
        });
        let iteration = iteration.transpose()?;
        if iteration.is_some() {
            outputs.push(Iteration::rounds_output());
        }
        if let Some((_, placed)) = trim {
            inputs.push(placed);
            tensors.push(Placement::tensor());
        }
        let largest = largest::of(self.workflow, stage, known, &given, &mut outputs);
        let gives = largest.map_or_else(|| columns(&given, &outputs), |largest| vec![largest]);
        let batch = BatchPlan {
            model: ModelId(index as u16), // tables are no more than ids
            passthrough_columns,
            values,
            fixed_batch,
            wait: draft.wait,
            streams: model.streams(),
            priority: model.asked.priority(),
            recycle: model.asked.recycle,
            iteration,
            drops: known.drops,
            trim: trim.map(|(trim, _)| trim),
            ..BatchPlan::default()
        };
        inputs.extend(&batch.passthrough_columns);
        let plan = stage_plan(node, Shape::Batch(Box::new(batch)))?;
        Ok(Connected {
            plan: StagePlan { reads: inputs, gives: Schema(gives), ..plan },
            placed,
            labels: known.labels.clone(),
            metadata: Arc::clone(&known.metadata),
            made_by: Arc::clone(&known.made_by),
            unreadable,
            slots: Some(SlotTensors { inputs: tensors, outputs, given }),
        })
    }

    fn feeds(
        &mut self,
        node: &'a StageNode,
        model: &ModelNode,
        known: &KnownModel,
    ) -> Result<ModelFeeds, Reported> {
        let links = self.inputs(node, model, known)?;
        let (links, of_texts) = links.split_at(known.plan.inputs.len());
        let (mut feeds, mut all) = (ModelFeeds::default(), Ok(()));
        for ((want, is_open), link) in known.plan.inputs.iter().zip(&known.open_inputs).zip(links) {
            all = self.feed(node, model, known, (want, *is_open), link, &mut feeds).and(all);
        }
        for (want, link) in known.plan.text_inputs.iter().zip(of_texts) {
            all = self.feed_texts(node, want, link, &mut feeds).and(all);
        }
        all.map(|()| feeds)
    }

    /// Adds what a link feeds an input of the model; one that is open takes any tensor, and one of a program any column.
    fn feed(
        &mut self,
        node: &StageNode,
        model: &ModelNode,
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
            if has_pictures(ty) {
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
        if known.plan.code.is_some() && pixels.is_some() {
            let giver = &input.name;
            let message =
                format!("{reader} runs a program, and `{giver}` leaves normalising to the graph of a model");
            let help = format!("leave `normalize` of `{giver}` out");
            return self.cx.error(link.span, message).help(help).fail();
        }
        let stored = self.fits(&model.name.value, &want, link, ty)?;
        let (read, row) = (ColumnRef { from: link.target, column }, tensor.row.clone());
        feeds.slots.push(Fed { read, want: TensorSpec { row, ..want }, stored, pixels });
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

    /// The link of each model input, in the order of the model.
    fn inputs(
        &mut self,
        node: &'a StageNode,
        model: &ModelNode,
        known: &KnownModel,
    ) -> Result<Vec<&'a Link>, Reported> {
        let (model, names) = (&model.name.value, || known.plan.input_names());
        let n = names().count();
        if let [(None, from)] = &node.upstreams[..] {
            if is_by_name(node, known) {
                let link = links(&node.links)?.first().copied().ok_or(Reported)?;
                let input = input(self.workflow, link)?;
                let missing: Vec<&str> =
                    names().filter(|name| input.gives.position(name).is_none()).collect();
                let Some(first) = missing.first() else { return Ok(vec![link; n]) };
                let (stage, giver) = (&node.name.value, input.described());
                let columns = list(input.gives.names());
                let (giver_name, column) = (&input.name, input.gives.names().next().unwrap_or_default());
                let takes = list(missing.iter().copied());
                let message = format!("stage `{stage}` takes {takes}, which {giver} does not give");
                let help = format!(
                    "call its arguments as the columns that they take: {columns}; or write inputs = {{ {first} = \"{giver_name}.{column}\", .. }}"
                );
                return self.cx.error(from.span, message).help(help).fail();
            }
            if n > 1 {
                let message = format!("model `{model}` has {n} inputs, but `from` names one stage");
                let help = format!("write inputs = {{ name = \"stage\", .. }}; inputs: {}", list(names()));
                return self.cx.error(from.span, message).help(help).fail();
            }
            return links(&node.links);
        }
        if node.upstreams.is_empty() {
            return Err(Reported);
        }
        let mut found = Ok(Vec::new());
        for name in node.upstreams.iter().filter_map(|(name, _)| name.as_ref()) {
            if !names().any(|n| n == name.value) {
                let message = format!("model `{model}` has no input `{}`", name.value);
                let help = suggestion("inputs", &name.value, names());
                found = self.cx.error(name.span, message).help(help).fail();
            }
        }
        for name in names() {
            let is_it =
                |(input, _): &(Option<Spanned<String>>, _)| input.as_ref().is_some_and(|i| i.value == name);
            match node.upstreams.iter().position(is_it).map(|at| node.links[at].as_ref()) {
                Some(Some(link)) => found.iter_mut().for_each(|found| found.push(link)),
                Some(None) => found = Err(Reported),
                None => {
                    let stage = &node.name.value;
                    let message = format!("stage `{stage}` does not feed input `{name}` of model `{model}`");
                    let help = format!("add it to `inputs`: {name} = \"stage\"");
                    found = self.cx.error(node.name.span, message).help(help).fail();
                }
            }
        }
        found
    }

    /// What the stage can have of the outputs of its model, and the others. `fed` are the inputs of the model.
    fn given(
        &self,
        model: &ModelNode,
        known: &KnownModel,
        draft: &BatchDraft,
        fed: &[TensorSpec],
        fixed: Option<usize>,
    ) -> (Vec<StageOutput>, Vec<UnreadableOutput>) {
        if known.plan.code.is_some() {
            let outputs = known.gives.iter().cloned();
            return (outputs.map(StageOutput::of_program).collect(), Vec::new());
        }
        let asked = draft.max_batch.as_ref().or(model.max_batch.as_ref()).map(|asked| asked.value);
        let is_single = fixed.map_or(asked == Some(1), |batch| batch == 1);
        let probed = self.probed(known, fed, fixed, is_single);
        let size_limit = probed.as_ref().ok().and_then(|found| found.size_limit.as_ref());
        let size_limit = size_limit.filter(|limit| !is_single || limit.runs > 1);
        let batches = ReaderBatches { fixed, is_single, size_limit };
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
        known: &KnownModel,
        fed: &[TensorSpec],
        batch: Option<usize>,
        is_single: bool,
    ) -> Result<ProbedModel, Option<String>> {
        if fed.is_empty() && known.plan.text_inputs.is_empty() {
            return Err(None);
        }
        let tensors = known.declared.iter().filter(|output| output.is_tensor());
        let outputs: Vec<String> = tensors.map(|output| output.name.clone()).collect();
        let is_alone = is_single && !known.declared.iter().any(|output| output.is_open(batch));
        let request = ProbeRequest { model: &known.plan, inputs: fed, outputs: &outputs, batch, is_alone };
        self.cx.host.probe(&request).ok_or(None)?.map_err(Some)
    }

    /// The only batch the model takes, if there is one.
    fn fixed_batch(&mut self, node: &StageNode, model: &ModelPlan) -> Result<Option<usize>, Reported> {
        let tensors = model.inputs.iter().map(|input| (&input.name, input.batch, input.to_string()));
        let texts = model.text_inputs.iter().map(|input| (&input.name, input.batch, input.to_string()));
        let mut inputs = tensors.chain(texts);
        let (first, batch, first_is) = inputs.next().ok_or(Reported)?;
        let Some((other, _, other_is)) = inputs.find(|(_, other, _)| *other != batch) else {
            return Ok(batch.fixed());
        };
        let Some(model) = node.batch().map(|batch| &batch.model) else { return Err(Reported) };
        let message = format!("the inputs of model `{}` have different batch dimensions", model.value);
        let label = format!("`{first}` is {first_is}, `{other}` is {other_is}");
        let help = "the first dimension of each input is the batch; make a constant of an input that is the same for all items, and export the model again";
        self.cx.error(model.span, message).label(label).help(help).fail()
    }

    /// The tensor as it lies in a slot.
    fn fits(
        &mut self,
        model: &str,
        want: &TensorSpec,
        link: &Link,
        ty: &ColumnType,
    ) -> Result<TensorSpec, Reported> {
        let give = ty.tensor().ok_or(Reported)?;
        let giver = self.workflow.name_of(link.target);
        let stage = link.stage().map(|stage| &self.workflow.stages[stage]);
        if give.fixed_row().is_none() {
            let output = &give.name;
            let message =
                format!("output `{output}` of stage `{giver}` has no fixed shape, so it cannot be fed on");
            let help = match stage.and_then(StageNode::batch) {
                Some(_) => "export the model with fixed dimensions other than the batch",
                None => "a function in Python takes tensors of any shape",
            };
            return self
                .cx
                .error(link.span, message)
                .label(format!("`{giver}` gives {give}"))
                .help(help)
                .fail();
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
            let input = &want.name;
            let message =
                format!("stage `{giver}` gives another {what} than input `{input}` of model `{model}` takes");
            let d = self.cx.error(link.span, message);
            d.label(format!("`{giver}` gives {give}, `{model}` takes {want}"));
            d.help.extend(advice);
            return d.fail();
        }
        // What lies in a slot.
        let lies = ty.stored().ok_or(Reported)?;
        let dtype = if give.dtype == want.dtype { lies.dtype } else { want.dtype };
        Ok(TensorSpec { name: want.name.clone(), batch: want.batch, dtype, ..lies.clone() })
    }
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

/// Whether values of this type are lists that hold pictures.
fn has_pictures(ty: &ColumnType) -> bool {
    match ty {
        ColumnType::List(Schema(columns)) => {
            columns.iter().any(|column| column.ty == ColumnType::Picture || has_pictures(&column.ty))
        }
        ColumnType::Optional(of) => has_pictures(of),
        _ => false,
    }
}

/// The columns of what is given, and of what else workers give.
fn columns(given: &[StageOutput], outputs: &[TensorSpec]) -> Vec<Column> {
    let column = |output: &TensorSpec, ty| Column { name: output.name.clone(), ty };
    let said = outputs[given.len()..].iter();
    let said = said.map(|output| column(output, ColumnType::Tensor(output.clone())));
    given.iter().map(|output| column(&output.read.tensor, output.column())).chain(said).collect()
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
