//! `[tasks.*]`: what a file of commands becomes, and what is said of wrong ones.

use std::path::{Path, PathBuf};

use crate::common::FakeHost;
use orchestra_core::tasks::{CurveValue, Goal, Gpus, Objective, WHOLE};
use orchestra_plan::{BestOf, PlanOptions, TaskMetric, TaskPlan, TasksPlan};

const SWEEP: &str = r#"version = 1
[tasks.prepare]
command = "split '{{x}}' {output} && awk '{print $1}' ${HOME:-/}"
device = "none"
outputs = ["{output}/train.npy"]

[tasks.train]
command = ["python", "train.py", "--lr", "{lr}", "--seed={seed}", 3]
matrix = { lr = [0.1, 1e-3], seed = [1, 2] }
for_each = "pairs.csv"
inputs = "{tasks.prepare.output}/train.npy"
env = { NAME = "{a}-{b}", DATA = "{tasks.prepare.output}" }
retries = { out_of_memory = 2, pause = "3s" }
cwd = "code"

[tasks.score]
command = "score {tasks.train[lr={lr},seed=1,a=x,b=true].output} {row} > {tasks.train.folder}/{row}"
for_each = "rows.jsonl"
after = "prepare"
"#;

fn task<'a>(tasks: &'a TasksPlan, id: &str) -> &'a TaskPlan {
    let ids = || tasks.tasks.iter().map(|task| &task.id).collect::<Vec<_>>();
    tasks.tasks.iter().find(|task| task.id == id).unwrap_or_else(|| panic!("no `{id}` in {:?}", ids()))
}

#[test]
fn what_pass_env_names_and_every_command_has_is_without_effect() {
    let text = "version = 1\n[tasks.a]\ncommand = \"true\"\n\
                pass_env = [\"FOO\", \"AWS_*\", \"A*\", \"IDENTITY_HEADER\", \"B*\", \"AWS\"]\n";
    let (plan, diags) = FakeHost::with_cores(4).plan(text, &PlanOptions::default());
    assert!(plan.is_some());
    let about = |name: &str| {
        diags.warnings().any(|w| w.message.contains(&format!("`{name}` in `pass_env` has no effect")))
    };
    let names = ["FOO", "AWS_*", "A*", "IDENTITY_HEADER", "B*", "AWS"];
    assert_eq!(names.map(about), [true, false, false, false, true, true]);
}

