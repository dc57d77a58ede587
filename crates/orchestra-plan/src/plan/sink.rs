//! A sink of a plan: where its records go, and how many an item has there.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use orchestra_core::shapes::{Encoder, FanOut};
use orchestra_core::{PipelineId, ScriptProgram, SourceId};
use orchestra_store::ObjectOutput;
use serde::{Deserialize, Serialize};

use super::{ColumnRef, Origin, Plan, SourcePlan, StagePlan};
use crate::part_names::PartFilesPlan;

/// How many records of a sink an item has that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordsPerItem {
    One,
    /// None where a stage dropped its row.
    AtMostOne,
    /// One for each of its parts.
    Any,
    /// One for an item that has failed, and none for one that is done.
    Failed,
    /// Records are of the whole run, not of items.
    OfRun,
}

impl Plan {
    /// How many records of a sink an item has that is done.
    pub fn records_of(&self, sink: &SinkPlan) -> RecordsPerItem {
        if sink.is_of_failures {
            return RecordsPerItem::Failed;
        }
        let stage = |origin: Origin| origin.stage().map(|stage| &self.stages[stage.index()]);
        let ends: Vec<&StagePlan> = sink.from.iter().copied().filter_map(stage).collect();
        if ends.iter().any(|stage| stage.reduce().is_some()) {
            return RecordsPerItem::OfRun;
        }
        if ends.iter().any(|stage| !stage.enclosing_splits.is_empty()) {
            return RecordsPerItem::Any;
        }
        let before = sink.from.iter().flat_map(|from| self.ancestors(*from)).filter_map(stage);
        let drops = |stage: &StagePlan| stage.fan() == FanOut::AtMostOne && stage.enclosing_splits.is_empty();
        if before.into_iter().any(drops) { RecordsPerItem::AtMostOne } else { RecordsPerItem::One }
    }

    /// The sources of whose items a sink has records.
    pub fn sources_of<'a>(&'a self, sink: &'a SinkPlan) -> impl Iterator<Item = &'a SourcePlan> {
        let before: BTreeSet<Origin> = sink.from.iter().flat_map(|from| self.ancestors(*from)).collect();
        (0..).map(SourceId).zip(&self.sources).filter_map(move |(id, source)| {
            (sink.is_of_failures || before.contains(&Origin::Source(id))).then_some(source)
        })
    }
}

/// Where records go.
#[derive(Debug, Clone, Serialize)]
pub struct SinkPlan {
    pub name: String,
    /// The graph it belongs to.
    pub pipeline: PipelineId,
    /// As `kind = ".."` names it.
    pub kind: String,
    /// The stages whose results are written; empty for the failures of the run.
    pub from: Vec<Origin>,
    /// It writes the failures of all pipelines.
    pub is_of_failures: bool,
    /// The columns of a record, in order.
    pub reads: Vec<ColumnRef>,
    /// What records call them.
    pub columns: Vec<String>,
    /// Whose rows reach it, as [`StagePlan::home`]; `None`: failures, which are no rows.
    pub home: Option<Origin>,
    /// Makes the records.
    #[serde(skip)]
    pub encoder: Arc<dyn Encoder>,
    /// The file, absolute; of records that are files of their own, the index of them; of part files, a glob that they fit.
    pub path: PathBuf,
    /// Where each record is a file of its own: where they lie, and how they are called. With `part_files`, they wait in these for a store.
    pub files: Option<FilesPlan>,
    /// Where many records make a file: how those are called.
    pub part_files: Option<PartFilesPlan>,
    /// Where the part files go that are whole: they lie in the output folder no longer than it takes.
    pub bucket: Option<BucketPlan>,
    /// What takes the part files that are whole, in place of a bucket.
    #[serde(skip)]
    pub script: Option<ScriptProgram>,
    /// Records in the order of the source.
    pub ordered: bool,
    /// Records go back to those who asked for their items, and none to a file.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub replies: bool,
}

/// A prefix of a store.
#[derive(Debug, Clone, Serialize)]
pub struct BucketPlan {
    /// What the URLs of all objects begin with, up to a slash.
    pub url: String,
    /// What writes there.
    #[serde(skip)]
    pub store: Arc<dyn ObjectOutput>,
}

impl SinkPlan {
    /// What becomes of its records, for people.
    pub fn place_in_words(&self) -> String {
        let place = self.place();
        let handed = if self.script.is_some() { "handed to " } else { "" };
        format!("{handed}{}", place.display())
    }

    /// Where its records are, for people: a path, or a URL.
    pub fn place(&self) -> PathBuf {
        match &self.bucket {
            None if self.replies => "the one who asked".into(),
            None if let Some(script) = &self.script => script.script.clone(),
            Some(bucket) => match &self.files {
                Some(files) => format!("{}*.{}", bucket.url, files.extension).into(),
                None => {
                    let name = self.path.file_name().map(|name| name.to_string_lossy());
                    format!("{}{}", bucket.url, name.unwrap_or_default()).into()
                }
            },
            None => self.path.clone(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FilesPlan {
    /// The folder, relative to the output folder.
    pub folder: PathBuf,
    /// What their names end with, without the dot.
    pub extension: String,
    /// Whether the names of items may repeat, so that the number of the item becomes a part of the name.
    pub numbered: bool,
}
