//! A run as a trace for Perfetto: events of Chrome's JSON, compressed as they are written. It says what the output folder keeps: the lives of workers, attempts
//! at tasks, and what stages and devices did between two statuses. Single items and batches are in no file; traces that are exported have some.

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use orchestra_core::compare_numbers;
use orchestra_launch::{RunStatus, StageStatus, TaskJournal};
use serde::Serialize;
use serde_json::{Value, json};

use crate::gather::{Moment, RunReport};

/// A track belongs to a process of the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Track {
    pid: usize,
    tid: usize,
}

/// Where an arrow begins or ends.
#[derive(Debug, Clone, Copy)]
struct Slice {
    track: Track,
    began: u64,
}

/// Processes of the trace. Each device has one behind them.
const RUN: usize = 1;
const STAGES: usize = 2;
const TASKS: usize = 3;
const FIRST_DEVICE: usize = 4;

#[derive(Serialize)]
struct TraceEvent<'a> {
    name: &'a str,
    ph: &'static str,
    cat: &'static str,
    pid: usize,
    tid: usize,
    /// Microseconds since the first start.
    ts: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<u64>,
    /// Of both ends of an arrow.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    /// An arrow ends at the slice that is open then.
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'static str>,
    args: Value,
}

/// Slices that came in the order of their ends, on as few tracks as have no two at once.
#[derive(Default)]
struct Lanes(Vec<u64>);

impl Lanes {
    fn lane(&mut self, began: u64, ended: u64) -> usize {
        let free = self.0.iter().position(|busy_until| *busy_until <= began);
        let lane = free.unwrap_or(self.0.len());
        if lane == self.0.len() {
            self.0.push(0);
        }
        self.0[lane] = ended;
        lane
    }
}

struct TraceWriter<W> {
    to: W,
    /// Seconds since 1970.
    zero: f64,
    n_events: u64,
    n_flows: u64,
}

/// The trace of a run, as one member of gzip.
///
/// # Errors
/// The journal of its tasks cannot be read.
pub fn trace(report: &RunReport) -> io::Result<Vec<u8>> {
    let zero = report.history.starts.first().map_or(0.0, |start| start.at);
    let to = GzEncoder::new(Vec::new(), Compression::default());
    let mut writer = TraceWriter { to, zero, n_events: 0, n_flows: 0 };
    let about = json!({
        "workflow": report.status.workflow, "run": report.status.run_id, "orchestra": report.history.orchestra, "began": zero,
        "sampled": "Slices of stages and devices are what they did between two statuses, of which a trace has at most 300; arrows between stages are rows of \
                    that time, not single items. Workers and attempts are all there, but of more than 4000 workers only those that died.",
    });
    write!(writer.to, "{{\"displayTimeUnit\":\"ms\",\"otherData\":{about},\"traceEvents\":[")?;
    writer.starts(report)?;
    writer.stages(report)?;
    writer.devices(report)?;
    writer.workers(report)?;
    writer.attempts(report)?;
    writer.to.write_all(b"\n]}\n")?;
    writer.to.finish()
}

impl<W: Write> TraceWriter<W> {
    fn event(&mut self, event: &TraceEvent<'_>) -> io::Result<()> {
        let between: &[u8] = if self.n_events == 0 { b"\n" } else { b",\n" };
        self.n_events += 1;
        self.to.write_all(between)?;
        serde_json::to_writer(&mut self.to, event).map_err(io::Error::from)
    }

    fn at(&self, seconds: f64) -> u64 {
        ((seconds - self.zero).max(0.0) * 1e6) as u64
    }

    fn of(&mut self, ph: &'static str, track: Track, name: &str, ts: u64, args: Value) -> io::Result<()> {
        let Track { pid, tid } = track;
        self.event(&TraceEvent { name, ph, cat: "run", pid, tid, ts, dur: None, id: None, bp: None, args })
    }

    fn name_process(&mut self, pid: usize, name: &str) -> io::Result<()> {
        let track = Track { pid, tid: 0 };
        self.of("M", track, "process_name", 0, json!({ "name": name }))?;
        self.of("M", track, "process_sort_index", 0, json!({ "sort_index": pid }))
    }

