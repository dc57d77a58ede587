//! A model served to the program that embeds it: real workers answer requests as a run answers items. What becomes of requests when processes die, `flow.rs` says.

use std::future::IntoFuture as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Workplace, audited, bounded};
use crate::orchestra;
use ::orchestra::{Model, ModelBuilder, RequestError, SettingValue, StartError, Tensor, Tensors};
use futures::future::{join, join_all};
use orchestra_core::DType;
use orchestra_launch::{PlanOptions, RenderStyle, StartOptions};
use orchestra_testkit::images::picture;
use orchestra_testkit::onnx::{Attribute, ModelBuilder as ModelFileBuilder};
use orchestra_testkit::size::scaled;
use orchestra_testkit::{models, trap_library};

const ITEMS: u64 = 48;

async fn served(place: &Workplace, file: &Path) -> ModelBuilder {
    orchestra(place.options()).build().await.unwrap().model(file).devices(["cpu"])
}

async fn start(place: &Workplace, model: ModelBuilder) -> Result<Model, StartError> {
    let model = bounded("the model starts", model.start()).await?;
    place.watch_flow(model.tree().observer());
    Ok(model)
}

/// Some test pictures as the rows of one request.
fn pictures(indices: &[u64]) -> Tensor {
    let pixels = indices.iter().flat_map(|index| picture(*index, 32, 32).into_raw());
    tensor(&[indices.len(), 1, 32, 32], &pixels.map(f32::from).collect::<Vec<_>>())
}

fn tensor(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::new(shape, values.to_vec()).unwrap()
}

#[test]
fn requests_at_the_same_time_get_what_a_run_writes() {
    audited(async {
        let place =
            Workplace::reading(ITEMS, ("blocks", ""), 4, |folder| models::blocks(folder, [1, 32, 32]));
        let model = place.models().join("blocks.onnx");
        Workplace::must_end_with(&place.run().await, 0);
        let mut written = vec![Vec::new(); ITEMS as usize];
        for record in place.lines("all.jsonl") {
            let blocks = record["result"]["blocks"]["data"].as_array().unwrap_or_else(|| panic!("{record}"));
            let blocks = blocks.iter().map(|mean| mean.as_f64().unwrap() as f32).collect();
            written[record["index"].as_u64().unwrap() as usize] = blocks;
        }
        let model = start(&place, served(&place, &model).await.max_batch(4)).await.unwrap();
        assert_eq!(model.inputs()[0].to_string(), "pixels f32[batch, 1, 32, 32]");
        assert_eq!(model.outputs()[0].to_string(), "blocks f32[batch, 32]");
        // One row, and several, that share batches.
        let requests: Vec<Vec<u64>> = (0..ITEMS).map(|i| vec![i]).chain([(0..ITEMS).collect()]).collect();
        let asked = requests.iter().map(|items| async { model.infer(pictures(items)).await });
        for (items, answer) in requests.iter().zip(bounded("all are answered", join_all(asked)).await) {
            let answer = answer.unwrap();
            assert_eq!(answer["blocks"].shape(), [items.len(), 32]);
            let expected: Vec<f32> = items.iter().flat_map(|item| written[*item as usize].clone()).collect();
            assert_eq!(answer["blocks"].as_slice::<f32>().unwrap(), expected, "{items:?}");
        }
        bounded("the model ends", model.drain()).await;
        assert_eq!(place.workers(), []);
    });
}

