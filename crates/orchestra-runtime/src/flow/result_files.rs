//! The files of a run, in the order in which the journal counts them. It opens none.

use std::path::PathBuf;

use orchestra_core::StageId;
use orchestra_plan::{Plan, SourcePlan};
use orchestra_store::{FAILURE_RECORDS, FileIndex, OutputFolder};

/// [`FAILURE_RECORDS`] first, then the sinks, the stages that reduce, and those of these that stages read, in the order of the plan; relative where they
/// lie in the output folder.
pub(crate) fn result_files(plan: &Plan) -> Vec<PathBuf> {
    let sinks = plan.sinks.iter().map(|s| match (&s.part_files, s.path.strip_prefix(&plan.output)) {
        (Some(_), _) => OutputFolder::private_file(&format!("rows-{}", s.name)),
        (None, Ok(relative)) => relative.to_owned(),
        (None, Err(_)) => s.path.clone(),
    });
    let reduces = plan.reduces().map(|(stage, _)| &plan.stages[stage.index()].name);
    let reduces = reduces.map(|name| OutputFolder::private_file(&format!("fold-{name}")));
    let made = made_sources(plan).map(|(_, source)| made_file_name(source));
    std::iter::once(PathBuf::from(FAILURE_RECORDS)).chain(sinks).chain(reduces).chain(made).collect()
}

pub const FAILURES_FILE: FileIndex = FileIndex(0);

/// The file of the sink with this place in the plan.
pub fn sink_file(sink: usize) -> FileIndex {
    FileIndex(1 + sink)
}

/// The sources whose items are the rows of a stage that reduces, with that stage.
pub fn made_sources(plan: &Plan) -> impl Iterator<Item = (StageId, &SourcePlan)> {
    plan.sources.iter().filter_map(|source| Some((source.reduced?, source)))
}

/// The file of the items of such a source, relative to the output folder.
pub fn made_file_name(source: &SourcePlan) -> PathBuf {
    OutputFolder::private_file(&format!("made-{}", source.name))
}

/// The file that the rows of a stage go to, where stages read them.
pub fn made_file(plan: &Plan, stage: StageId) -> Option<FileIndex> {
    let place = made_sources(plan).position(|(of, _)| of == stage)?;
    Some(FileIndex(1 + plan.sinks.len() + plan.reduces().count() + place))
}

/// The file of contributions of a stage that reduces.
pub fn reduce_file(plan: &Plan, stage: StageId) -> FileIndex {
    let before = plan.reduces().take_while(|(id, _)| *id != stage).count();
    FileIndex(1 + plan.sinks.len() + before)
}
