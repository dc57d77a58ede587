//! Plans of right files: what runs where, in which sizes, and what the command line changes about it.

use std::path::Path;
use std::time::Duration;

use crate::common::{DIGITS, FakeHost, crops, digits, infer, on, set, workers_of};
use orchestra_core::data::ColumnType;
use orchestra_core::{ConvSearch, DType, Fit, ImageSpec, SinkId, SourceId, StageId, Trim};
use orchestra_plan::{BETWEEN_COMMITS, MaxFailed, Origin, PlanOptions, RenderStyle, describe};
use orchestra_testkit::workflow_file::WorkflowFile;

#[test]
fn a_small_workflow_gets_every_default() {
    let plan = FakeHost::with_cores(4).good(DIGITS);
    assert_eq!(plan.name, "digits");
    assert_eq!(plan.output, Path::new("/flows/out"));
    assert_eq!(plan.loader_threads, 4);
    assert_eq!(plan.sinks[0].path, Path::new("/flows/out/results.jsonl"));
    assert!(!plan.sinks[0].ordered);
    assert_eq!(workers_of(&plan, "classify"), ["cpu: 4 x 1"]);
    let run = infer(&plan, "classify");
    assert_eq!((run.max_batch, run.fixed_batch, run.wait), (32, None, Duration::from_millis(5)));
    assert_eq!(run.padded_to, None);
    assert_eq!(run.layout.slots, 14);
    assert_eq!(plan.pipelines.len(), 1);
    assert_eq!(plan.pipelines[0].name, "scans");
    assert_eq!(run.layout.slot_rows, 32);
    assert_eq!(plan.pipelines[0].window, (32 + 2 * 32) * 14 + 4 * 4 + BETWEEN_COMMITS);
    let spec: ImageSpec = serde_json::from_value(plan.stages[0].settings["spec"].clone()).unwrap();
    assert_eq!((spec.fit, spec.dtype, spec.shorter), (Fit::Stretch, DType::F32, 32));
    assert_eq!(spec.scale, 1.0 / 255.0);
    assert_eq!((&spec.mean[..], &spec.std[..], &spec.pad[..]), (&[0.0][..], &[1.0][..], &[0][..]));
    let answer = &plan.stages[2];
    assert_eq!(answer.from, [Origin::Stage(StageId(1))]);
    assert_eq!((&answer.settings["top_k"], &answer.settings["scores"]), (&3.into(), &"softmax".into()));
    assert_eq!(answer.settings["labels"].as_array().unwrap().len(), 10);
    assert_eq!(plan.limits.max_failed, None);
    assert_eq!(plan.limits.item_timeout, Duration::from_secs(30));
}

#[test]
fn a_file_may_have_variables() {
    let host = FakeHost::with_cores(2);
    let changes = [("top_k = 3", "top_k = \"${top}\""), ("size = [32, 32]", "size = \"${SIZES}\"")];
    let more = "[variables]\ntop = \"${THREE}\"\nlong = 5\n[telemetry]\nflush_timeout = \"${long}${UNIT:-s}\"\n\
        [limits]\nmax_failed = \"${SHARE:-2}%\"\n";
    let text = digits(&changes) + more;
    let plan = host.good(&text);
    assert_eq!(plan.stages[2].settings["top_k"], 3);
    assert_eq!(plan.limits.max_failed, Some(MaxFailed::Share(0.02)));
    assert_eq!(plan.telemetry.flush_timeout, Some(Duration::from_secs(5)));
    assert_eq!(host.good_with(&text, &set(&[("variables.top", "2")])).stages[2].settings["top_k"], 2);
    let escaped = text.replace("name = \"digits\"", "name = \"$${top} ${ ${1x}\"");
    assert_eq!(host.good(&escaped).name, "${top} ${ ${1x}");
    let (plan, diags) = host.plan(&text.replace("${UNIT:-s}", "${NOTHING}"), &PlanOptions::default());
    let said = diags.render(RenderStyle::Plain);
    assert!(plan.is_none() && said.contains("error: the variable `NOTHING` has no value"), "{said}");
}