#[test]
fn several_inputs_and_outputs_and_open_shapes_are_served() {
    audited(async {
        let place = Workplace::new();
        let file = models::two_in_two_out(&place.models(), &[2]).unwrap();
        let model = start(&place, served(&place, &file).await).await.unwrap();
        let rows = |values: [f32; 6]| tensor(&[3, 2], &values);
        let (a, b) = (rows([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), rows([10.0, 20.0, 30.0, 40.0, 50.0, 60.0]));
        // In any order.
        let request = model.infer([("b", b), ("a", a.clone())]).into_future();
        let answer = bounded("it is answered", request).await.unwrap();
        assert_eq!(answer["sum"], rows([11.0, 22.0, 33.0, 44.0, 55.0, 66.0]));
        assert_eq!(answer["difference"], rows([-9.0, -18.0, -27.0, -36.0, -45.0, -54.0]));
        for (request, words) in [
            (Tensors::from([("a", a.clone())]), "input `b` is missing"),
            (Tensors::from([("a", a.clone()), ("b", a.clone()), ("c", a.clone())]), "no input `c`"),
            (Tensors::from([("a", a.clone()), ("b", a.clone()), ("a", a.clone())]), "there are 3 tensors"),
            (Tensors::from([("a", a.clone()), ("b", tensor(&[2, 2], &[0.0; 4]))]), "as many for every input"),
            (
                Tensors::from([("a", a.clone()), ("b", Tensor::new([3, 2], vec![0_i64; 6]).unwrap())]),
                "i64 [3, 2]",
            ),
        ] {
            let refused = model.infer(request).await.unwrap_err();
            assert!(refused.is_client_fault() && refused.to_string().contains(words), "{refused}");
        }
        model.drain().await;

        // How many columns there are, only the run knows: rows of one request may differ.
        let file = models::positive_columns(&place.models(), 3).unwrap();
        let model = start(&place, served(&place, &file).await.max_batch(1)).await.unwrap();
        let request = model.infer(tensor(&[1, 3], &[1.0, -1.0, 2.0])).into_future();
        let answer = bounded("it is answered", request).await.unwrap();
        let (_, columns) = answer.iter().next().unwrap();
        assert_eq!(columns.as_slice::<f32>().unwrap(), [1.0, 2.0]);
        let ragged = model.infer(tensor(&[2, 3], &[1.0, -1.0, 2.0, 1.0, -1.0, -1.0])).await.unwrap_err();
        assert!(matches!(ragged, RequestError::Ragged { .. }), "{ragged}");
        model.drain().await;
    });
}

/// Inputs that are the same for all rows: a single value, a row, a text, and a name that is no bare key of TOML.
#[test]
fn constants_take_the_place_of_inputs_and_one_that_does_not_fit_says_what_would() {
    audited(async {
        let place = Workplace::new();
        let builder = ModelFileBuilder::new("scaled")
            .input(&models::spec("x", DType::F32, &[3]))
            .input(&models::spec("w.1", DType::F32, &[3]))
            .scalar_input("rate", DType::I64)
            .output(&models::spec("y", DType::F32, &[3]))
            .node("Cast", &["rate"], &["r"], &[("to", Attribute::Int(1))])
            .node("Mul", &["x", "r"], &["xr"], &[])
            .node("Sum", &["xr", "w.1"], &["y"], &[]);
        let file = builder.write(&place.models()).unwrap();
        let model = served(&place, &file).await;
        let fed = model.clone().constant("rate", 10).constant("w.1", vec![1.0, 2.5, -3.0]);
        let fed = start(&place, fed).await.unwrap();
        assert_eq!(fed.inputs().iter().map(ToString::to_string).collect::<Vec<_>>(), ["x f32[batch, 3]"]);
        let asked = fed.infer(tensor(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])).into_future();
        let answer = bounded("it is answered", asked).await.unwrap();
        assert_eq!(answer["y"], tensor(&[2, 3], &[11.0, 22.5, 27.0, 41.0, 52.5, 57.0]));
        let brought = [("x", tensor(&[1, 3], &[0.0; 3])), ("w.1", tensor(&[1, 3], &[0.0; 3]))];
        let refused = fed.infer(brought).await.unwrap_err();
        assert!(refused.to_string().contains("no input `w.1`; inputs: `x`"), "{refused}");
        fed.drain().await;
        let w = |model: &ModelBuilder| model.clone().constant("w.1", 0.5_f32);
        for (model, words) in [
            (w(&model), &["single value", "rate"][..]),
            (w(&model).constant("rate", "fast"), &["the constant for input `rate`", "i64"]),
            (w(&model).constant("rate", 1).constant("z", 2), &["no input `z`"]),
            (w(&model).constant("rate", 1).constant("x", 2), &["constants alone"]),
        ] {
            let refused = model.start().await.err().unwrap().to_string();
            assert!(words.iter().all(|words| refused.contains(words)), "{refused}");
        }
    });
}

#[test]
fn what_cannot_be_served_is_told_before_anything_runs() {
    audited(async {
        let place = Workplace::new();
        let missing = served(&place, &place.models().join("none.onnx")).await.start().await.err().unwrap();
        let missing = missing.to_string();
        assert!(missing.contains("none.onnx") && missing.contains("does not exist"), "{missing}");
        let file = models::affine(&place.models(), &[3]).unwrap();
        let model = served(&place, &file).await;
        let refused = |model: ModelBuilder| async { model.start().await.err().unwrap().to_string() };
        let unknown = refused(model.clone().set("stages.model.batch.most", 4)).await;
        assert!(unknown.contains("most"), "{unknown}");
        let odd = refused(model.clone().shape("z", [3])).await;
        assert!(odd.contains("no input `z`") && odd.contains("`x`"), "{odd}");
        let other = refused(model.clone().shape("x", [4])).await;
        assert!(other.contains("[4]") || other.contains("another shape"), "{other}");
        let mut broken = place.options();
        broken.launcher = Some(Arc::new(place.faulty_workers(&[("ORCHESTRA_FAULT", "load-failed")])));
        let broken = orchestra(broken).build().await.unwrap().model(&file).devices(["cpu"]);
        let broken = refused(broken).await;
        assert!(broken.contains("no device is left for stage `model`"), "{broken}");
        // A model that has ended says why.
        let model = start(&place, model).await.unwrap();
        bounded("the model ends", model.drain()).await;
        let over = model.infer(tensor(&[1, 3], &[0.0; 3])).await;
        assert_eq!(over, Err(RequestError::Closed("it was drained".to_owned())));
    });
}

