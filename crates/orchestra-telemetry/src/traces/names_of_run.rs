//! What spans say of a run beside numbers: its names, looked up once, and its clock. It makes no span.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::StringValue;
use orchestra_core::{DeviceId, SourceId, StageId};
use orchestra_runtime::trace::RunBegan;

use super::wall::Wall;

/// See the module. Texts are shared, so that a span costs no copy of them.
pub(super) struct RunNames {
    pub(super) run_id: StringValue,
    pub(super) workflow: StringValue,
    stages: Vec<StageNames>,
    devices: Vec<StringValue>,
    sources: Vec<(StringValue, StringValue)>,
    zero: Wall,
}

/// What is said of a stage.
pub(super) struct StageNames {
    pub(super) name: StringValue,
    pub(super) pipeline: StringValue,
    /// Of a batch stage.
    pub(super) model: Option<StringValue>,
    /// The loaders write its rows.
    pub(super) is_fed_by_loaders: bool,
    batch_sizes: Vec<usize>,
}

impl RunNames {
    pub(super) fn new(began: &RunBegan) -> Self {
        let plan = &began.plan;
        let pipelines: Vec<StringValue> = plan.pipelines.iter().map(|p| shared(&p.name)).collect();
        let stages = plan.stages.iter().map(|stage| {
            let infer = stage.batch();
            StageNames {
                name: shared(&stage.name),
                pipeline: pipelines[stage.pipeline.index()].clone(),
                model: infer.map(|i| shared(&plan.models[i.model.index()].name)),
                is_fed_by_loaders: infer.is_some() && stage.home.stage().is_none(),
                batch_sizes: infer.map(|i| i.batch_sizes.clone()).unwrap_or_default(),
            }
        });
        let source =
            |s: &orchestra_plan::SourcePlan| (shared(&s.name), pipelines[s.pipeline.index()].clone());
        Self {
            run_id: shared(&began.run_id),
            workflow: shared(&plan.name),
            stages: stages.collect(),
            devices: plan.devices.iter().map(|d| shared(&d.spec.to_string())).collect(),
            sources: plan.sources.iter().map(source).collect(),
            zero: began.zero.into(),
        }
    }

    pub(super) fn stage(&self, id: StageId) -> &StageNames {
        &self.stages[id.index()]
    }

    pub(super) fn device(&self, id: DeviceId) -> StringValue {
        self.devices[id.index()].clone()
    }

    pub(super) fn source(&self, id: SourceId) -> StringValue {
        self.sources[id.index()].0.clone()
    }

    pub(super) fn pipeline_of(&self, id: SourceId) -> StringValue {
        self.sources[id.index()].1.clone()
    }

    /// The time of day of a time of the run.
    pub(super) fn wall(&self, at: Duration) -> Wall {
        self.zero.after(at)
    }
}

impl StageNames {
    /// The batch size that so many rows are padded to, if there is one.
    pub(super) fn padded_size(&self, rows: usize) -> Option<usize> {
        self.batch_sizes.iter().copied().filter(|size| *size >= rows).min()
    }
}

fn shared(text: &str) -> StringValue {
    Arc::<str>::from(text).into()
}
