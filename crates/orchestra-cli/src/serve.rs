//! `orchestra serve`: the models of a file, and its graph, behind HTTP and gRPC. What answers is the library's.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use axum::Router;
use axum::serve::ListenerExt as _;
use orchestra::{Orchestra, SettingValue, StartError, Tracer, Workflow};
use orchestra_launch::plan::TelemetryPlan;
use orchestra_launch::telemetry::{LogSettings, Telemetry, TraceSettings};
use orchestra_serve::{Service, ServiceLimits, item_parents};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};

use crate::Failed;
use crate::args::{ServeArgs, Verbosity};
use crate::exit_code::ExitCode;
use crate::signals::Signals;
use crate::stderr;
use crate::surroundings::Surroundings;

pub fn serve(
    args: &ServeArgs,
    verbosity: Verbosity,
    surroundings: &Surroundings,
) -> Result<ExitCode, Failed> {
    let logs = LogSettings {
        terminal: verbosity.terminal_level(),
        filter: std::env::var("RUST_LOG").ok(),
        color: surroundings.color(),
        ..LogSettings::default()
    };
    let configured = TelemetryPlan { otlp: args.otlp.clone(), ..TelemetryPlan::default() };
    let traces = TraceSettings::resolve(&configured, |name| std::env::var(name).ok());
    let traces = traces.map_err(|error| Failed::new(ExitCode::Usage, error))?;
    let logs = Telemetry::build(&logs, traces.settings.as_ref()).and_then(Telemetry::install);
    let guard = logs.map_err(|error| Failed::new(ExitCode::Usage, error))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failed::new(ExitCode::TryAgain, error))?;
    let tracer = guard.tracer_below(item_parents());
    let served = runtime.block_on(answer_until_told(args, tracer, verbosity));
    guard.shutdown();
    served
}

async fn answer_until_told(
    args: &ServeArgs,
    tracer: Option<Arc<dyn Tracer>>,
    verbosity: Verbosity,
) -> Result<ExitCode, Failed> {
    let caught = Signals::caught().and_then(|signals| Ok((signals, signal(SignalKind::hangup())?)));
    let (mut signals, mut hangup) = caught.map_err(|error| Failed::new(ExitCode::TryAgain, error))?;
    // Before models are loaded: whoever has taken the address does not let go of it meanwhile.
    let (http, grpc) = (listen(&args.http).await?, listen(&args.grpc).await?);
    let service = tokio::select! {
        service = start(args, tracer) => service?,
        () = signals.next() => return Ok(ExitCode::Done),
    };
    let (stop, stopped) = watch::channel(());
    let mut http = listening(http, service.http(), stopped.clone())?;
    let mut grpc = listening(grpc, service.grpc(), stopped)?;
    if !verbosity.quiet {
        let names = service.names().join("`, `");
        stderr::say_line(&format!("serving `{names}`: http://{}, gRPC at {}", http.0, grpc.0));
    }
    loop {
        tokio::select! {
            () = signals.next() => break,
            ended = &mut http.1 => return Err(not_listening("HTTP", ended)),
            ended = &mut grpc.1 => return Err(not_listening("gRPC", ended)),
            _ = hangup.recv() => match service.reload().await {
                Ok(()) => tracing::info!("reloaded"),
                Err(error) => tracing::error!(%error, "what is served goes on as it was"),
            },
        }
    }
    if !verbosity.quiet {
        stderr::say_line("stopping: answering what there is (again: stop at once)");
    }
    let ended = async {
        service.drain().await;
        drop(stop);
        drop((http.1.await, grpc.1.await));
    };
    tokio::select! {
        () = ended => {}
        () = signals.next() => {}
    }
    Ok(ExitCode::Done)
}

async fn listen(address: &str) -> Result<TcpListener, Failed> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("cannot listen at `{address}`, which is HOST:PORT"));
    listener.map_err(|error| Failed::new(ExitCode::TryAgain, error))
}

