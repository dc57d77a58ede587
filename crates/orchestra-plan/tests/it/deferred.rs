//! Sources, models, stages and sinks that use values of tasks, and tasks that come after sinks.

use crate::common::FakeHost;
use orchestra_core::tasks::MetricValues;
use orchestra_plan::{Plan, PlanOptions};
use orchestra_testkit::workflow_file::WorkflowFile;

fn file() -> String {
    WorkflowFile::new()
        .table("tasks.prepare", "command = \"split {output}\"")
        .table(
            "tasks.train",
            "command = 'train {tasks.prepare.output} {lr} {output}'\nmatrix = { lr = [0.1, 0.01] }",
        )
        .table("tasks.apart", "command = 'true'")
        .table("tasks.upload", "command = ['cp', '{sinks.results.path}', 'bucket']\nafter = \"sinks.failed\"")
        .table("tasks.tell", "command = 'mail'\nafter = 'upload'")
        .source("scans", "images", "paths = ['{tasks.prepare.output}/*.{png,jpg}', 'more']")
        .table(
            "models.digits",
            "path = \"{tasks.train[lr=0.1].output}/digits.onnx\"\nlabels = \"labels10.txt\"",
        )
        .gray("small", "scans", [32, 32], "")
        .infer("run", "small", "digits")
        .stage("digit", "classify", "run", "")
        .results("digit")
        .sink("failed", "csv", "failures")
        .to_string()
}

fn after(done: &[&str]) -> PlanOptions {
    let tasks_done = Some(done.iter().map(|id| (*id).to_owned()).collect());
    PlanOptions { tasks_done, ..PlanOptions::default() }
}

fn plan(text: &str, done: &[&str]) -> Plan {
    FakeHost::with_cores(4).good_with(text, &after(done))
}

fn errors(text: &str, done: &[&str]) -> Vec<String> {
    FakeHost::with_cores(4).errors(text, &after(done))
}

#[test]
fn what_uses_values_of_tasks_is_planned_when_these_are_done_and_tasks_are_planned_at_once() {
    for done in [&[][..], &["prepare"], &["prepare", "train[lr=0.01]", "apart"]] {
        let early = plan(&file(), done);
        let deferred = early.deferred.unwrap();
        assert_eq!(deferred.tasks, ["prepare", "train[lr=0.1]"]);
        assert_eq!(deferred.tables, ["model `digits`", "source `scans`"]);
        assert_eq!(deferred.pipelines, ["scans"]);
        assert_eq!((early.tasks.tasks.len(), early.pipelines.len(), early.sinks.len()), (6, 0, 0));
        assert!(early.fingerprint.is_empty() && early.devices.is_empty());
    }
    let all = plan(&file(), &["prepare", "train[lr=0.1]"]);
    assert!(all.deferred.is_none());
    assert_eq!((all.tasks.tasks.len(), all.pipelines.len(), all.sinks.len()), (6, 1, 2));
    let read: Vec<&String> = all.fingerprint.iter().map(|(part, _)| part).collect();
    assert!(read.contains(&&"the output of `prepare` for source `scans`".to_owned()), "{read:?}");
    assert!(!read.iter().any(|part| part.contains("`train`")), "the contents of models count: {read:?}");
    let listing = format!("{:?}", all.sources[0].listing);
    assert!(
        listing.contains("\"out/tasks/prepare/output/*.{png,jpg}\""),
        "relative, so that a moved folder goes on: {listing}"
    );
    assert!(all.models[0].path.ends_with("out/tasks/train/lr=0.1/output/digits.onnx"));
}

#[test]
fn a_task_comes_after_the_sinks_that_it_names_and_those_whose_paths_it_uses() {
    for done in [&[][..], &["prepare", "train[lr=0.1]"]] {
        let plan = plan(&file(), done);
        let upload = plan.tasks.tasks.iter().find(|task| task.id == "upload").unwrap();
        assert_eq!(upload.command, ["cp", "/flows/out/results.jsonl", "bucket"]);
        assert_eq!(upload.after_sinks, ["failed", "results"]);
        let tell = plan.tasks.tasks.last().unwrap();
        assert_eq!((&tell.after[..], tell.after_sinks.len()), (&[4][..], 0));
    }
}

#[test]
fn folders_with_characters_of_patterns_in_their_names_are_no_patterns() {
    let options = PlanOptions { output: Some("/o[1]*".into()), ..after(&["prepare", "train[lr=0.1]"]) };
    let plan = FakeHost::with_cores(1).good_with(&file(), &options);
    let listing = format!("{:?}", plan.sources[0].listing);
    assert!(listing.contains(r"/o\\[1\\]\\*/tasks/prepare/output/*.{png,jpg}"), "{listing}");
    assert!(plan.models[0].path.starts_with("/o[1]*"));
}