    fn name_track(&mut self, track: Track, name: &str) -> io::Result<()> {
        self.of("M", track, "thread_name", 0, json!({ "name": name }))
    }

    fn slice(
        &mut self,
        track: Track,
        name: &str,
        (began, ended): (u64, u64),
        args: Value,
    ) -> io::Result<Slice> {
        let Track { pid, tid } = track;
        let dur = Some(ended.saturating_sub(began));
        let event =
            TraceEvent { name, ph: "X", cat: "run", pid, tid, ts: began, dur, id: None, bp: None, args };
        self.event(&event)?;
        Ok(Slice { track, began })
    }

    /// An arrow from one slice to another, which begins no earlier.
    fn flow(&mut self, name: &str, from: Slice, to: Slice, args: Value) -> io::Result<()> {
        self.n_flows += 1;
        let id = Some(self.n_flows);
        for (ph, Slice { track: Track { pid, tid }, began: ts }, bp) in
            [("s", from, None), ("f", to, Some("e"))]
        {
            let args = args.clone();
            self.event(&TraceEvent { name, ph, cat: "flow", pid, tid, ts, dur: None, id, bp, args })?;
        }
        Ok(())
    }

    fn starts(&mut self, report: &RunReport) -> io::Result<()> {
        let history = &report.history;
        let track = Track { pid: RUN, tid: 1 };
        self.name_process(RUN, "run")?;
        self.name_track(track, "starts")?;
        let mut before = None;
        for (at, start) in history.starts.iter().enumerate() {
            let end = start.exit_code.map_or_else(
                || "no end: killed, or still running".into(),
                |code| format!("exit code {code}"),
            );
            let args = json!({ "end": end });
            let times = (self.at(start.at), self.at(start.until));
            let slice = self.slice(track, &format!("start {}", at + 1), times, args)?;
            if let Some(before) = before.replace(slice) {
                self.flow("goes on", before, slice, json!({}))?;
            }
        }
        for (at, device, why) in &history.losses {
            let ts = self.at(*at);
            self.of("i", track, &format!("{device} lost"), ts, json!({ "why": why }))?;
        }
        let cpu = |moment: &Moment| moment.machine.map_or(0.0, |(busy, _)| busy);
        for (begin, end) in intervals(report) {
            let seconds = (end.at - begin.at()).max(1e-3);
            let (before, now) = (begin.status(), &end.status);
            let ended = now.items.read.saturating_sub(before.items.read.max(now.items.resumed));
            let ts = self.at(end.at);
            self.of("C", track, "items per second", ts, json!({ "items/s": ended as f64 / seconds }))?;
            self.of("C", track, "items in flight", ts, json!({ "items": now.items.in_flight }))?;
            if let Some(before) = begin.moment.filter(|before| before.machine.is_some()) {
                let cores = (cpu(end) - cpu(before)) / seconds;
                self.of("C", track, "busy cores of the machine", ts, json!({ "cores": cores }))?;
            }
        }
        Ok(())
    }

    /// What each stage did between two statuses, with arrows to the stages that read from it.
    fn stages(&mut self, report: &RunReport) -> io::Result<()> {
        let names: Vec<&str> = report.status.stages.iter().map(|stage| &*stage.name).collect();
        self.name_process(STAGES, "stages")?;
        for (at, name) in names.iter().enumerate() {
            self.name_track(Track { pid: STAGES, tid: at + 1 }, name)?;
        }
        let place = |name: &str| names.iter().position(|of| *of == name);
        let edges = report.plan.pipelines.iter().flat_map(|pipeline| {
            let stage = move |node: usize| place(&pipeline.nodes.get(node)?.name);
            pipeline.edges.iter().filter_map(move |edge| Some((stage(edge.from)?, stage(edge.to)?)))
        });
        let edges: Vec<(usize, usize)> = edges.collect();
        for (begin, end) in intervals(report) {
            let mut slices: Vec<Option<(Slice, u64)>> = vec![None; names.len()];
            for (at, name) in names.iter().enumerate() {
                let stage = |status: &RunStatus| {
                    status.stages.iter().find(|stage| stage.name == *name).cloned().unwrap_or_default()
                };
                let (before, now) = (stage(begin.status()), stage(&end.status));
                let Some((words, args)) = stage_did(&before, &now) else { continue };
                let times = (self.at(begin.at()), self.at(end.at));
                let slice = self.slice(Track { pid: STAGES, tid: at + 1 }, &words, times, args)?;
                slices[at] = Some((slice, now.out.saturating_sub(before.out)));
            }
            for (from, to) in &edges {
                if let (Some((from, rows)), Some((to, _))) = (slices[*from], slices[*to])
                    && rows > 0
                {
                    self.flow("rows", from, to, json!({ "rows": rows }))?;
                }
            }
        }
        Ok(())
    }

