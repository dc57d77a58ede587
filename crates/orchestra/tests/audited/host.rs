//! What is a host's own stays as it was: its limits, group, environment and signals, its subscriber, its ONNX Runtime, and its executor, however small that is.

use std::collections::BTreeMap;
use std::fs;
use std::future::IntoFuture as _;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{
    ONE_PIXEL_PER_BLOCK, ROW, Workplace, alone, audited, audited_without_runtime, bounded, until,
};
use crate::orchestra;
use ::orchestra::{Item, Tensor, Workflow};
use futures::future::join_all;
use orchestra_core::row_bytes::StoredValue;
use orchestra_launch::library::{Env, Flavor, LibraryRequest, Silent, find_or_fetch};
use orchestra_testkit::models;
use ort::session::Session;
use tokio::runtime::Builder;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber, dispatcher};

struct HostSubscriber;

static HEARD: AtomicU64 = AtomicU64::new(0);

impl Subscriber for HostSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("orchestra") && *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        HEARD.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// What this process has of the system, and what its children inherit.
fn own() -> BTreeMap<&'static str, String> {
    let read = |file: &str| fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    // Of this thread: that of the harness blocks all signals while it starts one for another test.
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let stat = read("stat");
    let of_status =
        |name: &str| status.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    // Behind the name of the program: of the fields from the third on, `nice` and the policy of the scheduler.
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    BTreeMap::from([
        ("limits", read("limits")),
        ("control group", read("cgroup")),
        ("readiness to be killed", read("oom_score_adj")),
        ("cores", of_status("Cpus_allowed_list")),
        ("umask", of_status("Umask")),
        ("privileges", of_status("CapEff") + &of_status("NoNewPrivs") + &of_status("Seccomp:")),
        ("signals", of_status("SigBlk") + &of_status("SigIgn") + &of_status("SigCgt")),
        ("priority", format!("nice {}, policy {}", fields[16], fields[38])),
        ("environment", format!("{:?}", std::env::vars_os().collect::<Vec<_>>())),
        ("folder", format!("{:?}", std::env::current_dir())),
        ("subscriber", dispatcher::get_default(|of| of.is::<HostSubscriber>()).to_string()),
    ])
}

/// Libraries of ONNX Runtime in this process, by their files.
fn runtimes() -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut files: Vec<String> =
        maps.lines().filter_map(|line| Some(line[line.find('/')?..].to_owned())).collect();
    files.retain(|file| file.contains("onnxruntime"));
    files.sort();
    files.dedup();
    files
}

/// Asks a model, runs a workflow with a command in it, and ends both.
async fn all_is_used(place: &Workplace) {
    let orchestra = orchestra(place.options()).build().await.unwrap();
    let file = models::affine(&place.models(), &[3]).unwrap();
    let model = bounded("the model starts", orchestra.model(&file).devices(["cpu"]).start()).await.unwrap();
    let answer = model.infer(Tensor::new([1, 3], vec![1.0_f32, 2.0, 3.0]).unwrap()).await.unwrap();
    assert_eq!(answer["y"].as_slice::<f32>().unwrap(), [3.0, 5.0, 7.0]);
    bounded("it is replaced", model.reload()).await.unwrap();
    let workflow = Workflow::open(place.path("workflow.toml")).unwrap().output(place.out());
    let report = bounded("the run ends", orchestra.run(workflow)).await.unwrap();
    assert!(report.is_complete(), "{:?}", report.problems());
    bounded("the model ends", model.drain()).await;
}

fn workplace() -> Workplace {
    let mut place = Workplace::with_pictures(8);
    let model = models::identity(&place.models(), ::orchestra::DType::F32, &ROW).unwrap();
    place
        .add("[tasks.note]\ncommand = [\"true\"]\ndevice = \"none\"")
        .model("same", model, "")
        .image("pixels", "scans", ONE_PIXEL_PER_BLOCK)
        .infer("read", "pixels", "same", 4)
        .sink("all", "read", "")
        .devices(1);
    place.write_workflow();
    place
}

