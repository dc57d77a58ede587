//! Stages with a matrix: what their variants give, which stages depend on them, and what is run for all of them once.

use std::collections::BTreeSet;

use crate::common::{FakeHost, digits};
use orchestra_core::data::ColumnType;
use orchestra_core::{StageId, Trim};
use orchestra_plan::{Origin, Plan, PlanOptions, Shape, describe};
use orchestra_testkit::workflow_file::WorkflowFile;
use proptest::prelude::*;

fn pyramid() -> WorkflowFile {
    WorkflowFile::of_pictures("scans")
        .model("any", "any.onnx")
        .stage("pixels", "image", "scans", "matrix = { size = [[64, 96], [32, 48]] }\nsize = '{size}'")
        .infer("run", "pixels", "any")
        .table("stages.all", "kind = 'gather'\nfrom = ['run', 'pixels.size']")
        .sink("all", "jsonl", "all")
}

fn stage<'p>(plan: &'p Plan, name: &str) -> (StageId, &'p orchestra_plan::StagePlan) {
    let found = (0..).map(StageId).zip(&plan.stages).find(|(_, stage)| stage.name == name);
    found.unwrap_or_else(|| panic!("no stage {name}"))
}

#[test]
fn variants_are_parts_that_share_the_stages_and_the_workers_behind_them() {
    let plan = FakeHost::with_cores(4).good(&pyramid());
    let names: Vec<&str> = plan.stages.iter().map(|stage| &*stage.name).collect();
    assert_eq!(names, ["pixels[size]", "pixels", "run", "all"]);
    let (parts, _) = stage(&plan, "pixels[size]");
    assert_eq!(stage(&plan, "run").1.enclosing_splits, [parts]);
    assert!(stage(&plan, "all").1.enclosing_splits.is_empty());
    let batches: Vec<_> = plan.batch_stages().collect();
    let [(_, run)] = &batches[..] else { panic!("{} batch stages", batches.len()) };
    assert_eq!((run.workers.len(), plan.models.len()), (1, 1));
    // Rows of the largest size, of which the model computes what there is.
    assert_eq!(run.layout.inputs[0].tensor.fixed_row().unwrap(), [3, 64, 96]);
    assert_eq!(run.trim, Some(Trim { input: 0, axes: [1, 2] }));
    let list = stage(&plan, "all").1.gives.0[0].ty.to_string();
    assert!(list.contains("pixels.size i64[batch, 2]"), "{list}");
    let told = describe(&plan);
    for line in [
        "matrix pixels[size] <- scans: 2 parts of each row: size=64x96; size=32x48",
        "image pixels <- scans, pixels[size]: 2 variants",
        "    size=32x48: f32[batch, 3, 32, 48]",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
}

#[test]
fn variants_of_one_size_fill_whole_batches() {
    let text = pyramid()
        .replace("matrix = { size = [[64, 96], [32, 48]] }", "matrix = { fit = ['contain', 'cover'] }");
    let text = text
        .replace("size = '{size}'", "size = [64, 96]\nfit = '{fit}'")
        .replace("pixels.size", "pixels.fit");
    let plan = FakeHost::with_cores(4).good(&text);
    assert_eq!(plan.batch_stages().next().unwrap().1.trim, None);
    let told = describe(&plan);
    assert!(told.contains("gives all") || told.contains("fit=contain; fit=cover"), "{told}");
    assert_eq!(stage(&plan, "pixels[fit]").1.gives.0[1].ty, ColumnType::Text);
}

#[test]
fn what_a_variant_decides_is_part_of_the_fingerprint() {
    let of = |text: &str| {
        let plan = FakeHost::with_cores(4).good(text);
        plan.fingerprint.into_iter().collect::<BTreeSet<_>>()
    };
    let text = pyramid().to_string();
    let changed: BTreeSet<String> = (of(&text).symmetric_difference(&of(&text.replace("32, 48", "32, 40"))))
        .map(|(name, _)| name.clone())
        .collect();
    assert_eq!(changed.into_iter().collect::<Vec<_>>(), ["stage `pixels[size]`", "stage `pixels`"]);
}

#[test]
fn later_stages_use_values_too_also_behind_a_model_and_of_several_matrices() {
    let text = digits(&[
        (
            "color = \"gray\"",
            "color = \"gray\"\nmatrix = { fit = [\"contain\", \"cover\"] }\nfit = \"{fit}\"",
        ),
        ("top_k = 3", "matrix = { k = [1, 2, 3] }\ntop_k = \"{k}\""),
    ]) + "[stages.some]\nkind = \"filter\"\nfrom = \"answer\"\nkeep = \"label != '{fit}' and score > 0.{k}\"\n\
          [sinks.some]\nkind = \"jsonl\"\nfrom = [\"some\", \"pixels.fit\", \"answer.k\"]\npath = \"some.jsonl\"\n";
    let plan = FakeHost::with_cores(4).good(&text);
    let ((fit, _), (k, _)) = (stage(&plan, "pixels[fit]"), stage(&plan, "answer[k]"));
    let some = stage(&plan, "some").1;
    assert_eq!(some.enclosing_splits, [fit, k]);
    let places: Vec<Origin> = some.reads[some.reads.len() - 2..].iter().map(|read| read.from).collect();
    assert_eq!(places, [Origin::Stage(fit), Origin::Stage(k)]);
    let variants = some.settings["variants"].as_object().unwrap();
    assert_eq!(variants.len(), 6);
    assert!(
        variants["fit=cover,k=2"].to_string().contains("label != 'cover' and score > 0.2"),
        "{variants:?}"
    );
    // The model runs once, and carries along which variant a row is.
    let Shape::Batch(batch) = &stage(&plan, "classify").1.runs else { panic!("no batch stage") };
    assert!(batch.passthrough_columns.iter().any(|read| read.from == Origin::Stage(fit)));
}

proptest! {
    /// Stages in a row, each with a matrix of its own, one that it shares, or none, and gathers behind as many as there are splits.
    #[test]
    fn any_row_of_stages_with_matrices_is_planned_with_a_split_for_each(
        matrices in proptest::collection::vec(proptest::collection::vec(0usize..4, 0..3), 1..5),
        uses in proptest::collection::vec(proptest::bool::ANY, 5),
    ) {
        let mut text = "version = 1\n[sources.s]\nkind = \"range\"\nstop = 9\n".to_owned();
        let (mut before, mut splits, mut names) = ("s".to_owned(), Vec::new(), Vec::<String>::new());
        for (n, lists) in matrices.iter().enumerate() {
            let lists: Vec<(String, usize)> =
                lists.iter().enumerate().map(|(list, values)| (format!("v{n}x{list}"), values + 1)).collect();
            let of = |(name, values): &(String, usize)| {
                format!("{name} = [{}]", (0..*values).map(|v| v.to_string()).collect::<Vec<_>>().join(", "))
            };
            let named = lists.iter().map(of).collect::<Vec<_>>().join(", ");
            names.extend(lists.iter().map(|(name, _)| name.clone()));
            let mut keep = "1 > 0".to_owned();
            if let (true, Some(name)) = (uses[n], names.first()) {
                keep = format!("1 > {{{name}}}");
            }
            text += &format!("[stages.f{n}]\nkind = \"filter\"\nfrom = \"{before}\"\nkeep = \"{keep}\"\n");
            if !lists.is_empty() {
                text += &format!("matrix = {{ {named} }}\n");
                let list: Vec<&str> = lists.iter().map(|(name, _)| &**name).collect();
                splits.push(format!("f{n}[{}]", list.join(",")));
            }
            before = format!("f{n}");
        }
        for n in 0..splits.len() {
            text += &format!("[stages.g{n}]\nkind = \"gather\"\nfrom = \"{before}\"\n");
            before = format!("g{n}");
        }
        text += &format!("[sinks.o]\nkind = \"jsonl\"\nfrom = \"{before}\"\n");
        let plan = FakeHost::with_cores(2).good(&text);
        let last = stage(&plan, &format!("f{}", matrices.len() - 1)).1;
        let made: Vec<&str> = last.enclosing_splits.iter().map(|id| &*plan.stages[id.index()].name).collect();
        prop_assert_eq!(made, splits);
        prop_assert!(stage(&plan, before.split('[').next().unwrap()).1.enclosing_splits.is_empty());
    }

    #[test]
    fn any_value_of_a_matrix_is_planned_or_explained(
        name in prop_oneof![Just("size"), Just("\"a b\""), Just("\"\""), Just("\"a.b\""), Just("\"a[b\""), Just("tasks")],
        value in prop_oneof![
            Just("[]"), Just("{}"), Just("1"), Just("[1]"), Just("[[]]"), Just("[[8, 8]]"), Just("[[8, 8], [4, 4]]"),
            Just("[[8, 8], [8, 8]]"), Just("[\"x]\", \"[\"]"), Just("[nan, inf]"), Just("[1979-05-27]"), Just("[{}]"),
            Just("[[[1]]]"), Just("[true, 1, \"a\"]"), Just("[\"{size}\"]"),
        ],
        used in prop_oneof![Just("\"{size}\""), Just("[8, 8]"), Just("[\"{size}\", 8]")],
    ) {
        let text = pyramid().replace("matrix = { size = [[64, 96], [32, 48]] }", &format!("matrix = {{ {name} = {value} }}"));
        let text = text.replace("size = '{size}'", &format!("size = {used}"));
        let (plan, diags) = FakeHost::with_cores(4).plan(&text, &PlanOptions::default());
        prop_assert_eq!(plan.is_none(), diags.has_errors());
        let is_bug = diags.errors().any(|error| error.message.contains("bug"));
        prop_assert!(!is_bug, "{}", text);
    }
}