    /// The batches of each device between two statuses, and what was seen of it.
    fn devices(&mut self, report: &RunReport) -> io::Result<()> {
        for (at, device) in report.status.devices.iter().enumerate() {
            let track = Track { pid: FIRST_DEVICE + at, tid: 1 };
            self.name_process(track.pid, &device.device)?;
            self.name_track(track, "batches")?;
            for (begin, end) in intervals(report) {
                let Some(now) = end.status.devices.get(at) else { continue };
                let before = begin.status().devices.get(at).cloned().unwrap_or_default();
                let (times, batches) =
                    ((self.at(begin.at()), self.at(end.at)), now.batches.saturating_sub(before.batches));
                if batches > 0 {
                    let busy = (now.seconds_busy - before.seconds_busy).max(0.0);
                    let args = json!({ "batches": batches, "seconds_busy": busy });
                    self.slice(track, &counted_batches(batches), times, args)?;
                }
                let seen = [
                    ("utilization", now.utilization.map(|part| json!({ "%": part * 100.0 }))),
                    ("memory", now.memory_used.map(|bytes| json!({ "bytes": bytes }))),
                    ("power", now.power_watts.map(|watts| json!({ "watts": watts }))),
                ];
                for (name, seen) in seen {
                    seen.map_or(Ok(()), |args| self.of("C", track, name, times.1, args))?;
                }
            }
        }
        Ok(())
    }

    /// The life of each worker: how long it loaded, and served. An arrow leads from one that died to the one in its place.
    fn workers(&mut self, report: &RunReport) -> io::Result<()> {
        let history = &report.history;
        let devices: HashMap<&str, usize> =
            report.status.devices.iter().enumerate().map(|(at, device)| (&*device.device, at)).collect();
        let mut lanes: HashMap<usize, Lanes> = HashMap::new();
        let mut dead: HashMap<(usize, &str, &str), Vec<Slice>> = HashMap::new();
        let end_of = |life: &crate::gather::WorkerLife| {
            life.ended.as_ref().map_or(history.starts[life.start].until, |(at, _)| *at)
        };
        let mut lives: Vec<_> = history.workers.iter().collect();
        lives.sort_by(|a, b| compare_numbers(end_of(a), end_of(b)));
        let mut served = Vec::new();
        for life in lives {
            let Some(device) = devices.get(&*life.device) else { continue };
            let pid = FIRST_DEVICE + device;
            let (began, ended) = (self.at(life.began), self.at(end_of(life)));
            let lane = lanes.entry(pid).or_default().lane(began, ended);
            let track = Track { pid, tid: lane + 2 };
            let ready = life.ready.map_or(ended, |at| self.at(at)).clamp(began, ended);
            let exit = life.ended.as_ref().map_or("cut off with its start", |(_, exit)| exit);
            let loads = self.slice(track, &format!("load {}", life.stage), (began, ready), json!({}))?;
            let mut last = loads;
            if ready < ended {
                last = self.slice(track, &life.stage, (ready, ended), json!({ "exit": exit }))?;
            }
            served.push((life, loads, last));
        }
        served.sort_by_key(|(_, loads, _)| loads.began);
        for (life, loads, last) in served {
            let place = dead.entry((life.start, &life.device, &life.stage)).or_default();
            if let Some(at) = place.iter().position(|dead| dead.began <= loads.began) {
                let from = place.swap_remove(at);
                self.flow("replaced", from, loads, json!({}))?;
            }
            if life.died() {
                place.push(last);
            }
        }
        for (pid, lanes) in lanes {
            for lane in 0..lanes.0.len() {
                self.name_track(Track { pid, tid: lane + 2 }, &format!("worker {}", lane + 1))?;
            }
        }
        Ok(())
    }

