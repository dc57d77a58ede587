//! Workflow files: bytes to a plan or to diagnostics, and everything that is shown of either. It runs no plan.

use std::path::{Path, PathBuf};

use orchestra_core::{ImageSpec, StageId};
use orchestra_media::Preparer;
use orchestra_plan::{ColumnRef, FoldPlan, GraphView, Origin, Plan, PlanOptions, Shape, describe, plan};

use crate::diagnostics;
use crate::world::{FOLDER, World};

/// A picture of one gray pixel, for specs to be tried on.
const PIXEL: &[u8] =
    b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\x18\0\0\0\0\0\x04\0\0\0\
    \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x80\x80\x80\0";
/// Rows beyond this many bytes are not written: they would only be slow.
const MAX_ROW_BYTES: usize = 1 << 20;
/// Lines that change the options, see [`Setting`].
const MAX_SETTINGS: usize = 8;

/// A workflow file is planned or explained, whatever it says; never a panic.
///
/// Comments of the form `#: gpus 2`, `#: offline`, `#: blind`, `#: output DIR`, `#: devices A,B` and `#: set KEY=VALUE` choose the
/// machine and the options.
pub fn workflow_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (options, world) = settings(text);
    check(text, &options, &world);
}

/// Plans `text` in `world` and checks what comes of it.
pub(crate) fn check(text: &str, options: &PlanOptions, world: &World) {
    let file = Path::new(FOLDER).join("flow.toml");
    let (plan, diags) = plan(text, &file, options, world);
    diagnostics::check(&diags, plan.is_some());
    if let Some(plan) = plan {
        check_plan(&plan, options);
        show(&plan);
    }
}

fn settings(text: &str) -> (PlanOptions, World) {
    let mut options = PlanOptions::default();
    let mut world = World::with_gpus(0);
    for line in text.lines().filter_map(|l| l.strip_prefix("#: ")).take(MAX_SETTINGS) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "gpus" => world = World::with_gpus(rest.parse::<u8>().unwrap_or(1).min(9).into()),
            "blind" => world.machine = Err("nothing can be seen".into()),
            "offline" => options.offline = true,
            "output" => options.output = Some(PathBuf::from(rest)),
            "devices" => options.devices = Some(rest.split(',').map(str::to_owned).collect()),
            "set" => {
                let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
                options.set.push((key.to_owned(), value.to_owned()));
            }
            _ => {}
        }
    }
    (options, world)
}

/// Every id leads somewhere, everything has a size, and nothing is written outside the output folder.
fn check_plan(plan: &Plan, options: &PlanOptions) {
    assert!(plan.output.is_absolute() && plan.file.is_absolute());
    // A file may have commands alone.
    let has_items = !plan.pipelines.is_empty();
    assert!(has_items || !plan.tasks.tasks.is_empty());
    assert!(has_items != plan.sinks.is_empty() && has_items != plan.sources.is_empty());
    for sink in &plan.sinks {
        assert!(sink.path.starts_with(&plan.output) && sink.path != plan.output, "{}", sink.path.display());
        assert!(sink.pipeline.index() < plan.pipelines.len() && !sink.from.is_empty());
        let exists = |read: &ColumnRef| read.column < plan.gives(read.from).0.len();
        assert!(!sink.reads.is_empty() && sink.reads.iter().all(exists));
    }
    for (at, stage) in plan.stages.iter().enumerate() {
        let pipeline = &plan.pipelines[stage.pipeline.index()];
        assert!(pipeline.stages.iter().any(|s| s.index() == at) && pipeline.window > 0);
        let comes_before = |from: &Origin| match from {
            Origin::Source(source) => source.index() < plan.sources.len(),
            Origin::Stage(stage) => stage.index() < at,
        };
        assert!(
            !stage.from.is_empty() && stage.from.iter().all(comes_before),
            "a stage comes after what it reads"
        );
        // A join is added behind the stages of the file.
        let is_join = |home: StageId| plan.stages[home.index()].is_join();
        assert!(comes_before(&stage.home) || stage.home.stage().is_some_and(is_join));
        assert!(stage.reads.iter().all(|read| read.column < plan.gives(read.from).0.len()));
        match &stage.runs {
            Shape::Map(_) => {
                if let Some(spec) = stage.settings.get("spec") {
                    check_spec(&serde_json::from_value(spec.clone()).expect("a spec reads what it writes"));
                }
            }
            Shape::Batch(infer) => {
                assert_eq!(
                    stage.reads.len(),
                    plan.models[infer.model.index()].inputs.len() + infer.values.len()
                );
                assert!(infer.layout.total_bytes() > 0 && infer.max_batch > 0);
                assert!(!infer.workers.is_empty() || options.offline);
                assert!(infer.workers.iter().all(|w| w.count > 0 && w.device.index() < plan.devices.len()));
            }
            Shape::Fold(FoldPlan::Parts(_) | FoldPlan::Reduce(_)) => {}
            Shape::Fold(FoldPlan::Join { ways }) => {
                assert!(ways.len() > 1 && ways.iter().all(|way| comes_before(&way.home)));
            }
        }
    }
}

/// A spec that a plan let pass makes a row of any picture.
fn check_spec(spec: &ImageSpec) {
    let bytes = spec.tensor().row_bytes().expect("a planned row has a size");
    if bytes > MAX_ROW_BYTES {
        return;
    }
    let mut preparer = Preparer::new();
    preparer.decode(PIXEL, spec.max_pixels).expect("the smallest picture passes every limit");
    let written = preparer.write_row(spec, &mut vec![0; bytes]);
    assert!(written.is_ok(), "a plan let the spec {spec:?} pass: {written:?}");
}

fn show(plan: &Plan) {
    assert!(describe(plan).ends_with('\n'));
    let view = GraphView::new(plan);
    assert!(!view.to_mermaid().is_empty());
    assert!(serde_json::to_string(plan).is_ok() && serde_json::to_string(&view).is_ok());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_commands_alone_is_planned() {
        workflow_file(b"version = 1\n[tasks.a]\ncommand = \"true\"\ndevice = \"none\"\n");
    }

    #[test]
    fn the_settings_of_a_file_are_those_of_its_comments() {
        let (options, world) =
            settings("#: gpus 2\n#: offline\nversion = 1\n#: set a.b=c=d\n#: devices cpu,cpu\n");
        assert!(options.offline);
        assert_eq!(options.set, [("a.b".to_owned(), "c=d".to_owned())]);
        assert_eq!(options.devices, Some(vec!["cpu".to_owned(), "cpu".to_owned()]));
        assert_eq!(world.machine.map(|m| m.devices.len()), Ok(2));
    }
}
