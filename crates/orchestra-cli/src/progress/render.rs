//! One state of a run as lines of text, for a terminal of a given width. Pure: no terminal, no time.

use console::{Style, measure_text_width, truncate_str};
use orchestra::plan::format_bytes;
use orchestra::{DeviceSnapshot, Extent, Gpu, RunningCommand, Snapshot, StageSnapshot, TasksSnapshot};

use super::ProgressView;
use crate::columns::{CellAlignment, aligned};
use crate::human::{clock, count, counted, gib, per_second, percent};
use crate::tasks::metrics;

const BAR_CELLS: usize = 13;
/// Narrower terminals are treated as this wide: their lines wrap.
const MIN_WIDTH: usize = 20;
/// From this width on, each section stands behind its name.
const HEADING_FROM: usize = 60;
/// Lines of each section, at most: a display higher than the terminal cannot be drawn in place.
const MAX_LINES: usize = 6;
const GAP: &str = "  ";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    pub width: usize,
    pub color: bool,
}

/// The state as lines, none wider than the terminal (nor, where that is narrower, than 20 columns).
pub fn render(view: &ProgressView, look: Look) -> Vec<String> {
    // The last column stays free: some terminals wrap when it is written.
    let look = Look { width: look.width.saturating_sub(1).max(MIN_WIDTH), ..look };
    let Snapshot { tasks, stages, devices, .. } = &view.now;
    let mut lines = header(view, look);
    let unnamed = tasks.running.saturating_sub(tasks.commands.len() as u64);
    lines.extend(section("running", tasks.commands.iter().map(command).collect(), unnamed, look));
    let rows = stages.iter().zip(&view.stage_rates).map(|(stage, rate)| self::stage(stage, *rate));
    lines.extend(section("stages", rows.collect(), 0, look));
    let rows = devices.iter().zip(&view.busy).map(|(device, busy)| self::device(device, *busy));
    lines.extend(section("devices", rows.collect(), 0, look));
    lines.iter().map(|line| truncate_str(line, look.width, "…").into_owned()).collect()
}

/// The state as one line for a log or a pipe.
pub fn plain_line(view: &ProgressView) -> String {
    if has_tasks_alone(view) {
        let TasksSnapshot { total, done, failed, running, .. } = view.now.tasks;
        let tasks = counted(total, "task", "tasks");
        let mut out = format!("progress: {} of {tasks}, {} running", count(done + failed), count(running));
        if failed > 0 {
            out.push_str(&format!(", {} failed", count(failed)));
        }
        return out;
    }
    let finished = view.now.done.saturating_add(view.now.failed);
    let mut out = match view.now.extent {
        Extent::Known(total) => format!(
            "progress: {} of {} ({}%)",
            count(finished),
            counted(total, "item", "items"),
            percent(finished, total)
        ),
        Extent::Growing(listed) => {
            format!("progress: {} of {} so far", count(finished), counted(listed, "item", "items"))
        }
        Extent::Endless => format!("progress: {}", counted(finished, "item", "items")),
    };
    out.push_str(&format!(", {}/s", per_second(view.per_second)));
    if let Some(eta) = view.eta {
        out.push_str(&format!(", {} left", clock(eta)));
    }
    if view.now.failed > 0 {
        out.push_str(&format!(", {} failed", count(view.now.failed)));
    }
    if view.now.restarts > 0 {
        out.push_str(&format!(", {}", counted(view.now.restarts, "restart", "restarts")));
    }
    if view.now.tasks.total > 0 {
        out.push_str(&format!(
            ", {} of {}",
            count(view.now.tasks.done + view.now.tasks.failed),
            counted(view.now.tasks.total, "task", "tasks")
        ));
    }
    out.push_str(&gpus(&view.now.devices));
    out
}

/// What all GPUs together do, where something is known of one: the mean of their utilisation, and the sum of the rest.
fn gpus(devices: &[DeviceSnapshot]) -> String {
    let gpus = || devices.iter().filter_map(|device| device.gpu.as_ref());
    let percents: Vec<u64> = gpus().filter_map(|gpu| gpu.utilization).map(u64::from).collect();
    let memory: Vec<u64> = gpus().map(|gpu| gpu.memory_used()).collect();
    let watts: Vec<u64> = gpus().filter_map(watts).map(u64::from).collect();
    let mut out = String::new();
    if !percents.is_empty() {
        out.push_str(&format!(" {}%", percents.iter().sum::<u64>() / percents.len() as u64));
    }
    if !memory.is_empty() {
        out.push_str(&format!(" {} GiB", gib(memory.iter().sum())));
    }
    if !watts.is_empty() {
        out.push_str(&format!(" {} W", watts.iter().sum::<u64>()));
    }
    if out.is_empty() { out } else { format!(", gpu{out}") }
}