#[test]
fn all_that_can_be_known_early_is_checked_early() {
    let with = |from: &str, to: &str| {
        assert!(file().contains(from), "{from}");
        let mut errors = errors(&file().replace(from, to), &[]);
        assert_eq!(errors.len(), 1, "{to}: {errors:#?}");
        errors.remove(0)
    };
    let cases = [
        ("{tasks.prepare.output}/*", "{tasks.prepair.output}/*", "there is no task `prepair`"),
        ("{tasks.train[lr=0.1].output}/d", "{tasks.train.output}/d", "`train` is 2 tasks, and each has"),
        ("{tasks.train[lr=0.1].output}/d", "{tasks.train[lr=3].output}/d", "there is no task `train[lr=3]`"),
        ("{tasks.prepare.output}/*", "{tasks.prepare.outputs}/*", "tasks have no value `outputs`"),
        ("{sinks.results.path}", "{sinks.result.path}", "there is no sink `result`"),
        ("{sinks.results.path}", "{sinks.results.file}", "sinks have no value `file`"),
        ("sinks.failed\"", "sinks.fails\"", "there is no sink `fails`"),
        ("size = [32, 32]", "size = [32, 32]\nsizes = 1", "stage `small` has no key `sizes`"),
        ("from = \"run\"", "from = \"ran\"", "stage `digit` reads from `ran`"),
        ("labels = \"labels10.txt\"", "label = 1", "model `digits` has no key `label`"),
        ("model = \"digits\"", "model = \"digit\"", "stage `run` uses model `digit`"),
        (
            "[tasks.apart]",
            "[limits]\nitem_timeout = \"{tasks.prepare.output}\"\n[tasks.apart]",
            "`item_timeout` cannot use values of tasks",
        ),
        (
            "command = \"split {output}\"",
            "command = \"split {output}\"\nafter = \"sinks.results\"",
            "task `prepare` comes after sink `results`, so no source, model, stage or sink can use its values",
        ),
        (
            "[tasks.prepare]\ncommand = \"split {output}\"",
            "[tasks.first]\ncommand = \"cat {sinks.failed.path}\"\n[tasks.prepare]\ncommand = \"split {output}\"\nafter = \"first\"",
            "task `prepare` comes after task `first`, which comes after sink `failed`",
        ),
    ];
    for (from, to, expected) in cases {
        let said = with(from, to);
        assert!(said.starts_with(expected), "{said}");
    }
}

#[test]
fn what_is_planned_later_has_its_errors_then_and_the_rest_has_them_at_once() {
    let file = file().replace("/digits.onnx", "/photo.onnx");
    assert_eq!(plan(&file, &[]).deferred.unwrap().tasks.len(), 2);
    let said = errors(&file, &["prepare", "train[lr=0.1]"]);
    assert!(said.len() == 1 && said[0].contains("is no ONNX model"), "{said:?}");
    // A model that no task makes is read at once, and so is what it is fed with.
    let file = self::file().replace("{tasks.train[lr=0.1].output}/digits.onnx", "two.onnx");
    let said = errors(&file, &[]);
    assert_eq!(said, ["model `digits` has 2 inputs, but `from` names one stage"]);
}

#[test]
fn the_best_of_a_table_is_used_when_one_of_its_tasks_is_done() {
    let text = file().replace("{tasks.train[lr=0.1].output}", "{tasks.train.best.output}").replace(
        "[tasks.train]\n",
        "[tasks.train]\nmetrics = [\"loss\"]\nbest = { metric = \"loss\", goal = \"min\" }\n",
    );
    let early = plan(&text, &["prepare"]).deferred.unwrap();
    assert_eq!(
        (&early.tasks[..], &early.best[..]),
        (&["prepare".to_owned()][..], &["tasks.train.best".to_owned()][..])
    );
    assert!(early.in_words().contains("values of `prepare`, `tasks.train.best`"), "{}", early.in_words());
    let all = plan(&text, &["prepare", "train[lr=0.01]"]);
    assert!(all.deferred.is_none() && all.models[0].path.ends_with("out/.orchestra/best/train/digits.onnx"));
}

#[test]
fn metrics_and_values_of_the_best_stand_in_tables_of_items_once_their_tasks_are_done() {
    let text = WorkflowFile::new()
        .table("tasks.count", "command = 'count'\nmetrics = ['n', 'val/share']")
        .table("tasks.train", "command = 'train {lr}'\nmatrix = { lr = ['a', 'b'] }\nmetrics = 'loss'")
        .table("best.all", "of = 'train'\nmetric = 'loss'\ngoal = 'min'\nvalue = 'best'")
        .source("numbers", "range", "stop = '{tasks.count.n}'")
        .stage("large", "filter", "numbers", "keep = 'n > {tasks.count.val/share} and n > {best.all.loss}'")
        .sink("results", "jsonl", "large")
        .sink("more", "jsonl", "large")
        .to_string()
        + "path = 'of-{best.all.lr}.jsonl'\n";
    let early = plan(&text, &["count"]).deferred.unwrap();
    assert_eq!(
        (&early.tasks[..], &early.best[..]),
        (&["count".to_owned()][..], &["best.all".to_owned()][..])
    );
    let values = |of: &[f64]| {
        let mut values = MetricValues::NONE;
        of.iter().for_each(|value| values.add(*value));
        values
    };
    let mut host = FakeHost::with_cores(4);
    let done = after(&["count", "train[lr=b]"]);
    assert_eq!(
        host.errors(&text, &done).first().map(|said| said.contains("`{tasks.count.n}` has no value")),
        Some(true)
    );
    let count = [("n", values(&[7.0])), ("val/share", values(&[0.5]))];
    let count = count.map(|(name, values)| (name.to_owned(), values)).into();
    host.results.metrics.insert("count".into(), count);
    host.results.metrics.insert("train[lr=b]".into(), [("loss".to_owned(), values(&[1e-9, 3.0]))].into());
    host.results.best.insert("best.all".into(), "tasks/train/lr=b".into());
    let plan = host.good_with(&text, &done);
    let written = format!("{plan:?}");
    for part in ["n > 0.5 and n > 0.000000001", "of-b.jsonl"] {
        assert!(written.contains(part), "{part}: {written}");
    }
}