/// Nobody has stopped it.
fn not_listening(what: &str, ended: Result<std::io::Result<()>, JoinError>) -> Failed {
    let why = ended.map(|ended| ended.err().map_or_else(String::new, |error| format!(": {error}")));
    let why = why.unwrap_or_else(|error| format!(": {error}"));
    Failed::new(ExitCode::TryAgain, anyhow!("connections over {what} are not taken any more{why}"))
}

/// Answers connections until it is stopped, and then those requests that have begun.
fn listening(
    listener: TcpListener,
    routes: Router,
    mut stopped: watch::Receiver<()>,
) -> Result<(SocketAddr, JoinHandle<std::io::Result<()>>), Failed> {
    let address = listener.local_addr().map_err(|error| Failed::new(ExitCode::TryAgain, error))?;
    let task = tokio::spawn(async move {
        // Answers are written whole: nothing is to be waited for.
        let listener = listener.tap_io(|stream| {
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "answers may be late");
            }
        });
        let stop = async move { while stopped.changed().await.is_ok() {} };
        axum::serve(listener, routes).with_graceful_shutdown(stop).await
    });
    Ok((address, task))
}

async fn start(args: &ServeArgs, tracer: Option<Arc<dyn Tracer>>) -> Result<Service, Failed> {
    let workflow = workflow(args).map_err(|error| Failed::new(ExitCode::BadFile, error))?;
    let mut orchestra = Orchestra::builder();
    if let Some(library) = &args.workflow.ort_library {
        orchestra = orchestra.onnxruntime(library);
    }
    if let Some(tracer) = tracer {
        orchestra = orchestra.tracer(tracer);
    }
    if args.workflow.offline {
        orchestra = orchestra.offline();
    }
    let orchestra = orchestra.build().await.map_err(not_started)?;
    let wrong = |error: orchestra::WorkflowError| Failed::new(ExitCode::BadFile, error);
    let mut service = Service::builder();
    let models = orchestra.models(&workflow).map_err(wrong)?;
    let has_graph = workflow.has_graph().map_err(wrong)?;
    if models.is_empty() && !has_graph {
        let what = anyhow!(
            "`{}` has nothing to serve: neither [models.NAME] nor a source of kind `request`",
            args.workflow.file.display()
        );
        return Err(Failed::new(ExitCode::BadFile, what));
    }
    for (name, model) in models {
        service = service.model(name, model);
    }
    if has_graph {
        let name = args.workflow.file.file_stem().unwrap_or_default().to_string_lossy();
        service = service.graph(name, orchestra.flow(workflow));
    }
    let mut limits = ServiceLimits::default();
    limits.deadline = args.deadline;
    service = service.limits(limits);
    if let Some(file) = &args.token_file {
        service = service.token(token(file).map_err(|error| Failed::new(ExitCode::BadFile, error))?);
    }
    service.start().await.map_err(not_started)
}

fn workflow(args: &ServeArgs) -> anyhow::Result<Workflow> {
    let of = &args.workflow;
    let mut workflow = Workflow::open(&of.file).context("cannot read the workflow file")?;
    if !of.devices.is_empty() {
        workflow = workflow.devices(of.devices.iter().cloned());
    }
    let settings = of.set.iter();
    Ok(settings.fold(workflow, |workflow, set| workflow.set(&*set.key, SettingValue::toml(&*set.value))))
}

fn token(file: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read `{}`", file.display()))?;
    match text.trim() {
        "" => Err(anyhow!("`{}` holds no token", file.display())),
        token => Ok(token.to_owned()),
    }
}

fn not_started(error: StartError) -> Failed {
    let code = match &error {
        StartError::Workflow(_) | StartError::Options(_) => ExitCode::BadFile,
        StartError::OnnxRuntime(_) => ExitCode::Unavailable,
        _ => ExitCode::TryAgain,
    };
    Failed::new(code, error)
}