/// The bar and all facts in one line, or in two where that is too wide.
fn header(view: &ProgressView, look: Look) -> Vec<String> {
    let mut facts = facts(view);
    let (finished, extent) = match has_tasks_alone(view) {
        true => (view.now.tasks.done + view.now.tasks.failed, Extent::Known(view.now.tasks.total)),
        false => (view.now.done.saturating_add(view.now.failed), view.now.extent),
    };
    if let Some(total) = extent.known().filter(|total| *total > 0) {
        facts.insert(0, (bar(finished, total), Style::new().green()));
    }
    let paint = |(text, style): (String, Style)| style.force_styling(look.color).apply_to(text).to_string();
    let facts: Vec<String> = facts.into_iter().map(paint).collect();
    let line = facts.join(GAP);
    match facts.split_at_checked(3) {
        Some((first, more)) if !more.is_empty() && measure_text_width(&line) > look.width => {
            vec![first.join(GAP), more.join(GAP)]
        }
        _ => vec![line],
    }
}

/// In the order of their worth on a narrow terminal.
fn facts(view: &ProgressView) -> Vec<(String, Style)> {
    let (plain, bad) = (Style::new, || Style::new().red().bold());
    let mut facts = Vec::new();
    if has_tasks_alone(view) {
        let ended = view.now.tasks.done + view.now.tasks.failed;
        facts.push((format!("{:>5}%", percent(ended, view.now.tasks.total)), plain()));
    } else {
        let finished = view.now.done.saturating_add(view.now.failed);
        match view.now.extent {
            Extent::Known(total) => {
                facts.push((format!("{:>5}%", percent(finished, total)), plain()));
                facts.push((format!("{}/{}", count(finished), count(total)), plain()));
            }
            Extent::Growing(listed) => {
                facts.push((format!("{}/{} so far", count(finished), count(listed)), plain()));
            }
            Extent::Endless => facts.push((counted(finished, "item", "items"), plain())),
        }
        facts.push((format!("{}/s", per_second(view.per_second)), plain()));
        facts.extend(view.eta.map(|eta| (format!("eta {}", clock(eta)), plain())));
        if view.now.failed > 0 {
            facts.push((format!("{} failed", count(view.now.failed)), bad()));
        }
        if view.now.restarts > 0 {
            facts.push((counted(view.now.restarts, "restart", "restarts"), Style::new().yellow()));
        }
    }
    let tasks = &view.now.tasks;
    if tasks.total > 0 {
        facts.push((format!("{}/{} tasks", count(tasks.done + tasks.failed), count(tasks.total)), plain()));
        facts.push((format!("{} running", count(tasks.running)), plain()));
    }
    if tasks.failed > 0 {
        facts.push((counted(tasks.failed, "task failed", "tasks failed"), bad()));
    }
    facts
}

/// Whether the run has commands and no items.
fn has_tasks_alone(view: &ProgressView) -> bool {
    view.now.tasks.total > 0 && view.now.stages.is_empty() && view.now.extent == Extent::Known(0)
}

fn bar(finished: u64, total: u64) -> String {
    let filled = (u128::from(finished.min(total)) * BAR_CELLS as u128 / u128::from(total)) as usize; // at most `BAR_CELLS`
    let head = if filled < BAR_CELLS { ">" } else { "" };
    format!("[{}{head}{}]", "=".repeat(filled), " ".repeat(BAR_CELLS - filled - head.len()))
}

/// Rows below one another, behind the name of the section. There are `more` that are not among them.
fn section(name: &str, mut rows: Vec<Vec<String>>, more: u64, look: Look) -> Vec<String> {
    let n = rows.len() as u64 + more;
    rows.truncate(if n > MAX_LINES as u64 { MAX_LINES - 1 } else { MAX_LINES });
    let hidden = n - rows.len() as u64;
    let mut lines = aligned(rows, CellAlignment::Left);
    if hidden > 0 {
        lines.push(format!("… and {} more", count(hidden)));
    }
    if look.width + 1 >= HEADING_FROM {
        let dim = Style::new().dim().force_styling(look.color);
        for (at, line) in lines.iter_mut().enumerate() {
            let name = if at == 0 { name } else { "" };
            *line = format!("{}{GAP}{line}", dim.apply_to(format!("{name:<7}")));
        }
    }
    lines
}