#[test]
fn a_pipeline_may_have_limits_of_its_own() {
    let second = DIGITS[DIGITS.find("[sources").unwrap()..]
        .replace("scans", "clips")
        .replace("pixels", "pixels2")
        .replace("classify", "classify2")
        .replace("kind = \"classify2\"", "kind = \"classify\"")
        .replace("answer", "answer2")
        .replace("results", "results2")
        .replace("[models.digits]\npath = \"digits.onnx\"\nlabels = \"labels10.txt\"\n", "");
    let limits = "[limits]\nmax_failed = 9\nitem_timeout = \"7s\"\nloaders = 6\n";
    let own = "[pipelines.clips]\nmax_failed = \"5%\"\nbatch_timeout = \"3s\"\nload_timeout = \"1h\"\n";
    let host = FakeHost::with_cores(4);
    let without = host.good(&format!("{DIGITS}{second}{limits}"));
    let plan = host.good(&format!("{DIGITS}{second}{limits}{own}"));
    let [scans, clips] = &plan.pipelines[..] else { panic!("two pipelines") };
    assert_eq!((&scans.name[..], &clips.name[..]), ("scans", "clips"));
    assert_eq!(plan.limits.max_failed, Some(MaxFailed::Items(9)), "of the run");
    assert_eq!((scans.limits.max_failed, clips.limits.max_failed), (None, Some(MaxFailed::Share(0.05))));
    let seconds = |limits: &orchestra_plan::Limits| {
        [limits.item_timeout, limits.batch_timeout, limits.load_timeout].map(|of| of.as_secs())
    };
    assert_eq!((seconds(&scans.limits), seconds(&clips.limits)), ([7, 60, 600], [7, 3, 3600]));
    let called = |key| [scans, clips].map(|pipeline| pipeline.limits.called(key));
    assert_eq!(called("load_timeout"), ["limits.load_timeout", "pipelines.clips.load_timeout"]);
    assert_eq!(called("item_timeout"), ["limits.item_timeout"; 2]);
    assert_eq!([scans.loaders, clips.loaders], [3, 3]);
    assert_eq!(plan.fingerprint, without.fingerprint, "limits may change from start to start");
    let said = describe(&plan);
    assert!(said.contains("limits: stopped beyond 5% failed, batch_timeout 3s, load_timeout 1h"), "{said}");
}

#[test]
fn set_takes_toml_and_bare_words() {
    let host = FakeHost::with_cores(2);
    let options = set(&[
        ("stages.classify.batch", "{ max = 3, wait = \"1s\" }"),
        ("stages.answer.top_k", "1"),
        ("name", "other"),
        ("limits.max_failed", "1%"),
        ("sinks.results.ordered", "true"),
    ]);
    let plan = host.good_with(DIGITS, &options);
    let run = infer(&plan, "classify");
    assert_eq!((run.max_batch, run.wait), (3, Duration::from_secs(1)));
    assert_eq!(plan.name, "other");
    assert_eq!(plan.limits.max_failed, Some(MaxFailed::Share(0.01)));
    assert!(plan.sinks[0].ordered);
}

#[test]
fn errors_of_set_name_the_option() {
    let host = FakeHost::with_cores(2);
    for (key, value, message) in [
        ("stages.pixels.size", "[64", "`--set stages.pixels.size=[64`: the value is no valid TOML"),
        ("stages.pixels.size.x", "1", "`--set stages.pixels.size.x=1`: `size` is a value, not a table"),
        ("", "1", "`--set =1`: `` is no key"),
        (
            "stages.classfy.batch.max",
            "1",
            "`--set stages.classfy.batch.max=1`: there is no `stages.classfy` in the file",
        ),
        ("stages.pixels.colour", "gray", "stage `pixels` has no key `colour`"),
        (
            "stages.pixels.size",
            "[64]",
            "`size` of stage `pixels` must be a list of two integers, [height, width]",
        ),
    ] {
        let (_, diags) = host.plan(DIGITS, &set(&[(key, value)]));
        let error = diags.errors().next().unwrap();
        assert_eq!(error.message, message);
        assert_eq!(diags.to_json()["errors"][0]["in"], "--set", "{message}");
    }
}

