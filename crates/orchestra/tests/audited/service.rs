//! A model served to the program that embeds it: real workers answer requests as a run answers items. What becomes of requests when processes die, `flow.rs` says.

use std::sync::Arc;

use crate::common::{Workplace, audited, bounded};
use futures::future::join_all;
use orchestra::{
    DType, FlowError, InferError, PlanOptions, RenderStyle, ServeOptions, Service, StartOptions, Tensor,
    serve_model,
};
use orchestra_testkit::images::picture;
use orchestra_testkit::{models, trap_library};

const ITEMS: u64 = 48;

fn options(place: &Workplace, keys: &[(&str, &str)]) -> ServeOptions {
    let mut options = ServeOptions { start: place.options(), ..ServeOptions::default() };
    options.plan.devices = Some(vec!["cpu".to_owned()]);
    options.plan.set = keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    options
}

async fn serve(model: &std::path::Path, options: ServeOptions) -> Result<Service, FlowError> {
    bounded("the service starts", serve_model(model, &orchestra::machine(), options)).await
}

/// Some test pictures as the rows of one request.
fn pictures(indices: &[u64]) -> Tensor {
    let pixels = indices.iter().flat_map(|index| picture(*index, 32, 32).into_raw());
    tensor(&[indices.len(), 1, 32, 32], &pixels.map(f32::from).collect::<Vec<_>>())
}

fn tensor(shape: &[usize], values: &[f32]) -> Tensor {
    let data = values.iter().copied().flat_map(f32::to_ne_bytes).collect();
    Tensor { dtype: DType::F32, shape: shape.to_vec(), data }
}

fn f32s(tensor: &Tensor) -> Vec<f32> {
    assert_eq!(tensor.dtype, DType::F32);
    tensor.data.chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect()
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
        let service = serve(&model, options(&place, &[("stages.model.batch.max", "4")])).await.unwrap();
        assert_eq!(service.inputs()[0].fixed_row(), Some(vec![1, 32, 32]));
        assert_eq!(service.outputs()[0].name, "blocks");
        // One row, and several, that share batches.
        let requests: Vec<Vec<u64>> = (0..ITEMS).map(|i| vec![i]).chain([(0..ITEMS).collect()]).collect();
        let asked = requests.iter().map(|items| async { service.infer(&[pictures(items)]).await });
        for (items, answer) in requests.iter().zip(bounded("all are answered", join_all(asked)).await) {
            let answer = answer.unwrap();
            assert_eq!(answer[0].shape, [items.len(), 32]);
            let expected: Vec<f32> = items.iter().flat_map(|item| written[*item as usize].clone()).collect();
            assert_eq!(f32s(&answer[0]), expected, "{items:?}");
        }
        bounded("the service ends", service.close()).await;
        assert_eq!(place.workers(), []);
    });
}

