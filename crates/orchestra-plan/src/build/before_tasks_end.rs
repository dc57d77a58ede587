//! The plan of a file whose sources, models, stages and sinks use values of tasks that have not ended: of the tasks alone.

use std::path::PathBuf;

use super::Parts;
use super::assemble::Assembler;
use crate::diagnostics::Diagnostics;
use crate::graph::Graph;
use crate::plan::Plan;
use crate::raw::RawWorkflow;
use crate::tasks::Late;

/// The tasks of `parts`, and what is planned later.
pub(super) fn plan(parts: Parts, late: &Late, file: PathBuf, diags: &mut Diagnostics) -> Option<Plan> {
    let mut assembler = Assembler::new(&parts, file.clone(), Vec::new(), diags);
    assembler.own_limits()?;
    let pipelines = assembler.pipeline_names();
    let late = late.plan(&parts.tasks, pipelines);
    let plan = Assembler::new(&parts.tasks_alone(), file, Vec::new(), diags).assemble()?;
    Some(Plan { late: Some(late), ..plan })
}

impl Parts {
    /// Without sources, models, stages and sinks.
    fn tasks_alone(self) -> Self {
        let graph = Graph {
            reads: Vec::new(),
            sinks: Vec::new(),
            n_stages: 0,
            n_sources: 0,
            n_models: 0,
            n_ordered: 0,
        };
        let (sources, models, stages, sinks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self {
            workflow: RawWorkflow { sources, models, stages, sinks, pipelines: Vec::new(), ..self.workflow },
            listings: Vec::new(),
            sources: Vec::new(),
            models: Vec::new(),
            graph,
            wired: Vec::new(),
            records: Vec::new(),
            sink_paths: Vec::new(),
            devices: Vec::new(),
            workers: Vec::new(),
            ..self
        }
    }
}