#[test]
fn an_output_folder_can_be_chosen_and_is_no_part_of_the_fingerprint() {
    let options = PlanOptions { output: Some("/tmp/../results".into()), ..PlanOptions::default() };
    let plan = FakeHost::with_cores(2).good_with(DIGITS, &options);
    assert_eq!(plan.sinks[0].path, Path::new("/results/results.jsonl"));
    assert_eq!(plan.fingerprint, FakeHost::with_cores(2).good(DIGITS).fingerprint);
}

#[test]
fn offline_plans_look_at_no_machine() {
    let mut host = FakeHost::with_cores(2);
    host.machine = Err("asked although offline".into());
    let options = PlanOptions { offline: true, ..on(&["cuda:3"]) };
    assert_eq!(workers_of(&host.good_with(DIGITS, &options), "classify"), ["cuda:3: 1 x 1"]);
    assert_eq!(
        host.errors(DIGITS, &PlanOptions::default()),
        ["this machine cannot be looked at: asked although offline"]
    );
}

#[test]
fn models_in_a_row_and_models_with_several_inputs_are_wired() {
    let mask = "size = [8, 8]\ncolor = 'gray'\nlayout = 'nhwc'\ndtype = 'u8'";
    let inputs = "kind = 'infer'\ninputs = { mask = 'mask', image = 'image.pixels' }\nmodel = 'two'";
    let flow = WorkflowFile::of_pictures("s")
        .model("two", "two.onnx")
        .model("embed", "embed.onnx")
        .table("models.head", "path = 'head.onnx'\ncustom_ops = ['ops.so']")
        .infer("head", "embed.features", "head")
        .infer("embed", "image", "embed")
        .table("stages.two", inputs)
        .stage("image", "image", "s", "size = [8, 8]")
        .stage("mask", "image", "s", mask)
        .stage("best", "classify", "two.scores", "labels = 'labels3.txt'")
        .sink("best", "jsonl", "best")
        .sink("head", "jsonl", "head");
    let plan = FakeHost::with_cores(4).good(&flow);
    let place = |name: &str| plan.stages.iter().position(|s| s.name == name).unwrap();
    assert!(
        place("image") < place("embed") && place("embed") < place("head") && place("two") < place("best")
    );
    let reads = |name: &str| -> Vec<usize> {
        let stages = plan.stages[place(name)].reads.iter().filter_map(|read| read.from.stage());
        stages.map(|stage| stage.index()).collect()
    };
    let two = infer(&plan, "two");
    let from: Vec<usize> = reads("two");
    assert_eq!(from, [place("image"), place("mask")]);
    // Nobody reads the boxes, so they have no place.
    assert_eq!(two.layout.outputs.iter().map(Option::is_some).collect::<Vec<_>>(), [true]);
    assert_eq!(reads("head")[0], place("embed"));
    assert_eq!(plan.pipelines.len(), 1);
    assert_eq!(
        plan.models.iter().find(|m| m.name == "head").unwrap().custom_ops[0].0,
        Path::new("/flows/ops.so")
    );
}

#[test]
fn a_pipeline_is_linear_where_each_item_ends_in_one_sink_with_one_record() {
    let linear = |text: &str| FakeHost::with_cores(4).good(text).pipelines[0].linear;
    assert_eq!(linear(DIGITS), Some(SinkId(0)));
    let second = format!("{DIGITS}[sinks.more]\nkind = \"jsonl\"\nfrom = \"classify\"\n");
    let filter = "[stages.sure]\nkind = \"filter\"\nfrom = \"answer\"\nkeep = \"score > 0.5\"\n";
    let filtered = digits(&[("from = \"answer\"", "from = \"sure\"")]) + filter;
    let ordered = format!("{DIGITS}ordered = true\n");
    let carried = digits(&[("from = \"answer\"", "from = [\"pixels\", \"answer\"]")]);
    for (why, text) in [
        ("two sinks", &second[..]),
        ("a filter", &filtered),
        ("an order", &ordered),
        ("parts that come together", &crops()),
        ("a column that a batch carries", &carried),
    ] {
        assert_eq!(linear(text), None, "{why}");
    }
}

