//! Every event ends in the file of its pipeline, whenever the files were opened.

use std::path::Path;
use std::sync::{Arc, Mutex};

use orchestra_telemetry::names::{attribute, field, span};
use orchestra_telemetry::{LogSettings, Telemetry, TelemetryGuard};
use tracing::Dispatch;
use tracing_subscriber::filter::LevelFilter;

fn telemetry(settings: &LogSettings) -> (Dispatch, TelemetryGuard, Arc<Mutex<Vec<String>>>) {
    let (dispatch, guard) = Telemetry::build(settings, None).unwrap().into_parts();
    let shown = Arc::new(Mutex::new(Vec::new()));
    let sink = shown.clone();
    guard.terminal().redirect(move |line| sink.lock().unwrap().push(line.to_owned()));
    (dispatch, guard, shown)
}

fn read(folder: &Path, file: &str) -> String {
    std::fs::read_to_string(folder.join(file)).unwrap()
}

#[test]
fn events_go_to_the_file_of_their_pipeline() {
    let folder = tempfile::tempdir().unwrap();
    let (dispatch, guard, _) = telemetry(&LogSettings::default());
    guard.log_files().open(folder.path(), &["scans", "photos"]).unwrap();
    tracing::dispatcher::with_default(&dispatch, || {
        tracing::info!(pipeline = "scans", "by field");
        let pipeline = tracing::info_span!("pipeline", pipeline = "photos");
        let batch = tracing::info_span!(parent: &pipeline, span::BATCH, { attribute::BATCH_SIZE } = 8);
        tracing::info!(parent: &batch, "by span");
        batch.in_scope(|| tracing::info!({ field::PIPELINE } = "scans", "own field first"));
        let attribute = tracing::info_span!(span::BATCH, { attribute::PIPELINE } = "scans");
        attribute.in_scope(|| tracing::info!("by attribute"));
        let late = tracing::info_span!("pipeline", pipeline = tracing::field::Empty);
        late.record("pipeline", "photos");
        late.in_scope(|| tracing::info!("by late field"));
        tracing::info!("by nothing");
        tracing::info!(pipeline = "unknown", "by another name");
    });
    let messages = |file: &str| -> Vec<String> {
        read(folder.path(), file).lines().map(|l| l.split(": ").nth(1).unwrap().to_owned()).collect()
    };
    assert_eq!(
        messages("scans.log"),
        [
            "by field pipeline=scans",
            "own field first pipeline=scans batch.size=8",
            "by attribute pipeline=scans"
        ]
    );
    assert_eq!(
        messages("photos.log"),
        ["by span batch.size=8 pipeline=photos", "by late field pipeline=photos"]
    );
    assert_eq!(messages("run.log"), ["by nothing", "by another name pipeline=unknown"]);
}

#[test]
fn lines_from_before_the_files_were_opened_are_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    let (dispatch, guard, _) = telemetry(&LogSettings::default());
    tracing::dispatcher::with_default(&dispatch, || {
        tracing::info!(pipeline = "scans", "early");
        tracing::info!("early, too");
        guard.log_files().open(&folder.path().join("deep/logs"), &["scans"]).unwrap();
        tracing::info!(pipeline = "scans", "late");
    });
    let folder = folder.path().join("deep/logs");
    let scans = read(&folder, "scans.log");
    assert!(scans.find("early").unwrap() < scans.find("late").unwrap(), "{scans}");
    assert!(read(&folder, "run.log").contains("early, too"));
    assert_eq!(guard.shutdown().logs.lines_lost, 0);
}

#[test]
fn a_resumed_run_continues_its_files() {
    let folder = tempfile::tempdir().unwrap();
    for message in ["first", "second"] {
        let (dispatch, guard, _) = telemetry(&LogSettings::default());
        guard.log_files().open(folder.path(), &["scans"]).unwrap();
        tracing::dispatcher::with_default(&dispatch, || tracing::info!(pipeline = "scans", "{message}"));
    }
    let text = read(folder.path(), "scans.log");
    assert_eq!(text.lines().count(), 2);
    assert!(text.contains("first") && text.contains("second"));
}

#[test]
fn no_line_waits_where_there_will_be_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let (dispatch, guard, shown) = telemetry(&LogSettings { files: None, ..LogSettings::default() });
    tracing::dispatcher::with_default(&dispatch, || tracing::warn!("seen"));
    guard.log_files().open(folder.path(), &[]).unwrap();
    assert_eq!((read(folder.path(), "run.log"), shown.lock().unwrap().len()), (String::new(), 1));
}

#[test]
fn the_terminal_shows_warnings_while_the_files_hold_more() {
    let folder = tempfile::tempdir().unwrap();
    let (dispatch, guard, shown) = telemetry(&LogSettings::default());
    guard.log_files().open(folder.path(), &[]).unwrap();
    tracing::dispatcher::with_default(&dispatch, || {
        tracing::info!("started");
        tracing::warn!(device = "cuda:0", "worker died and is replaced");
        tracing::debug!("detail");
    });
    assert_eq!(*shown.lock().unwrap(), ["warning: worker died and is replaced (device=cuda:0)"]);
    let run = read(folder.path(), "run.log");
    assert!(run.contains("started") && run.contains("worker died") && !run.contains("detail"), "{run}");
}

#[test]
fn the_noise_of_others_is_kept_out() {
    let settings = LogSettings { terminal: LevelFilter::TRACE, ..LogSettings::default() };
    let (dispatch, _guard, shown) = telemetry(&settings);
    tracing::dispatcher::with_default(&dispatch, || {
        tracing::error!(target: "ractor::actor", "off");
        tracing::error!(target: "h2::client", "off");
        tracing::info!(target: "ort::logging", "below warn");
        tracing::warn!(target: "ort::logging", "kept");
        tracing::trace!(target: "orchestra_runtime", "kept, too");
    });
    assert_eq!(*shown.lock().unwrap(), ["warning: kept", "trace: kept, too"]);
}

#[test]
fn the_users_filter_overrides_both_outputs() {
    let folder = tempfile::tempdir().unwrap();
    let settings = LogSettings { filter: Some("error,mine=debug".into()), ..LogSettings::default() };
    let (dispatch, guard, shown) = telemetry(&settings);
    guard.log_files().open(folder.path(), &[]).unwrap();
    tracing::dispatcher::with_default(&dispatch, || {
        tracing::warn!("hidden");
        tracing::debug!(target: "mine", "shown");
    });
    assert_eq!(*shown.lock().unwrap(), ["debug: shown"]);
    assert_eq!(read(folder.path(), "run.log").lines().count(), 1);
}
