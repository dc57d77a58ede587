//! Leaves out what nobody reads of the outputs of models, and says what is wrong with those that are read. It runs nothing.

use orchestra_core::{SizeLimit, StageId};

use super::RecordConnected;
use crate::diagnostics::{Diagnostics, Span};
use crate::models::Model;
use crate::outputs::{StageOutput, Standing};
use crate::plan::{ColumnRef, Origin};
use crate::raw::RawWorkflow;
use crate::wiring::Wired;

/// The stages of a plan and what is written of them.
pub(super) struct ReadOutputs<'a> {
    pub workflow: &'a RawWorkflow,
    pub models: &'a [Option<Model>],
    /// Stages behind that many are unused.
    pub n_stages: usize,
    pub wired: &'a mut [Option<Wired>],
    pub records: &'a mut [Option<RecordConnected>],
}

impl ReadOutputs<'_> {
    /// Each stage with a model file keeps the outputs that are read; an unused one all of them.
    pub fn keep(mut self, diags: &mut Diagnostics) {
        for stage in 0..self.wired.len() {
            let from = Origin::Stage(StageId(stage as u16)); // tables are no more than ids
            let Some(kept) = self.kept(stage, from) else { continue };
            if stage < self.n_stages {
                self.drop_others(stage, &kept);
                let place = |column: usize| kept[..column].iter().filter(|kept| **kept).count();
                for read in self.reads().filter(|read| read.from == from) {
                    read.column = place(read.column);
                }
            }
            self.report(stage, diags);
        }
    }

    /// Per column of a stage with a model file whether it is read; `None` for other stages.
    fn kept(&mut self, stage: usize, from: Origin) -> Option<Vec<bool>> {
        let Some(Wired::Batch { model, given, gives, iteration, .. }) = &self.wired[stage] else {
            return None;
        };
        self.models[*model].as_ref().filter(|model| model.plan.code.is_none())?;
        // Of a loop a column says the rounds of each row, and the others are fed.
        let (n_columns, n_given) = (gives.0.len(), given.len());
        let fed = iteration.iter().flat_map(|of| {
            let until = of.until.iter().map(|until| until.output);
            of.feed.iter().map(|feed| feed.output).chain(until)
        });
        let mut kept: Vec<bool> = (0..n_columns).map(|column| column >= n_given).collect();
        fed.for_each(|column| kept[column] = true);
        for read in self.reads().filter(|read| read.from == from) {
            if let Some(kept) = kept.get_mut(read.column) {
                *kept = true;
            }
        }
        // A batch that gives nothing cannot be told from one that is missing.
        if let (true, Some(first)) = (kept.iter().all(|kept| !kept), kept.first_mut()) {
            *first = true;
        }
        Some(kept)
    }

    fn drop_others(&mut self, stage: usize, kept: &[bool]) {
        let Some(Wired::Batch { given, outputs, gives, iteration, .. }) = &mut self.wired[stage] else {
            return;
        };
        let place = |column: usize| kept[..column].iter().filter(|kept| **kept).count();
        if let Some(iteration) = iteration {
            iteration.feed.iter_mut().for_each(|feed| feed.output = place(feed.output));
            iteration.until.iter_mut().for_each(|until| until.output = place(until.output));
        }
        fn retain<T>(of: &mut Vec<T>, kept: &[bool]) {
            let mut kept = kept.iter();
            of.retain(|_| kept.next() == Some(&true));
        }
        retain(given, kept);
        retain(outputs, kept);
        retain(&mut gives.0, kept);
    }

    fn reads(&mut self) -> impl Iterator<Item = &mut ColumnRef> {
        fn of_stage(wired: &mut Wired) -> impl Iterator<Item = &mut ColumnRef> {
            match wired {
                Wired::Batch { inputs, placed, .. } | Wired::Stage { reads: inputs, placed, .. } => {
                    inputs.iter_mut().chain(placed)
                }
            }
        }
        let of_stages = self.wired.iter_mut().flatten().flat_map(of_stage);
        of_stages.chain(self.records.iter_mut().flatten().flat_map(|record| &mut record.reads))
    }

    fn report(&self, stage: usize, diags: &mut Diagnostics) {
        let Some(Wired::Batch { model, given, fixed_batch, .. }) = &self.wired[stage] else {
            return;
        };
        let (raw, model) = (&self.workflow.stages[stage], &self.workflow.models[*model]);
        let span =
            raw.batch().and_then(|batch| batch.model.as_ref()).map_or(raw.name.span, |model| model.span);
        let reported =
            Reported { stage: &raw.name.value, model: &model.name.value, span, fixed: *fixed_batch };
        let size_limit = given.iter().find_map(|output| match &output.standing {
            Standing::SizeLimit { limit, .. } => Some(limit),
            _ => None,
        });
        match size_limit {
            Some(limit) => reported.report_size_limit(limit, given, diags),
            None => given.iter().for_each(|output| reported.report(output, diags)),
        }
    }
}