#[test]
fn a_batch_carries_what_is_read_behind_it_and_nothing_else() {
    let plan = FakeHost::with_cores(4).good(&crops());
    let [picture] = infer(&plan, "find").passthrough_columns[..] else {
        panic!("{:?}", infer(&plan, "find").passthrough_columns)
    };
    assert_eq!((picture.from, &plan.column(picture).ty), (Origin::Source(SourceId(0)), &ColumnType::Picture));
    assert_eq!(infer(&plan, "read").passthrough_columns, [], "the parts are cut out");
    let unread = crops().replace("from = \"number\"", "from = \"find\"");
    let plan = FakeHost::with_cores(4).good(&unread);
    assert_eq!(infer(&plan, "find").passthrough_columns, [], "nothing behind it reads the picture");
}

#[test]
fn open_dimensions_of_a_model_take_the_shape_that_they_are_fed() {
    let text =
        digits(&[("digits.onnx", "any.onnx"), ("labels = \"labels10.txt\"", ""), ("\"gray\"", "\"bgr\"")]);
    let plan = FakeHost::with_cores(1).good(&text);
    let run = infer(&plan, "classify");
    assert_eq!(run.layout.inputs[0].tensor.fixed_row().unwrap(), [3, 32, 32]);
    assert!(run.layout.outputs[0].is_none());
    assert_eq!(plan.models[0].inputs[0].to_string(), "f32[batch, 3, ?, ?]");
}

/// What the rows are trimmed to lies behind them in each slot, and no model input is missing or doubled for it.
#[test]
fn a_model_with_open_sides_is_given_rows_that_are_trimmed() {
    let pixels = "size = [64, 96]\nfit = 'corner'\ntrim = 32\nlayout = 'nchw'";
    let text = WorkflowFile::of_pictures("scans")
        .model("any", "any.onnx")
        .stage("pixels", "image", "scans", pixels)
        .stage("kept", "filter", "pixels", "keep = '1 > 0'")
        .infer("run", "kept", "any")
        .sink("all", "jsonl", "run");
    let of = |text: &str| {
        let plan = FakeHost::with_cores(4).good(text);
        let names = |spans: &[orchestra_core::batch_layout::TensorSpan]| {
            spans.iter().map(|span| span.tensor.to_string()).collect::<Vec<_>>()
        };
        let run = infer(&plan, "run");
        let stage = plan.batch_stages().next().unwrap().0;
        (
            run.trim,
            names(&run.layout.inputs),
            plan.stages[stage.index()].reads.len(),
            plan.pixel_inputs(stage).len(),
        )
    };
    let trim = Trim { input: 0, axes: [1, 2] };
    let inputs = ["f32[batch, 3, 64, 96]".to_owned(), "i64[batch, 10]".to_owned()];
    assert_eq!(of(&text), (Some(trim), inputs.to_vec(), 2, 2));
    assert_eq!(of(&text.replace("trim = 32", "")), (None, inputs[..1].to_vec(), 1, 1));
    // Features of a model are no rows of pictures, whatever passes them on.
    let cascade = text.replace(
        "path = \"any.onnx\"",
        "path = \"any.onnx\"\n[models.embed]\npath = \"embed_any.onnx\"\n[models.head]\npath = \"head.onnx\"",
    ) + "[stages.features]\nkind = \"infer\"\nfrom = \"pixels\"\nmodel = \"embed\"\n\
           [stages.some]\nkind = \"filter\"\nfrom = \"features\"\nkeep = \"1 > 0\"\n\
           [stages.head]\nkind = \"infer\"\nfrom = \"some\"\nmodel = \"head\"\n\
           [sinks.heads]\nkind = \"jsonl\"\nfrom = \"head\"\npath = \"heads.jsonl\"\n";
    let plan = FakeHost::with_cores(4).good(&cascade);
    let trims = ["run", "features", "head"].map(|stage| infer(&plan, stage).trim);
    assert_eq!(trims, [Some(trim), Some(trim), None]);
    let unread = text.replace("from = \"run\"", "from = \"kept\"");
    let (plan, diags) = FakeHost::with_cores(4).plan(&unread, &PlanOptions::default());
    assert!(plan.is_some());
    let said = diags.render(RenderStyle::Plain);
    assert!(said.contains("stage `pixels`: `trim` has no effect: no model is given its rows"), "{said}");
}