#[test]
fn each_combination_of_values_is_a_task_with_all_filled_in() {
    let plan = FakeHost::with_cores(4).good(SWEEP);
    assert!(plan.models.is_empty() && plan.pipelines.is_empty());
    let tasks = &plan.tasks;
    assert_eq!((tasks.tasks.len(), tasks.cpu_slots), (1 + 2 * 2 * 2 + 2, 4));
    let prepare = task(tasks, "prepare");
    let text = "split '{x}' /flows/out/tasks/prepare/output && awk '{print $1}' /";
    assert_eq!(prepare.command, ["/bin/sh", "-c", text]);
    let train = task(tasks, "train[lr=0.001,seed=2,a=y,b=false]");
    assert_eq!(train.command, ["python", "train.py", "--lr", "0.001", "--seed=2", "3"]);
    assert_eq!(train.env[0], ("NAME".into(), "y-false".into()));
    assert_eq!(train.cwd, Path::new("/flows/code"));
    assert_eq!(train.folder, Path::new("tasks/train/lr=0.001,seed=2,a=y,b=false"));
    assert_eq!(train.after, [0], "its values and its inputs say so");
    assert_eq!((train.retries.out_of_memory, train.retries.code), (2, 0));
    let score = task(tasks, "score[lr=0.001,row=it's]");
    let one = "/flows/out/tasks/train/lr=0.001,seed=1,a=x,b=true/output";
    let folder = "/flows/out/tasks/train";
    let named = format!(r#"score {one} "${{ORCHESTRA_VALUE_1}}" > {folder}/"${{ORCHESTRA_VALUE_1}}""#);
    assert_eq!(
        (&score.command[2], &score.env[..]),
        (&named, &[("ORCHESTRA_VALUE_1".into(), "it's".into())][..])
    );
    assert_eq!(score.in_full()[2], format!(r"score {one} 'it'\''s' > {folder}/'it'\''s'"));
    let folder = score.folder.to_str().unwrap();
    assert!(folder.starts_with("tasks/score/lr=0.001,row=it_s-"), "{folder}");
    // Of the folder of all, and of one of them.
    assert_eq!(score.after.len(), 1 + 8);
    let only = tasks.only(&["score[lr=0.001,row=it's]".into()]).unwrap();
    assert_eq!(only.tasks.len(), 1 + 8 + 1);
    assert_eq!(tasks.only(&["train".into()]).unwrap().tasks.len(), 9);
    assert_eq!(tasks.only(&["tran".into()]).unwrap_err(), "tran");
}

#[test]
fn devices_are_gpus_or_slots_of_the_cpu() {
    let text = |device: &str| format!("version = 1\n[tasks.a]\ncommand = [\"a\"]\n{device}\n");
    let demand = |host: FakeHost, device: &str| host.good(&text(device)).tasks.tasks[0].demand;
    for (device, gpus, cpu_without) in [
        ("", Gpus::Count(1), WHOLE),
        ("device = \"auto\"", Gpus::Count(1), WHOLE),
        ("device = 0.25", Gpus::Share(250), 250),
        ("device = 2", Gpus::Count(2), 2 * WHOLE),
        ("device = \"none\"", Gpus::None, WHOLE),
        ("device = \"cpu\"", Gpus::None, WHOLE),
        ("cpus = 3", Gpus::Count(1), 3 * WHOLE),
    ] {
        let with = demand(FakeHost::with_gpus(2), device);
        assert_eq!(with.gpus, gpus, "{device}");
        let without = demand(FakeHost::with_cores(4), device);
        let instead = if gpus == Gpus::None { Gpus::None } else { Gpus::Instead };
        assert_eq!((without.gpus, without.cpu), (instead, cpu_without), "{device}");
    }
    for named in ["device = \"GPU-1\"", "device = \"cuda:1\""] {
        assert_eq!(demand(FakeHost::with_gpus(2), named).gpus, Gpus::This(1));
        let errors = FakeHost::with_cores(4).errors(&text(named), &PlanOptions::default());
        assert!(
            errors.len() == 1 && errors[0].contains("is not among the devices in use"),
            "{named}: {errors:?}"
        );
    }
    let plan = FakeHost::with_gpus(2).good(&text("gpu_memory = \"20GiB\""));
    assert_eq!((&plan.tasks.gpus[1].uuid[..], plan.tasks.gpus[1].memory), ("GPU-1", Some(58 << 30)));
    for (device, said) in [
        ("device = 3", "asks for 3 GPUs, and no lease can have that"),
        ("gpu_memory = \"59GiB\"", "asks for 59 GiB of a GPU"),
        ("device = \"cuda:7\"", "device `cuda:7` is not among the devices in use"),
    ] {
        let errors = FakeHost::with_gpus(2).errors(&text(device), &PlanOptions::default());
        assert!(errors.len() == 1 && errors[0].contains(said), "{device}: {errors:?}");
    }
}

/// A table whose tasks are compared.
const SWEEP_OF_LOSS: &str = r#"
[tasks.train]
command = "train {lr}"
matrix = { lr = [0.1, 0.01] }
metrics = ["loss", { name = "epoch", regex = '^epoch (\d+)' }]
best = { metric = "loss", goal = "min" }
"#;

#[test]
fn the_best_of_a_table_is_a_folder_that_later_tasks_may_use() {
    let text = format!(
        "version = 1\n{SWEEP_OF_LOSS}[tasks.other]\ncommand = \"o\"\n[tasks.use]\ncommand = \"use {{tasks.train.best.output}}/m\"\ninputs = \"{{tasks.train.best.output}}/m\"\nafter = [\"train[lr=0.1]\", \"other\"]\n"
    );
    let tasks = FakeHost::with_cores(4).good(&text).tasks;
    let train = task(&tasks, "train[lr=0.1]");
    assert_eq!(train.metrics[1], TaskMetric { name: "epoch".into(), regex: Some(r"^epoch (\d+)".into()) });
    assert_eq!(train.metrics[0].regex, None);
    let later = task(&tasks, "use");
    assert_eq!(later.command[2], "use /flows/out/.orchestra/best/train/m");
    assert_eq!(
        (&later.after[..], &later.may_fail[..]),
        (&[0, 1, 2][..], &[1][..]),
        "`after` names the first"
    );
    let only = tasks.only(&["train[lr=0.01]".into(), "use".into()]).unwrap();
    let objective = Objective { metric: "loss".into(), goal: Goal::Min, value: CurveValue::Last };
    assert_eq!(only.tasks[3].best_of, [0]);
    assert_eq!(only.best, [BestOf { name: "tasks.train.best".into(), tasks: vec![0, 1], objective }]);
}

/// What is wrong with one task alone is in `tests/cases`.
#[test]
fn tasks_that_are_in_the_way_of_each_other_are_told_once_at_their_place() {
    let many: String = (0..3_500).map(|n| format!("{n},")).collect();
    let long = "a".repeat(256);
    for (tables, said) in [
        ("a = { CMD, after = \"b\" }\nb = { CMD, after = \"a\" }", "task `a` would come after itself"),
        ("a = { CMD, after = \"a\" }", "task `a` would come after itself"),
        ("a = { CMD, outputs = \"m\" }\nb = { CMD, outputs = \"m\" }", "both write `/flows/m`"),
        (
            "a = { CMD, outputs = \"m\" }\nb = { CMD, outputs = \"m/b\" }",
            "task `a` writes `/flows/m` and task `b` writes `/flows/m/b`",
        ),
        (
            "a = { CMD, outputs = \"m/a\" }\nb = { CMD, outputs = \"m\" }",
            "task `a` writes `/flows/m/a` and task `b` writes `/flows/m`",
        ),
        (
            "a = { CMD, inputs = \"m\", outputs = \"m/a\" }",
            "task `a` reads `/flows/m` and writes `/flows/m/a`",
        ),
        (
            "a = { CMD, inputs = \"m\", outputs = \"n/a\" }\nb = { CMD, inputs = \"n\", outputs = \"m/b\" }",
            "task `a` would come after itself",
        ),
        (
            "a = { CMD, matrix = { x = [MANY] }, outputs = \"m/{x}\" }\nb = { CMD, matrix = { x = [MANY] }, inputs = \"m\" }",
            "tasks come after one another more than 10000000 times",
        ),
        (
            "a = { CMD, matrix = { x = [MANY] } }\nb = { CMD, matrix = { x = [MANY] }, after = \"a\" }",
            "tasks come after one another more than 10000000 times",
        ),
        ("LONG = { CMD }", "has 256 bytes, and 255 is the most"),
    ] {
        let tables = tables.replace("CMD", "command = [\"a\"]").replace("MANY", &many).replace("LONG", &long);
        let text = format!("version = 1\n[tasks]\n{tables}\n");
        let (plan, diags) = FakeHost::with_cores(4).plan(&text, &PlanOptions::default());
        let errors: Vec<_> = diags.errors().collect();
        assert!(plan.is_none() && errors[0].message.contains(said), "{text}: {errors:?}");
        assert!(errors[0].span.is_some() && errors.len() == 1, "{text}: {errors:?}");
    }
}

#[test]
fn rows_of_a_csv_are_tasks() {
    let text = "version = 1\n[tasks.a]\ncommand = [\"a\", \"{name}\", \"{size}\"]\nfor_each = \"rows.csv\"\n";
    let tasks = FakeHost::with_cores(4).good(text).tasks.tasks;
    assert_eq!(
        (&tasks[1].id[..], &tasks[1].command[..]),
        ("a[name=b,size=2]", &["a".into(), "b".into(), "2".into()][..])
    );
}

#[test]
fn a_task_with_a_long_id_is_found_by_all_of_its_values() {
    let long = "x".repeat(150);
    let text = format!(
        "version = 1\n[tasks.a]\ncommand = [\"a\"]\nmatrix = {{ v = [\"{long}\", \"y\"] }}\n\
         [tasks.b]\ncommand = [\"b\", \"{{tasks.a[v={{v}}].output}}\"]\nmatrix = {{ v = [\"{long}\"] }}\n\
         [tasks.c]\ncommand = [\"c\"]\nafter = \"a[v={long}]\"\n"
    );
    let plan = FakeHost::with_cores(4).good(&text).tasks;
    let only = |name: &str| plan.only(&[name.to_owned()]).map(|only| only.tasks);
    assert_eq!(only(&format!("a[v={long}]")).unwrap(), plan.tasks[..1]);
    assert_eq!(only(&plan.tasks[0].id).unwrap(), plan.tasks[..1]);
    assert_eq!(only(&format!("a[v={long}x]")), Err(format!("a[v={long}x]")));
    let tasks = plan.tasks;
    assert!(tasks[0].id.len() < 140, "{}", tasks[0].id);
    assert_eq!((&tasks[2].after, &tasks[3].after), (&vec![0], &vec![0]));
}

#[test]
fn a_folder_of_which_no_command_can_be_told_is_refused() {
    use std::os::unix::ffi::OsStrExt as _;
    let output = std::ffi::OsStr::from_bytes(b"/flows/\xff").into();
    let options = PlanOptions { output: Some(output), ..PlanOptions::default() };
    let errors = FakeHost::with_cores(4).errors("version = 1\n[tasks.a]\ncommand = [\"a\"]\n", &options);
    assert!(errors.len() == 1 && errors[0].contains("is no UTF-8"), "{errors:?}");
}

#[test]
fn outputs_with_names_are_values_of_their_task_and_of_the_best_of_a_table() {
    let text = r#"version = 1
[tasks.train]
command = "train {lr}"
matrix = { lr = [1, 2] }
outputs = { model = "{output}/net/model.onnx", loss = "{output}/loss" }
metrics = ["loss"]
best = { metric = "loss", goal = "min" }
[tasks.publish]
command = ["cp", "{tasks.train.best.model}", "{tasks.train[lr=1].loss}"]
"#;
    let plan = FakeHost::with_cores(1).good(text);
    let of = |id: &str| plan.tasks.tasks.iter().find(|task| task.id == id).unwrap();
    let folder = "/flows/out/tasks/train/lr=1/output";
    assert_eq!(
        of("train[lr=1]").outputs,
        [format!("{folder}/net/model.onnx"), format!("{folder}/loss")].map(PathBuf::from)
    );
    let best = "/flows/out/.orchestra/best/train/net/model.onnx".to_owned();
    assert_eq!(of("publish").command, ["cp".to_owned(), best, format!("{folder}/loss")]);
    assert_eq!((of("publish").after.len(), of("publish").best_of.len()), (2, 1));
    for (from, to, words) in [
        ("best.model", "best.modle", "`tasks.train.best` has no value `modle`"),
        ("[lr=1].loss", "[lr=1].los", "tasks have no value `los`"),
        ("[lr=1].loss", ".loss", "`train` is 2 tasks, and each has"),
        ("{output}/loss", "out/loss", "in the task's own folder alone"),
        ("{output}/loss", "{output}/{lr}", "in the task's own folder alone"),
        ("loss = \"{o", "best = \"{o", "cannot call an output `best`"),
    ] {
        assert!(text.contains(from), "{from}");
        let errors = FakeHost::with_cores(1).errors(&text.replace(from, to), &PlanOptions::default());
        assert!(errors.first().is_some_and(|error| error.contains(words)), "{to}: {errors:#?}");
    }
}

#[test]
fn a_value_of_the_best_of_a_table_stands_as_its_placeholder_until_that_is_known() {
    let text = format!(
        "version = 1\n{SWEEP_OF_LOSS}[tasks.use]\ncommand = [\"use\", \"é{{tasks.train.best.lr}},{{tasks.train.best.lr}}\"]\nenv = {{ A = \"a\", LR = \"={{tasks.train.best.lr}}\" }}\n\
         [tasks.shell]\ncommand = 'use \"{{tasks.train.best.lr}}\" {{tasks.train.best.lr}}'\n"
    );
    let host = FakeHost::with_cores(4);
    let tasks = host.good(&text).tasks;
    let later = task(&tasks, "use");
    assert_eq!(later.command[1], "é{tasks.train.best.lr},{tasks.train.best.lr}");
    assert_eq!(
        (&later.after[..], &later.may_fail[..]),
        (&[0, 1][..], &[0, 1][..]),
        "it comes after all of them"
    );
    let with_values =
        |task: &TaskPlan, value: &str| task.with_late_values(&vec![value.to_owned(); task.late_values.len()]);
    let (command, env) = with_values(later, "0.01");
    assert_eq!(command, ["use", "é0.01,0.01"]);
    assert_eq!(env, [("A", "a"), ("LR", "=0.01")].map(|(a, b)| (a.to_owned(), b.to_owned())));
    assert_eq!(with_values(task(&tasks, "shell"), "0.01").0[2], "use \"0.01\" 0.01");

    let odd = text.replace("0.01", "\"it's\"").replace("'use \"{tasks.train.best.lr}\" ", "'use ");
    let tasks = host.good(&odd).tasks;
    let (command, env) = with_values(task(&tasks, "shell"), "it's");
    assert_eq!(command[2], "use \"${ORCHESTRA_VALUE_1}\"");
    assert_eq!(env, [("ORCHESTRA_VALUE_1".to_owned(), "it's".to_owned())]);

    let known_later = "`{tasks.train.best.lr}` is known only when all tasks of `train` have ended";
    for (from, to, words) in [
        ("best.lr},", "best.lrr},", "`tasks.train.best` has no value `lrr`"),
        (
            "[0.1, 0.01]",
            "[0.1, \"a b\"]",
            "stands between quotes, and its value `a b` can only be a word by itself",
        ),
        ("env = ", "cwd = \"{tasks.train.best.lr}\"\nenv = ", known_later),
        ("env = ", "inputs = \"{tasks.train.best.lr}\"\nenv = ", known_later),
        ("env = ", "outputs = \"{output}/{tasks.train.best.lr}\"\nenv = ", known_later),
        ("env = ", "after = \"train[lr={tasks.train.best.lr}]\"\nenv = ", known_later),
        ("\"use\", ", "\"{tasks.train[lr={tasks.train.best.lr}].output}\", ", known_later),
        (
            "matrix = { lr = [0.1, 0.01] }",
            "for_each = \"mixed.jsonl\"",
            "not every task of `tasks.train.best` has a value `lr`",
        ),
    ] {
        assert!(text.contains(from), "{from}");
        let host = FakeHost::with_cores(4).file("/flows/mixed.jsonl", "{\"lr\": 1}\n{\"n\": 1}\n");
        let replaced = text.replacen(from, to, 1).replace("train {lr}", "train");
        let errors = host.errors(&replaced, &PlanOptions::default());
        assert!(errors.iter().any(|error| error.contains(words)), "{to}: {errors:#?}");
    }
}

#[test]
fn a_task_that_reads_a_folder_comes_after_those_that_write_into_it_and_the_other_way_round() {
    let text = r#"version = 1
[tasks.b]
command = ["b"]
inputs = ["data"]
outputs = "model"
[tasks.a]
command = ["a"]
outputs = ["data/train.npy", "data/test.npy"]
[tasks.c]
command = ["c"]
inputs = "model/net.onnx"
[tasks.d]
command = ["d"]
inputs = ["data-2", "model-2"]
"#;
    let tasks = FakeHost::with_cores(1).good(text).tasks.tasks;
    let after = |id: &str| &tasks.iter().find(|task| task.id == id).unwrap().after[..];
    assert_eq!(["a", "b", "c", "d"].map(after), [&[][..], &[1], &[0], &[]]);
}