/// A stage that reads an output, for reports.
struct Reported<'a> {
    stage: &'a str,
    model: &'a str,
    span: Span,
    fixed: Option<usize>,
}

impl Reported<'_> {
    fn report(&self, output: &StageOutput, diags: &mut Diagnostics) {
        let name = format!("output `{}` of model `{}`", output.read.tensor.name, self.model);
        let alone = match self.fixed {
            None => format!("write `batch = {{ max = 1 }}` in stage `{}`", self.stage),
            Some(_) => "export the model for batches of 1".to_owned(),
        };
        match &output.standing {
            Standing::Known | Standing::SizeLimit { .. } => {}
            Standing::NoRows(why) => {
                let several = self.fixed.map(|n| format!("; where {}", several_rows(n))).unwrap_or_default();
                diags.error(self.span, format!("{name} has no row for each item: {why}")).help(format!(
                    "{alone}, with which all of it belongs to one item{several}; or read other outputs"
                ));
            }
            Standing::Unsteady => {
                diags
                    .warning(self.span, format!("{name} is another one at each run of the same batch"))
                    .label("as in models that draw random numbers, or were exported while they were trained")
                    .help(format!(
                        "whether items change each other cannot be found out then: export the model for inference, or {alone}"
                    ));
            }
            Standing::UnsteadyAlone => {
                diags
                    .warning(self.span, format!("{name} is another one at each run of the same item"))
                    .label("as in models that draw random numbers, or were exported while they were trained")
                    .help("export the model for inference: until then no two runs write the same records");
            }
            Standing::Unconfirmed(why) => {
                let tried = match why {
                    None => "`orchestra plan` runs the model and finds out".to_owned(),
                    Some(why) => format!("the model could not be tried: {why}"),
                };
                diags
                    .warning(self.span, format!("it is not confirmed that {name} has a row for each item"))
                    .label(format!("declared {}, read as {}", output.declared, output.read.tensor))
                    .help(format!("{tried}; each batch is compared, and where it has none, {alone}"));
            }
        }
    }

    /// The model would fail with batches that the stage may make, whatever their items hold.
    fn report_size_limit(&self, limit: &SizeLimit, given: &[StageOutput], diags: &mut Diagnostics) {
        let SizeLimit { runs, fails, error } = limit;
        let has_rows =
            given.iter().all(|output| matches!(output.standing, Standing::SizeLimit { has_rows: true, .. }));
        let help = match (runs, has_rows) {
            (1, _) => format!("write `batch = {{ max = 1 }}` in stage `{}`", self.stage),
            (_, true) => {
                format!(
                    "export the model with its batch fixed at {runs}: smaller batches of such models are padded"
                )
            }
            (_, false) => format!("where {}", several_rows(*runs)),
        };
        diags
            .error(
                self.span,
                format!("model `{}` runs batches of {runs} and fails with batches of {fails}", self.model),
            )
            .label(error)
            .help(format!("{help}; or export it so that each of its nodes takes any batch"));
    }
}

/// What to do about a model that takes several rows for one item, such as the frames of a clip.
fn several_rows(n: usize) -> String {
    format!(
        "{n} rows make one item, export the model with inputs of `[batch, {n}, ..]`, and feed it items of {n} rows"
    )
}