fn command(command: &RunningCommand) -> Vec<String> {
    let again = if command.attempt > 1 { format!("attempt {}", command.attempt) } else { String::new() };
    let memory = if command.memory > 0 { format_bytes(command.memory) } else { String::new() };
    let (task, place) = (command.task.clone(), command.place.clone());
    vec![task, place, again, clock(command.elapsed), memory, metrics(&command.metrics)]
}

fn stage(stage: &StageSnapshot, rate: f64) -> Vec<String> {
    let queued = count(stage.entered.saturating_sub(stage.left + stage.failed));
    vec![stage.name.clone(), format!("{queued} queued"), format!("{}/s", per_second(rate))]
}

fn device(device: &DeviceSnapshot, busy: f64) -> Vec<String> {
    let busy = (busy.clamp(0.0, 1.0) * 100.0).round() as u32; // NaN stays NaN, and `as` makes it 0
    let of_gpu =
        |text: &dyn Fn(&Gpu) -> Option<String>| device.gpu.as_ref().and_then(text).unwrap_or_default();
    vec![
        device.name.clone(),
        counted(device.ready, "worker", "workers"),
        format!("{busy}% busy"),
        of_gpu(&|gpu| gpu.utilization.map(|percent| format!("gpu {percent}%"))),
        of_gpu(&|gpu| Some(format!("{}/{} GiB", gib(gpu.memory_used()), gib(gpu.memory_total)))),
        of_gpu(&|gpu| watts(gpu).map(|watts| format!("{watts} W"))),
    ]
}