    /// Every attempt at a task, by the place that it had. An arrow leads from one that failed to the next one of its task.
    fn attempts(&mut self, report: &RunReport) -> io::Result<()> {
        if report.attempts.n_all == 0 {
            return Ok(());
        }
        self.name_process(TASKS, "tasks")?;
        let mut tracks: HashMap<(String, usize), Track> = HashMap::new();
        let mut places: HashMap<String, Lanes> = HashMap::new();
        let mut failed: HashMap<String, Slice> = HashMap::new();
        let mut written = Ok(());
        TaskJournal::each_end(&report.folder, |ended| {
            let until = ended.at as f64 / 1e6;
            let times = (self.at(until - ended.milliseconds as f64 / 1e3), self.at(until));
            let started = ended.started;
            let lane = places.entry(started.place.clone()).or_default().lane(times.0, times.1);
            let n_tracks = tracks.len();
            let mut write = || {
                let key = (started.place.clone(), lane);
                let track = match tracks.get(&key) {
                    Some(track) => *track,
                    None => {
                        let track = Track { pid: TASKS, tid: n_tracks + 1 };
                        self.name_track(track, &started.place)?;
                        *tracks.entry(key).or_insert(track)
                    }
                };
                let metrics: HashMap<&str, f64> =
                    ended.metrics.iter().map(|(name, values)| (&**name, values.last)).collect();
                let args = json!({
                    "attempt": started.attempt, "end": ended.class, "why": ended.why, "peak_memory": ended.peak_memory, "metrics": metrics,
                });
                let slice = self.slice(track, &started.task, times, args)?;
                if let Some(before) = failed.remove(&started.task) {
                    self.flow("next attempt", before, slice, json!({}))?;
                }
                if ended.class != "done" {
                    failed.insert(started.task.clone(), slice);
                }
                Ok(())
            };
            if written.is_ok() {
                written = write();
            }
        })?;
        written
    }
}

/// The time between two statuses of one start, or from its beginning to the first.
struct IntervalBegin<'a> {
    moment: Option<&'a Moment>,
    start: f64,
    none: &'a RunStatus,
}

impl IntervalBegin<'_> {
    fn at(&self) -> f64 {
        self.moment.map_or(self.start, |moment| moment.at)
    }

    fn status(&self) -> &RunStatus {
        self.moment.map_or(self.none, |moment| &moment.status)
    }
}

fn intervals(report: &RunReport) -> impl Iterator<Item = (IntervalBegin<'_>, &Moment)> {
    static NONE: std::sync::LazyLock<RunStatus> = std::sync::LazyLock::new(RunStatus::default);
    let moments = &report.history.moments;
    moments.iter().enumerate().map(|(at, moment)| {
        let before = at.checked_sub(1).map(|at| &moments[at]).filter(|before| before.start == moment.start);
        let start = report.history.starts[moment.start].at;
        (IntervalBegin { moment: before, start, none: &NONE }, moment)
    })
}

fn counted_batches(n: u64) -> String {
    crate::human::counted(n, "batch", "batches")
}

/// In words and figures; `None` where it did nothing.
fn stage_did(before: &StageStatus, now: &StageStatus) -> Option<(String, Value)> {
    let grown = |of: fn(&StageStatus) -> u64| of(now).saturating_sub(of(before));
    let n_batches = |stage: &StageStatus| {
        stage.batches.as_ref().map_or(0, |batches| batches.reasons.values().sum::<u64>())
    };
    let rows = grown(|stage| stage.entered).max(grown(|stage| stage.out));
    let batches = n_batches(now).saturating_sub(n_batches(before));
    if rows == 0 && batches == 0 {
        return None;
    }
    let words = crate::human::counted(rows, "row", "rows");
    let words = if batches > 0 { format!("{}, {words}", counted_batches(batches)) } else { words };
    let busy = (now.seconds_busy - before.seconds_busy).max(0.0);
    Some((
        words,
        json!({ "rows": rows, "batches": batches, "seconds_busy": busy, "failed": grown(|stage| stage.failed) }),
    ))
}
