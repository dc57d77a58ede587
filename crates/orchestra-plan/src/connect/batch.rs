//! What a batch stage is: what its model takes of a row, gives for it, and how often it runs.

use std::sync::Arc;

use orchestra_core::data::{Column, ColumnType, Schema};
use orchestra_core::iteration::LoopInput;
use orchestra_core::{
    Dim, InputConstant, Iteration, ModelId, PixelInput, Placement, ProbedModel, TensorSpec,
};

use super::constants::StageConstants;
use super::feeds::{FedInputs, ModelFeeds};
use super::iterated::IteratedModel;
use super::{Wiring, placed, stage_plan};
use crate::diagnostics::Reported;
use crate::host::ProbeRequest;
use crate::kind::BatchDraft;
use crate::nearest::toml_key;
use crate::outputs::{ReaderBatches, StageOutput, UnreadableOutput};
use crate::plan::{BatchPlan, ColumnRef, Shape, StagePlan};
use crate::rules::{largest, trim};
use crate::workflow::{Connected, KnownModel, Link, ModelNode, SlotTensors, StageNode};

/// What a batch stage takes.
struct BatchInputs<'k> {
    /// Those that the graph of the model holds.
    constants: Vec<InputConstant>,
    takes: FedInputs<'k>,
    fixed_batch: Option<usize>,
    feeds: ModelFeeds,
}