fn watts(gpu: &Gpu) -> Option<u32> {
    gpu.power_mw.map(|mw| mw.div_ceil(1000))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use orchestra::{MetricValues, TaskMetrics};

    use super::*;

    fn gpu(used: u64, total: u64) -> Gpu {
        Gpu { memory_total: total, memory_free: total - used, ..Gpu::default() }
    }

    fn view() -> ProgressView {
        let stage = |name: &str, queued: u64| StageSnapshot {
            name: name.into(),
            entered: 50_000 + queued,
            left: 49_990,
            failed: 10,
            ..StageSnapshot::default()
        };
        let device =
            |name: &str, ready, gpu| DeviceSnapshot { name: name.into(), ready, gpu, ..Default::default() };
        let now = Snapshot {
            extent: Extent::Known(100_000),
            done: 42_314,
            failed: 3,
            stages: vec![stage("pixels", 120), stage("classify", 64), stage("answer", 0)],
            devices: vec![
                device("cuda:0", 2, Some(gpu(3_650_722_201, 85_899_345_920))),
                device("cuda:1", 0, None),
            ],
            restarts: 1,
            ..Snapshot::default()
        };
        ProgressView {
            now,
            per_second: 1_234.4,
            eta: Some(Duration::from_secs(46)),
            stage_rates: vec![1_240.2, 1_236.0, 98.7],
            busy: vec![0.974, 0.0],
        }
    }

    fn at(width: usize) -> String {
        render(&view(), Look { width, color: false }).join("\n")
    }

    #[test]
    fn commands_without_items_are_a_table_with_their_last_values() {
        let loss = |last| {
            let report = MetricValues { last, min: 0.0, max: 1.0, count: 2 };
            TaskMetrics::from([("loss".to_owned(), report)])
        };
        let command = |task: &str, attempt, seconds, metrics| RunningCommand {
            task: task.into(),
            attempt,
            place: "slot 0, cuda:0".into(),
            elapsed: Duration::from_secs(seconds),
            memory: if attempt == 1 { 3 << 30 } else { 0 },
            metrics,
        };
        let commands =
            vec![command("train[lr=0.1]", 1, 72, loss(0.25)), command("test", 2, 3, TaskMetrics::new())];
        let tasks = TasksSnapshot { total: 10, done: 3, running: 4, commands, ..TasksSnapshot::default() };
        let now = Snapshot { tasks, ..Snapshot::default() };
        let view = ProgressView { now, ..ProgressView::default() };
        let at = |width| render(&view, Look { width, color: false })[1..].join("\n");
        assert_eq!(
            at(80),
            "\
running  train[lr=0.1]  slot 0, cuda:0             1:12  3 GiB  loss 0.2500
         test           slot 0, cuda:0  attempt 2  0:03
         … and 2 more"
        );
        assert_eq!(at(50).lines().next(), Some("train[lr=0.1]  slot 0, cuda:0             1:12  …"));
    }

    #[test]
    fn what_the_driver_tells_of_a_gpu_stands_behind_its_workers() {
        let mut view = view();
        let gpu = view.now.devices[0].gpu.as_mut().unwrap();
        (gpu.utilization, gpu.power_mw) = (Some(88), Some(270_100));
        let text = render(&view, Look { width: 120, color: false }).join("\n");
        assert!(text.contains("cuda:0  2 workers  97% busy  gpu 88%  3.4/80.0 GiB  271 W"), "{text}");
    }

    #[test]
    fn eighty_columns() {
        assert_eq!(
            at(80),
            "\
[=====>       ]   42.3%  42,317/100,000  1,234/s  eta 0:46  3 failed  1 restart
stages   pixels    120 queued  1,240/s
         classify  64 queued   1,236/s
         answer    0 queued    98.7/s
devices  cuda:0  2 workers  97% busy  3.4/80.0 GiB
         cuda:1  0 workers  0% busy"
        );
    }

    #[test]
    fn forty_columns() {
        assert_eq!(
            at(40),
            "\
[=====>       ]   42.3%  42,317/100,000
1,234/s  eta 0:46  3 failed  1 restart
pixels    120 queued  1,240/s
classify  64 queued   1,236/s
answer    0 queued    98.7/s
cuda:0  2 workers  97% busy  3.4/80.0 …
cuda:1  0 workers  0% busy"
        );
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let mut view = view();
        view.now.stages[0].name = "a-stage-with-a-name-that-is-longer-than-many-terminals-are-wide".into();
        for width in 0..200 {
            for line in render(&view, Look { width, color: false }) {
                assert!(console::measure_text_width(&line) < width.max(MIN_WIDTH + 1), "{width}: {line}");
            }
        }
    }

    #[test]
    fn many_stages_take_few_lines() {
        let mut view = view();
        view.now.stages = vec![view.now.stages[0].clone(); 100];
        view.stage_rates = vec![1.0; 100];
        for width in [40, 80, 120] {
            let lines = render(&view, Look { width, color: false });
            assert!(lines.len() <= 2 + 2 * MAX_LINES, "{lines:?}");
            assert!(lines.iter().any(|l| l.contains("… and ") && l.ends_with(" more")), "{lines:?}");
        }
    }

    #[test]
    fn without_a_total_there_is_no_bar() {
        let view = |extent| {
            let now = Snapshot { extent, done: 1, ..Snapshot::default() };
            ProgressView { now, per_second: 2.0, ..ProgressView::default() }
        };
        let (growing, endless) = (view(Extent::Growing(1234)), view(Extent::Endless));
        assert_eq!(render(&growing, Look { width: 80, color: false }), ["1/1,234 so far  2.00/s"]);
        assert_eq!(plain_line(&growing), "progress: 1 of 1,234 items so far, 2.00/s");
        assert_eq!(render(&endless, Look { width: 80, color: false }), ["1 item  2.00/s"]);
        assert_eq!(plain_line(&endless), "progress: 1 item, 2.00/s");
        let empty = ProgressView::default();
        assert_eq!(render(&empty, Look { width: 80, color: false }), ["100.0%  0/0  0/s"]);
    }

    #[test]
    fn colours_change_no_text() {
        let plain = at(80);
        let colored = render(&view(), Look { width: 80, color: true }).join("\n");
        assert!(colored.contains("\x1b[31m\x1b[1m3 failed\x1b[0m"));
        assert_eq!(console::strip_ansi_codes(&colored), plain);
    }

    #[test]
    fn strange_numbers_break_nothing() {
        let mut view = view();
        (view.now.done, view.now.failed) = (u64::MAX, 3);
        (view.busy[0], view.per_second) = (f64::NAN, f64::NEG_INFINITY);
        let text = render(&view, Look { width: 80, color: false }).join("\n");
        assert!(text.contains("=]  100.0%") && text.contains("0% busy"), "{text}");
    }

    #[test]
    fn a_pipe_gets_one_plain_line() {
        assert_eq!(
            plain_line(&view()),
            "progress: 42,317 of 100,000 items (42.3%), 1,234/s, 0:46 left, 3 failed, 1 restart, gpu 3.4 GiB"
        );
        let mut view = view();
        view.now.devices[1].gpu = Some(gpu(0, 1));
        for (device, watts) in view.now.devices.iter_mut().zip([200, 71]) {
            let gpu = device.gpu.as_mut().unwrap();
            (gpu.utilization, gpu.power_mw) = (Some(80), Some(watts * 1_000));
        }
        assert!(plain_line(&view).ends_with(", gpu 80% 3.4 GiB 271 W"));
        assert_eq!(plain_line(&ProgressView::default()), "progress: 0 of 0 items (100.0%), 0/s");
    }
}
