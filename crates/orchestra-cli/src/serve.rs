//! `orchestra serve`: the models of a file, and its graph, behind HTTP and gRPC. What answers is the library's.

mod listen;

use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use orchestra::{Orchestra, SettingValue, StartError, Tracer, Workflow};
use orchestra_launch::plan::TelemetryPlan;
use orchestra_launch::telemetry::{LogSettings, Telemetry, TraceSettings};
use orchestra_plan::{PlanOptions, RenderStyle, ServeSettings, serve_settings, token_of};
use orchestra_serve::{Service, ServiceLimits, item_parents};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinError;

use self::listen::{Listening, Spoken};

use crate::Failed;
use crate::args::{ServeArgs, Verbosity};
use crate::exit_code::ExitCode;
use crate::live_page::{self, LivePage, StatusOf};
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
        files: None,
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
    let (workflow, settings, token) = read(args)?;
    raise_open_files();
    // An address that is taken is told before models are loaded.
    let listen = async |address: &str| {
        Listening::at(address).await.map_err(|error| Failed::new(ExitCode::TryAgain, error))
    };
    let (http, grpc) = (listen(&settings.http).await?, listen(&settings.grpc).await?);
    let page = args.page.as_deref().map(live_page::listen).transpose()?;
    let addresses = format!("{}, gRPC at {}", http.url(), grpc.address);
    let service = tokio::select! {
        service = start(args, workflow, &settings, token, tracer) => service?,
        () = signals.next() => return Ok(ExitCode::Done),
    };
    let page = page.map(|page| live_page(page, &service)).transpose()?;
    let (stop, stopped) = watch::channel(());
    let within = settings.read_timeout;
    let mut http = tokio::spawn(http.serve(Spoken::Http1, service.http(), within, stopped.clone()));
    let mut grpc = tokio::spawn(grpc.serve(Spoken::Http2, service.grpc(), within, stopped));
    if !verbosity.quiet {
        let names = service.names().join("`, `");
        page.iter().for_each(|page| stderr::say_line(&page.in_words()));
        stderr::say_line(&format!("serving `{names}`: {addresses}"));
    }
    loop {
        tokio::select! {
            () = signals.next() => break,
            ended = &mut http => return Err(not_listening("HTTP", ended)),
            ended = &mut grpc => return Err(not_listening("gRPC", ended)),
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
        drop((http.await, grpc.await));
    };
    tokio::select! {
        () = ended => {}
        () = signals.next() => {}
    }
    Ok(ExitCode::Done)
}

fn live_page(listener: std::net::TcpListener, service: &Service) -> Result<LivePage, Failed> {
    let status = |name: &str| -> Box<StatusOf> {
        let (service, name) = (service.clone(), name.to_owned());
        Box::new(move || serde_json::from_value(service.status(&name)?.json()).ok())
    };
    LivePage::of_services(listener, service.names().into_iter().map(|name| (name, status(name))))
}

/// The end of a listener that was not stopped.
fn not_listening(what: &str, ended: Result<(), JoinError>) -> Failed {
    let why = ended.err().map_or_else(String::new, |error| format!(": {error}"));
    Failed::new(ExitCode::TryAgain, anyhow!("connections over {what} are not taken any more{why}"))
}

async fn start(
    args: &ServeArgs,
    workflow: Workflow,
    settings: &ServeSettings,
    token: Option<String>,
    tracer: Option<Arc<dyn Tracer>>,
) -> Result<Service, Failed> {
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
        service = service.model(name, model.queue(settings.queue));
    }
    if has_graph {
        let name = args.workflow.file.file_stem().unwrap_or_default().to_string_lossy();
        service = service.graph(name, orchestra.flow(workflow).queue(settings.queue));
    }
    let mut limits = ServiceLimits::default();
    limits.deadline = settings.deadline;
    limits.read_timeout = Some(settings.read_timeout);
    limits.message_bytes = usize::try_from(settings.message.0).unwrap_or(usize::MAX);
    service = service.limits(limits);
    if let Some(token) = token {
        service = service.token(token);
    }
    service.start().await.map_err(not_started)
}

/// The file, and `[serve]` in it as the flags change it.
fn read(args: &ServeArgs) -> Result<(Workflow, ServeSettings, Option<String>), Failed> {
    let of = &args.workflow;
    let wrong = |error| Failed::new(ExitCode::BadFile, error);
    let workflow = Workflow::open(&of.file).context("cannot read the workflow file").map_err(wrong)?;
    let text = std::fs::read_to_string(&of.file).context("cannot read the workflow file").map_err(wrong)?;
    let set = of.set.iter().map(|set| (set.key.clone(), set.value.clone())).collect();
    let options = PlanOptions { set, ..PlanOptions::default() };
    let file = std::path::absolute(&of.file).map_err(|error| wrong(error.into()))?;
    let (mut settings, mut token) = serve_settings(&text, &file, &options)
        .map_err(|found| wrong(anyhow!("{}", found.render(RenderStyle::Plain).trim_end())))?;
    if let Some(file) = &args.token_file {
        token = Some(token_of(file).map_err(|why| wrong(anyhow!(why)))?);
    }
    settings.deadline = args.deadline.or(settings.deadline);
    for (of_file, flag) in [(&mut settings.http, &args.http), (&mut settings.grpc, &args.grpc)] {
        flag.iter().for_each(|flag| of_file.clone_from(flag));
    }
    let devices = of.devices.iter().cloned();
    let workflow = if of.devices.is_empty() { workflow } else { workflow.devices(devices) };
    let set = |workflow: Workflow, set: &crate::args::SetArg| {
        workflow.set(&*set.key, SettingValue::toml(&*set.value))
    };
    Ok((of.set.iter().fold(workflow, set), settings, token))
}

fn not_started(error: StartError) -> Failed {
    let code = match &error {
        StartError::Workflow(_) | StartError::Options(_) => ExitCode::BadFile,
        StartError::OnnxRuntime(_) => ExitCode::Unavailable,
        _ => ExitCode::TryAgain,
    };
    Failed::new(code, error)
}

/// Each connection is an open file. Where the bound cannot be raised, some connections wait.
fn raise_open_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::debug!(%error, "the bound on open files stays");
    }
}