/// Requests of several callers while the model is replaced again and again: each is answered, with what the model of its time gives. What this program
/// holds after the last time is what it held after the first tenth.
#[test]
fn a_model_is_replaced_under_load_without_a_request_that_fails_and_without_growth() {
    let reloads = scaled(1_000, 20);
    // Allocators keep pages as they like. A tree that stayed would take more than its part of this each time.
    let slack = scaled(32 << 20, 24 << 20);
    audited(async {
        let place = Workplace::new();
        let file = models::affine(&place.models(), &[3]).unwrap();
        let model = start(&place, served(&place, &file).await.workers(1)).await.unwrap();
        let is_over = AtomicBool::new(false);
        let callers = (0..4).map(|caller| {
            let (model, is_over) = (model.clone(), &is_over);
            async move {
                let mut n_answers = 0_usize;
                while !is_over.load(Ordering::Relaxed) {
                    let value = caller as f32 * 1000.0 + (n_answers % 1000) as f32;
                    let answer = model.infer(tensor(&[2, 3], &[value; 6])).await.unwrap();
                    assert_eq!(answer["y"], tensor(&[2, 3], &[2.0 * value + 1.0; 6]));
                    n_answers += 1;
                }
                n_answers
            }
        });
        let reloads = async {
            let mut held = 0;
            for n in 1..=reloads {
                bounded("the model is replaced", model.reload()).await.unwrap();
                assert_eq!(place.workers().len(), 1, "the one before has ended");
                if n == reloads / 10 {
                    held = held_bytes();
                }
            }
            place.watch_flow(model.tree().observer());
            let now = held_bytes();
            println!("{reloads} reloads: {} KiB after a tenth, {} KiB at the end", held >> 10, now >> 10);
            assert!(now < held + slack, "{held} bytes after a tenth, {now} at the end");
            is_over.store(true, Ordering::Relaxed);
        };
        let (answers, ()) = join(join_all(callers), reloads).await;
        assert!(answers.iter().all(|n_answers| *n_answers > 0), "{answers:?}");
        // One that cannot be started leaves the one in use.
        std::fs::write(&file, b"no model").unwrap();
        assert!(model.reload().await.is_err());
        assert!(model.infer(tensor(&[1, 3], &[0.0; 3])).await.is_ok());
        bounded("the model ends", model.drain()).await;
        assert_eq!(place.workers(), []);
    });
}

/// Memory of this program that no file holds.
fn held_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn a_model_in_which_items_change_each_other_is_refused_by_plans_and_services_of_a_host() {
    audited(async {
        let place = Workplace::new();
        let alone = [("stages.model.batch.max", "1")];
        let plain = models::less_the_mean(&place.models(), &[3]).unwrap();
        let behind_trap = models::less_the_mean_behind_trap(&place.models(), &[3]).unwrap();
        let operators = format!("[{:?}]", trap_library().unwrap());
        let gate = format!("[{:?}]", place.path("gate"));
        let of_trap = [("models.model.custom_ops", &*operators), ("models.model.sandbox_write", &*gate)];
        for (model, keys) in [(plain, &[][..]), (behind_trap, &of_trap[..])] {
            let with = |keys: &[(&str, &str)]| {
                let options = place.options();
                let keys: Vec<(String, SettingValue)> =
                    keys.iter().map(|(key, value)| ((*key).to_owned(), SettingValue::toml(*value))).collect();
                let file = model.clone();
                async move {
                    let model = orchestra(options).build().await.unwrap().model(file).devices(["cpu"]);
                    keys.into_iter().fold(model, |model, (key, value)| model.set(key, value))
                }
            };
            let refused = with(keys).await.start().await.err().unwrap().to_string();
            let words = ["output `y` of model `model` has no row for each item", "batch = { max = 1 }"];
            assert!(words.iter().all(|words| refused.contains(words)), "{refused}");
            let model = start(&place, with(&[keys, &alone].concat()).await).await.unwrap();
            let request = model.infer(tensor(&[2, 3], &[1.0, 2.0, 3.0, 40.0, 50.0, 60.0])).into_future();
            let answer = bounded("it is answered", request).await.unwrap();
            assert_eq!(answer["y"], tensor(&[2, 3], &[0.0; 6]), "each is its own mean");
            model.drain().await;
        }
    });
}

#[test]
fn a_host_that_names_no_worker_is_told_so_and_starts_nothing_of_itself() {
    audited(async {
        let place = Workplace::reading(1, ("affine", ""), 4, |folder| models::affine(folder, &[1, 32, 32]));
        place.write_workflow();
        let (options, machine) = (PlanOptions::default(), orchestra_launch::machine());
        // A test program is no worker: started as one, it would run its tests once more.
        let planned = orchestra_launch::plan_file(&place.path("workflow.toml"), &options, &machine).unwrap();
        let (plan, said) = (planned.0.unwrap(), planned.1.render(RenderStyle::Plain));
        for words in ["not confirmed that output `y`", "has not called `orchestra::run_if_worker()`"] {
            assert!(said.contains(words), "{said}");
        }
        let error = orchestra_launch::start(plan, StartOptions::default()).await.err().unwrap().to_string();
        assert!(
            error.contains("`orchestra::run_if_worker()`") && error.contains("worker_program(path)"),
            "{error}"
        );
    });
}