#[test]
fn a_model_with_one_score_per_item_is_classified() {
    let text = digits(&[("digits.onnx", "score.onnx"), ("labels = \"labels10.txt\"", ""), ("top_k = 3", "")]);
    let plan = FakeHost::with_cores(1).good(&text);
    assert_eq!(infer(&plan, "classify").layout.outputs[0].as_ref().unwrap().row_bytes, 4);
}

#[test]
fn what_is_not_used_is_left_out() {
    let text = format!(
        "{DIGITS}\n[models.spare]\npath = \"head.onnx\"\n[stages.idle]\nkind = \"infer\"\nfrom = \"pixels\"\nmodel = \"digits\"\n"
    );
    let host = FakeHost::with_cores(2);
    let (plan, diags) = host.plan(&text, &PlanOptions::default());
    let plan = plan.unwrap();
    assert_eq!((plan.stages.len(), plan.models.len()), (3, 1));
    assert_eq!(workers_of(&plan, "classify"), ["cpu: 2 x 1"]);
    assert_eq!(diags.warnings().count(), 2);
}

#[test]
fn the_fingerprint_covers_results_and_nothing_else() {
    let host = FakeHost::with_cores(4);
    let of = |changes: &[(&str, &str)]| host.good_with(DIGITS, &set(changes)).fingerprint;
    let before = of(&[]);
    let names: Vec<&str> = before.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "source `scans`",
            "what decodes source `scans`",
            "model `digits`",
            "`tf32` of model `digits`",
            "stage `pixels`",
            "stage `classify`",
            "`batch.max = 1` of stage `classify`",
            "stage `answer`",
            "sink `results`"
        ]
    );
    for harmless in [
        ("models.digits.workers", "2"),
        ("models.digits.streams", "2"),
        ("models.digits.priority", "99"),
        ("stages.classify.batch", "{ max = 2 }"),
        ("limits.loaders", "1"),
        ("devices.use", "[\"cpu\", \"cpu\"]"),
        ("telemetry.otlp", "http://localhost:4318"),
        ("telemetry.slow", "1s"),
    ] {
        assert_eq!(of(&[harmless]), before, "{harmless:?}");
    }
    for (change, entry) in [
        (("sources.scans.paths", "[\"other\"]"), "source `scans`"),
        (("models.digits.path", "\"four.onnx\""), "model `digits`"),
        (("models.digits.custom_ops", "[\"ops.so\"]"), "model `digits`, `custom_ops` of model `digits`"),
        (("models.digits.tf32", "false"), "`tf32` of model `digits`"),
        (("stages.pixels.filter", "\"nearest\""), "stage `pixels`"),
        (("stages.classify.batch", "{ max = 1 }"), "`batch.max = 1` of stage `classify`"),
        (("stages.answer.top_k", "2"), "stage `answer`"),
        (("stages.answer.scores", "none"), "stage `answer`"),
        (("sinks.results.path", "\"r.jsonl\""), "sink `results`"),
    ] {
        let changed: Vec<String> =
            of(&[change]).into_iter().filter(|part| !before.contains(part)).map(|(name, _)| name).collect();
        assert_eq!(changed.join(", "), entry, "{change:?}");
    }
}