type FedOfLoop<'a> = (&'a [TensorSpec], &'a [Column], &'a [LoopInput], &'a [Option<PixelInput>]);

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
        let BatchInputs { constants, takes, fixed_batch, feeds } = self.batch_inputs(node, known, draft)?;
        let ModelFeeds { slots: fed, values, passthrough_columns, in_loop: loop_inputs } = feeds;
        let mut inputs: Vec<ColumnRef> = fed.iter().map(|fed| fed.read).collect();
        let placed = self.only_placement(inputs.iter().chain(&passthrough_columns));
        let trim = trim::trim(self.workflow, stage, (&inputs, &takes.tensors()), self.cx)?;
        let in_loop = loop_inputs.iter().map(|input| &input.tensor);
        let wants: Vec<TensorSpec> = fed.iter().map(|fed| &fed.want).chain(in_loop).cloned().collect();
        let mut tensors: Vec<TensorSpec> = fed.iter().map(|fed| fed.stored.clone()).collect();
        let is_loop = draft.iteration.is_some();
        // What is computed of a trimmed row depends on its picture.
        let fixes_open =
            |output: &str| trim.is_none() && (is_loop || self.feeds_a_model(stage, known, output));
        let (given, unreadable) =
            self.given((model, known, draft), (&wants, &constants), fixed_batch, &fixes_open);
        let mut outputs: Vec<TensorSpec> = given.iter().map(|output| output.read.tensor.clone()).collect();
        let pixels: Vec<Option<PixelInput>> = fed.into_iter().map(|fed| fed.pixels).collect();
        let fed = (&tensors[..], &values[..], &loop_inputs[..], &pixels[..]);
        let iteration = self.iteration(node, known, draft, fed, (&given, &mut outputs))?;
        if let Some((_, placed)) = trim {
            inputs.push(placed);
            tensors.push(Placement::tensor());
        }
        let largest = largest::of(self.workflow, stage, known, &given, &mut outputs);
        let gives = largest.map_or_else(|| columns(&given, &outputs), |largest| vec![largest]);
        let batch = BatchPlan {
            model: ModelId(index as u16), // tables are no more than ids
            passthrough_columns,
            constants,
            values,
            fixed_batch,
            wait: draft.wait,
            streams: model.streams(),
            priority: model.asked.priority(),
            recycle: model.asked.recycle,
            iteration,
            loop_inputs,
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

    /// What the model takes, and what feeds it.
    fn batch_inputs(
        &mut self,
        node: &'a StageNode,
        known: &'a KnownModel,
        draft: &BatchDraft,
    ) -> Result<BatchInputs<'a>, Reported> {
        let constants = StageConstants::of(self.constants(draft, &known.plan)?, draft, known);
        let first_round = self.first_round(&constants, draft, &known.plan)?;
        let takes = FedInputs::of(known, &constants.all);
        let fixed_batch = self.fixed_batch(node, &takes);
        let mut feeds = self.feeds(node, known, &takes)?;
        feeds.in_loop.extend(first_round);
        Ok(BatchInputs { constants: constants.in_graph(), takes, fixed_batch: fixed_batch?, feeds })
    }

    /// The loop of the stage, whose outputs are in the place of those of one round then. `fed` are the inputs of the model in slots, the values of a program,
    /// inputs of the loop, and what is made of pixels.
    fn iteration(
        &mut self,
        node: &StageNode,
        known: &KnownModel,
        draft: &BatchDraft,
        (tensors, values, loop_inputs, pixels): FedOfLoop<'_>,
        (given, outputs): (&[StageOutput], &mut Vec<TensorSpec>),
    ) -> Result<Option<Iteration>, Reported> {
        let Some(draft) = &draft.iteration else { return Ok(None) };
        let tensor = |tensor: &TensorSpec| column(tensor, ColumnType::Tensor(tensor.clone()));
        let values = values.iter().filter(|_| loop_inputs.is_empty()).cloned();
        let in_loop = loop_inputs.iter().map(|input| tensor(&input.tensor));
        let model = IteratedModel {
            stage: &node.name,
            known,
            inputs: tensors.iter().map(tensor).chain(values).chain(in_loop).collect(),
            outputs: columns(given, outputs),
            pixels,
            is_untried: given.iter().any(|given| given.is_untried),
        };
        let iteration = model.resolve(draft, loop_inputs.len(), self.cx)?;
        iteration.collect.iter().for_each(|output| outputs[*output].row.insert(0, Dim::Dynamic));
        outputs.push(Iteration::rounds_output());
        Ok(Some(iteration))
    }

    /// What the stage can have of the outputs of its model, and the others. `fed` are the inputs of the model.
    fn given(
        &self,
        (model, known, draft): (&ModelNode, &KnownModel, &BatchDraft),
        fed: (&[TensorSpec], &[InputConstant]),
        fixed: Option<usize>,
        fixes_open: &dyn Fn(&str) -> bool,
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
        let batches = ReaderBatches { fixed, is_single, size_limit, fixes_open: false };
        let batch = fixed.map_or(Dim::Dynamic, Dim::Fixed);
        let (mut given, mut unreadable) = (Vec::new(), Vec::new());
        for output in &known.declared {
            let probed = match &probed {
                Ok(found) => found.outputs.iter().find(|found| found.name == output.name).ok_or(None),
                Err(why) => Err(why.as_deref()),
            };
            let batches = ReaderBatches { fixes_open: fixes_open(&output.name), ..batches };
            match output.stage_output(batch, batches, probed, known.has_zip_map) {
                Ok(output) => given.push(output),
                Err(output) => unreadable.push(output),
            }
        }
        (given, unreadable)
    }

    /// Whether another stage feeds this output of the model to its own, which needs rows of one shape.
    fn feeds_a_model(&self, stage: usize, known: &KnownModel, output: &str) -> bool {
        let reads = |link: &Link| {
            let named = link.tensor.as_deref();
            link.stage() == Some(stage) && named.map_or(known.declared.len() == 1, |name| name == output)
        };
        let mut readers = self.workflow.stages.iter();
        readers.any(|reader| {
            let runs_model = reader.batch().is_some_and(|batch| batch.program.is_none());
            runs_model && reader.links.iter().flatten().any(reads)
        })
    }

    /// What a probe says of a model; an error without a reason where none is made.
    fn probed(
        &self,
        known: &KnownModel,
        (inputs, constants): (&[TensorSpec], &[InputConstant]),
        batch: Option<usize>,
        is_single: bool,
    ) -> Result<ProbedModel, Option<String>> {
        if inputs.is_empty() && known.plan.text_inputs.is_empty() {
            return Err(None);
        }
        let tensors = known.declared.iter().filter(|output| output.is_tensor());
        let outputs: Vec<String> = tensors.map(|output| output.name.clone()).collect();
        let is_alone = is_single && !known.declared.iter().any(|output| output.is_open(batch));
        let (model, outputs) = (&known.plan, &outputs[..]);
        let request = ProbeRequest { model, inputs, constants, outputs, batch, is_alone };
        self.cx.host.probe(&request).ok_or(None)?.map_err(Some)
    }

    /// The only batch the model takes, if there is one.
    fn fixed_batch(&mut self, node: &StageNode, takes: &FedInputs<'_>) -> Result<Option<usize>, Reported> {
        let tensors = takes.rows.iter().map(|(input, _)| (&input.name, input.batch, input.to_string()));
        let texts = takes.texts.iter().map(|input| (&input.name, input.batch, input.to_string()));
        let mut inputs = tensors.chain(texts);
        let (first, batch, first_is) = inputs.next().ok_or(Reported)?;
        let Some((other, other_batch, other_is)) = inputs.find(|(_, other, _)| *other != batch) else {
            return Ok(batch.fixed());
        };
        let constant = if other_batch == Dim::Dynamic { first } else { other };
        let Some(model) = node.batch().map(|batch| &batch.model) else { return Err(Reported) };
        let message = format!("the inputs of model `{}` have different batch dimensions", model.value);
        let label = format!("`{first}` is {first_is}, `{other}` is {other_is}");
        let help = format!(
            "an input that is the same for all items is a constant, such as inputs = {{ .., {} = 0 }}; export the model with one batch dimension for the others",
            toml_key(constant)
        );
        self.cx.error(model.span, message).label(label).help(help).fail()
    }
}

fn column(tensor: &TensorSpec, ty: ColumnType) -> Column {
    Column { name: tensor.name.clone(), ty }
}

/// The columns of what is given, and of what else workers give.
fn columns(given: &[StageOutput], outputs: &[TensorSpec]) -> Vec<Column> {
    let tensor = |output: &TensorSpec| column(output, ColumnType::Tensor(output.clone()));
    let of_model = given.iter().zip(outputs).map(|(given, output)| match given.column() {
        // A loop may collect it.
        ColumnType::Tensor(_) => tensor(output),
        ty => column(output, ty),
    });
    of_model.chain(outputs[given.len()..].iter().map(tensor)).collect()
}