#[test]
fn several_inputs_and_outputs_and_open_shapes_are_served() {
    audited(async {
        let place = Workplace::new();
        let model = models::two_in_two_out(&place.models(), &[2]).unwrap();
        let service = serve(&model, options(&place, &[])).await.unwrap();
        let rows = |values: [f32; 6]| tensor(&[3, 2], &values);
        let request = [rows([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), rows([10.0, 20.0, 30.0, 40.0, 50.0, 60.0])];
        let answer = bounded("it is answered", service.infer(&request)).await.unwrap();
        let names: Vec<&str> = service.outputs().iter().map(|spec| &*spec.name).collect();
        assert_eq!(names, ["sum", "difference"]);
        assert_eq!(answer[0], rows([11.0, 22.0, 33.0, 44.0, 55.0, 66.0]));
        assert_eq!(answer[1], rows([-9.0, -18.0, -27.0, -36.0, -45.0, -54.0]));
        let refused = service.infer(&request[..1]).await.unwrap_err();
        assert!(refused.to_string().contains("has 1 tensors, expected 2"), "{refused}");
        service.close().await;

        // How many columns there are, only the run knows: rows of one request may differ.
        let model = models::positive_columns(&place.models(), 3).unwrap();
        let service = serve(&model, options(&place, &[])).await.unwrap();
        let answer =
            bounded("it is answered", service.infer(&[tensor(&[1, 3], &[1.0, -1.0, 2.0])])).await.unwrap();
        assert_eq!(f32s(&answer[0]), [1.0, 2.0]);
        service.close().await;
    });
}

#[test]
fn what_cannot_be_served_is_told_before_anything_runs() {
    audited(async {
        let place = Workplace::new();
        let error =
            |options| async { serve(&place.models().join("none.onnx"), options).await.err().unwrap() };
        let missing = error(options(&place, &[])).await.to_string();
        assert!(missing.contains("none.onnx") && missing.contains("does not exist"), "{missing}");
        let model = models::affine(&place.models(), &[3]).unwrap();
        let refused = |options| async { serve(&model, options).await.err().unwrap().to_string() };
        let unknown = refused(options(&place, &[("stages.model.batch.most", "4")])).await;
        assert!(unknown.contains("most"), "{unknown}");
        let mut odd = options(&place, &[]);
        odd.shapes = vec![("z".to_owned(), vec![3])];
        let odd = refused(odd).await;
        assert!(odd.contains("no input `z`") && odd.contains("`x`"), "{odd}");
        let mut other = options(&place, &[]);
        other.shapes = vec![("x".to_owned(), vec![4])];
        let other = refused(other).await;
        assert!(other.contains("[4]") || other.contains("another shape"), "{other}");
        let mut broken = options(&place, &[]);
        broken.start.launcher = Some(Arc::new(place.faulty_workers(&[("ORCHESTRA_FAULT", "load-failed")])));
        let broken = refused(broken).await;
        assert!(broken.contains("no device is left for stage `model`"), "{broken}");
        // A service that has ended says why.
        let service = serve(&model, options(&place, &[])).await.unwrap();
        service.end("it is late");
        let over = bounded("it is answered", service.infer(&[tensor(&[1, 3], &[0.0; 3])])).await;
        assert_eq!(over, Err(InferError::Over("it is late".to_owned())));
        service.close().await;
    });
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
            let refused = serve(&model, options(&place, keys)).await.err().unwrap().to_string();
            let words = ["output `y` of model `model` has no row for each item", "batch = { max = 1 }"];
            assert!(words.iter().all(|words| refused.contains(words)), "{refused}");
            let service = serve(&model, options(&place, &[keys, &alone].concat())).await.unwrap();
            let request = [tensor(&[2, 3], &[1.0, 2.0, 3.0, 40.0, 50.0, 60.0])];
            let answer = bounded("it is answered", service.infer(&request)).await.unwrap();
            assert_eq!(answer[0], tensor(&[2, 3], &[0.0; 6]), "each is its own mean");
            service.close().await;
        }
    });
}

#[test]
fn a_host_that_names_no_worker_is_told_so_and_starts_nothing_of_itself() {
    audited(async {
        let place = Workplace::reading(1, ("affine", ""), 4, |folder| models::affine(folder, &[1, 32, 32]));
        place.write_workflow();
        let (options, machine) = (PlanOptions::default(), orchestra::machine());
        // A test program is no worker: started as one, it would run its tests once more.
        let planned = orchestra::plan_file(&place.path("workflow.toml"), &options, &machine).unwrap();
        let (plan, said) = (planned.0.unwrap(), planned.1.render(RenderStyle::Plain));
        for words in ["not confirmed that output `y`", "has not called `orchestra::run_if_worker()`"] {
            assert!(said.contains(words), "{said}");
        }
        let error = orchestra::start(plan, StartOptions::default()).await.err().unwrap().to_string();
        assert!(
            error.contains("`orchestra::run_if_worker()`") && error.contains("`StartOptions::launcher`"),
            "{error}"
        );
    });
}