#[test]
fn what_a_model_asks_of_its_sessions_is_planned_and_described() {
    let host = FakeHost::with_gpus(1);
    let search = host.good_with(DIGITS, &set(&[("models.digits.conv_search", "exhaustive")]));
    let usual = host.good(DIGITS);
    let searches = "    cuDNN searches long for the kernels of each shape that is new";
    assert!(describe(&search).contains(searches) && !describe(&usual).contains(searches));
    let tensorrt = set(&[("models.digits.provider", "tensorrt"), ("models.digits.tensorrt_fp16", "true")]);
    let tensorrt = host.good_with(DIGITS, &tensorrt);
    assert!(tensorrt.needs_tensorrt() && !usual.needs_tensorrt());
    assert!(
        describe(&tensorrt)
            .contains("    provider: TensorRT in f16, and CUDA for the rest; engines are not kept")
    );
    assert_ne!(tensorrt.fingerprint, usual.fingerprint, "f16 gives other numbers");
    assert_eq!(search.fingerprint, usual.fingerprint, "and nothing else of this does");
    // Without a look at the machine, `auto` may be a GPU.
    let offline = PlanOptions { offline: true, ..set(&[("models.digits.conv_search", "exhaustive")]) };
    let plan = FakeHost::with_cores(4).good_with(DIGITS, &offline);
    assert_eq!(plan.models[0].tuning.conv_search, ConvSearch::Exhaustive);
}

#[test]
fn a_described_machine_is_planned_for() {
    let text = "cores = 64\nmemory = \"256GiB\"\n[[devices]]\nmemory = \"80GiB\"\nfree = \"79GiB\"\ncount = 2\n[[devices]]\nmemory = \"24GiB\"\nmodel = \"L4\"\n";
    let (machine, diags) = orchestra_plan::machine_from_toml(text, "m.toml");
    assert!(!diags.has_errors());
    let machine = machine.unwrap();
    assert_eq!(machine.cores, 64);
    assert_eq!(workers_of(&FakeHost::with(machine).good(DIGITS), "classify").len(), 3);
    let (machine, diags) = orchestra_plan::machine_from_toml("core = 4\n[[devices]]\n", "m.toml");
    assert!(machine.is_none());
    assert_eq!(diags.errors().count(), 3);
}

#[test]
fn a_key_is_without_effect_only_where_its_devices_are_known() {
    let changes = [("models.digits.tf32", "false")];
    let warned = |host: &FakeHost, offline| {
        let (plan, diags) = host.plan(DIGITS, &PlanOptions { offline, ..set(&changes) });
        assert!(plan.is_some(), "{}", diags.render(RenderStyle::Plain));
        let messages: Vec<&str> = diags.warnings().map(|warning| &*warning.message).collect();
        messages.iter().any(|m| m.contains("tf32") && m.contains("has no effect"))
    };
    assert!(warned(&FakeHost::with_cores(4), false));
    assert!(!warned(&FakeHost::with_gpus(1), false));
    assert!(!warned(&FakeHost::with_cores(4), true));
}

#[test]
fn a_model_gives_its_largest_numbers_alone_where_nothing_reads_more() {
    let text = digits(&[
        ("digits.onnx", "text.onnx"),
        ("labels = \"labels10.txt\"", ""),
        ("kind = \"classify\"", "kind = \"ctc\""),
        ("top_k = 3", "charset = \"chars.txt\""),
    ]);
    let charset: String = ('\u{4e00}'..).take(96).map(|c| format!("{c}\n")).collect();
    let largest = |text: &str| {
        let plan = FakeHost::with_cores(4).file("/flows/chars.txt", &charset).good(text);
        plan.largest_outputs(plan.batch_stages().next().unwrap().0)
    };
    assert_eq!(largest(&text), ["letters"]);
    let lines = "a\n".repeat((1 << 20) + 1);
    let (_, diags) =
        FakeHost::with_cores(4).file("/flows/chars.txt", &lines).plan(&text, &PlanOptions::default());
    let report = diags.render(RenderStyle::Plain);
    assert!(
        report.contains("charset `chars.txt` cannot be read: it has more than 1048576 lines"),
        "{report}"
    );
    let more = text + "[sinks.all]\nkind = \"jsonl\"\nfrom = \"classify\"\npath = \"all.jsonl\"\n";
    assert!(largest(&more).is_empty(), "a sink writes all of them");
}
