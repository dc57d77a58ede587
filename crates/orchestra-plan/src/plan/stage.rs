//! A stage of a plan: what it reads and gives, and which of the three shapes it runs as.

use std::sync::Arc;

use orchestra_core::data::Schema;
use orchestra_core::shapes::{FanOut, Fold, Map, Reduce};
use orchestra_core::{PipelineId, StageId};
use serde::Serialize;
use serde_json::Value as Json;

use super::{BatchPlan, ColumnRef, Origin};

#[derive(Debug, Clone, Serialize)]
pub struct StagePlan {
    pub name: String,
    /// The graph it belongs to.
    pub pipeline: PipelineId,
    /// As `kind = ".."` names it.
    pub kind: String,
    /// What it reads from, in the order of the file, each once.
    pub from: Vec<Origin>,
    /// The columns that it takes, in the order in which it takes them.
    pub reads: Vec<ColumnRef>,
    pub gives: Schema,
    /// Where its rows come from: the source, or the stage that runs in workers or folds, whose rows it is reached by.
    pub home: Origin,
    /// The stages whose parts its rows are, outermost first.
    #[serde(skip)]
    pub enclosing_splits: Vec<StageId>,
    /// What decides about its results. An object.
    pub settings: Json,
    /// Its settings in a few words, one line each.
    #[serde(skip)]
    pub details: Vec<String>,
    /// The same in a line.
    #[serde(skip)]
    pub about: String,
    pub runs: Shape,
}

#[derive(Debug, Clone, Serialize)]
#[serde(tag = "shape", rename_all = "lowercase")]
pub enum Shape {
    /// Rows to rows, in the thread that made the row.
    Map(#[serde(skip)] Arc<dyn Map>),
    /// Batches of rows, in worker processes.
    Batch(Box<BatchPlan>),
    /// Several rows of one token, or of all items, to one row.
    Fold(FoldPlan),
}

/// What a fold brings together.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "of", rename_all = "lowercase")]
pub enum FoldPlan {
    /// The parts of a token, to a row of the kind.
    Parts(#[serde(skip)] Arc<dyn Fold>),
    /// The rows of a token that come by several ways. It gives no columns of its own; it carries those that are read behind it.
    #[serde(rename = "inputs")]
    Join {
        /// At least two.
        #[serde(rename = "inputs")]
        ways: Vec<JoinWay>,
    },
    /// The rows of all items of its pipeline. What it gives is there once all of these have ended.
    #[serde(rename = "run")]
    Reduce(#[serde(skip)] Arc<dyn Reduce>),
}

/// A way by which rows reach a join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct JoinWay {
    pub home: Origin,
    /// The stages of that way which are read: the home, or maps that its rows go through.
    pub from: Vec<Origin>,
    /// The columns that stages behind the join read of it.
    pub reads: Vec<ColumnRef>,
}

impl StagePlan {
    /// Whether the planner added it, to bring rows together that a stage or sink reads.
    pub fn is_join(&self) -> bool {
        matches!(self.runs, Shape::Fold(FoldPlan::Join { .. }))
    }

    /// The columns that it carries along for stages behind it.
    pub fn passthrough_columns(&self) -> impl Iterator<Item = &ColumnRef> {
        let (of_batch, ways): (&[ColumnRef], &[JoinWay]) = match &self.runs {
            Shape::Batch(batch) => (&batch.passthrough_columns[..], &[][..]),
            Shape::Fold(FoldPlan::Join { ways }) => (&[][..], &ways[..]),
            Shape::Fold(FoldPlan::Parts(_) | FoldPlan::Reduce(_)) | Shape::Map(_) => (&[][..], &[][..]),
        };
        of_batch.iter().chain(ways.iter().flat_map(|way| &way.reads))
    }

    /// How many rows it makes of one.
    pub fn fan(&self) -> FanOut {
        match &self.runs {
            Shape::Map(map) => map.fan(),
            Shape::Batch(batch) if batch.drops => FanOut::AtMostOne,
            Shape::Batch(_) | Shape::Fold(_) => FanOut::One,
        }
    }

    /// What it makes of the rows of all items, if it reduces them.
    pub fn reduce(&self) -> Option<&Arc<dyn Reduce>> {
        match &self.runs {
            Shape::Fold(FoldPlan::Reduce(reduce)) => Some(reduce),
            _ => None,
        }
    }

    /// The batches, if it runs in workers.
    pub fn batch(&self) -> Option<&BatchPlan> {
        match &self.runs {
            Shape::Batch(batch) => Some(batch),
            Shape::Map(_) | Shape::Fold(_) => None,
        }
    }

    pub(crate) fn batch_mut(&mut self) -> Option<&mut BatchPlan> {
        match &mut self.runs {
            Shape::Batch(batch) => Some(batch),
            Shape::Map(_) | Shape::Fold(_) => None,
        }
    }
}