#[test]
fn a_host_keeps_what_is_its_own_and_its_onnx_runtime_is_not_shared() {
    static SUBSCRIBED: Once = Once::new();
    SUBSCRIBED.call_once(|| tracing::subscriber::set_global_default(HostSubscriber).unwrap());
    audited(async {
        let place = workplace();
        let (before, heard) = (own(), HEARD.load(Ordering::Relaxed));
        all_is_used(&place).await;
        assert_eq!(runtimes(), [""; 0], "models run in processes of their own");
        assert!(HEARD.load(Ordering::Relaxed) > heard, "logs go to the subscriber of the host");
        assert_eq!(own(), before);
    });
    // Outside of the audit: what ONNX Runtime opens is open as long as the process.
    let while_it_loads = alone();
    let request = LibraryRequest { flavor: Flavor::Cpu, explicit: None, offline: false };
    let library = find_or_fetch(&request, &Env::from_process(), &mut Silent).unwrap();
    let environment = ort::init_from(&library.path).unwrap().with_name("host").build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = models::affine(folder.path(), &[3]).unwrap();
    let mut session = Session::builder(&environment).unwrap().commit_from_file(&file).unwrap();
    let mut answers = move || {
        let x = ort::value::Tensor::from_array(([1_usize, 3], vec![4.0_f32, 5.0, 6.0])).unwrap();
        let outputs = session.run(ort::inputs!["x" => x]).unwrap();
        outputs["y"].try_extract_tensor::<f32>().unwrap().1 == [9.0, 11.0, 13.0]
    };
    assert!(answers());
    drop(while_it_loads);
    audited(async {
        let place = workplace();
        let (before, loaded) = (own(), runtimes());
        all_is_used(&place).await;
        assert!(answers(), "its session goes on");
        assert_eq!((own(), runtimes()), (before, loaded));
    });
}

/// Three models in a row with little memory: the rows of each wait for places in the next, and none of their batches is quick.
fn in_a_row() -> Workplace {
    const SIDE: usize = 64;
    let mut place = Workplace::new();
    let model = models::affine(&place.models(), &[SIDE, SIDE]).unwrap();
    place
        .add(&format!("[sources.rows]\nkind = \"request\"\ncolumns = {{ x = \"f32[{SIDE}, {SIDE}]\" }}"))
        .model("affine", model, "workers = 1")
        .infer("first", "rows", "affine", 8)
        .infer("second", "first", "affine", 8)
        .infer("third", "second", "affine", 8)
        .add("[sinks.all]\nkind = \"reply\"\nfrom = \"third\"\n[limits]\nmemory = \"2MiB\"")
        .devices(1);
    place.write_workflow();
    place
}

#[test]
fn the_smallest_executors_of_a_host_wait_for_nothing_in_vain() {
    for mut executor in [Builder::new_multi_thread(), Builder::new_current_thread()] {
        audited_without_runtime(move || {
            let runtime = executor.worker_threads(1).max_blocking_threads(1).enable_all().build().unwrap();
            let handle = runtime.handle().clone();
            // In the only thread that may block: orchestra has none of them.
            let all = runtime.spawn_blocking(move || handle.block_on(a_graph_a_model_and_a_run()));
            runtime.block_on(all).unwrap();
        });
    }
}

async fn a_graph_a_model_and_a_run() {
    let place = in_a_row();
    let workflow = Workflow::open(place.path("workflow.toml")).unwrap();
    let orchestra = orchestra(place.options()).build().await.unwrap();
    bounded("it is planned", orchestra.check(&workflow)).await.unwrap();
    let flow = bounded("it starts", orchestra.flow(workflow).start()).await.unwrap();
    place.watch_flow(flow.tree().observer());
    let row = |n: u64| Tensor::new([64, 64], vec![n as f32; 64 * 64]).unwrap();
    let asked = (0..400).map(|n| flow.process(Item::columns([("x", row(n).into())])).into_future());
    for (n, end) in bounded("all are answered", join_all(asked)).await.into_iter().enumerate() {
        let records = end.unwrap();
        let values = records[0].values().unwrap();
        let StoredValue::Tensor { data, .. } = &values[0] else { panic!("{values:?}") };
        assert_eq!(data[..4], (8.0 * n as f32 + 7.0).to_ne_bytes());
    }
    bounded("it is replaced", flow.reload()).await.unwrap();
    bounded("it ends", flow.drain()).await;
    let run = workplace();
    all_is_used(&run).await;
    until("all processes are gone", || run.workers().is_empty() && place.workers().is_empty()).await;
}
