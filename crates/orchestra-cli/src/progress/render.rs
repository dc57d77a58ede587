//! One state of a run as lines of text, for a terminal of a given width. Pure: no terminal, no time.

use std::time::Duration;

use console::{Style, measure_text_width, truncate_str};
use orchestra_core::compare_numbers;
use orchestra_launch::plan::format_bytes;
use orchestra_launch::{DeviceStatus, Gpu, ItemCounts, RunStatus, StageStatus, TaskReport, TaskStanding};

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
    let RunStatus { tasks, stages, devices, .. } = &view.now;
    let mut lines = header(view, look);
    let mut running: Vec<_> = tasks.iter().filter(|task| task.state == TaskStanding::Running).collect();
    running.sort_by(|a, b| compare_numbers(b.seconds, a.seconds));
    lines.extend(section("running", running.into_iter().map(|task| command(task)).collect(), look));
    let rows = stages.iter().zip(&view.stage_rates).map(|(stage, rate)| self::stage(stage, *rate));
    lines.extend(section("stages", rows.collect(), look));
    let rows = devices.iter().zip(&view.busy).map(|(device, busy)| self::device(device, *busy));
    lines.extend(section("devices", rows.collect(), look));
    lines.iter().map(|line| truncate_str(line, look.width, "…").into_owned()).collect()
}

/// The state as one line for a log or a pipe.
pub fn plain_line(view: &ProgressView) -> String {
    if has_tasks_alone(view) {
        let (running, failed) = (n_tasks(view, &[TaskStanding::Running]), n_tasks(view, &FAILED));
        let mut out = format!("progress: {}, {} running", tasks_ended(view), count(running));
        if failed > 0 {
            out.push_str(&format!(", {} failed", count(failed)));
        }
        return out;
    }
    let ItemCounts { read, failed, total, listed, .. } = view.now.items;
    let mut out = match total {
        Some(total) => format!(
            "progress: {} of {} ({}%)",
            count(read),
            counted(total, "item", "items"),
            percent(read, total)
        ),
        None => format!("progress: {} of {} so far", count(read), counted(listed, "item", "items")),
    };
    out.push_str(&format!(", {}/s", per_second(view.per_second)));
    if let Some(eta) = view.eta {
        out.push_str(&format!(", {} left", clock(eta)));
    }
    if failed > 0 {
        out.push_str(&format!(", {} failed", count(failed)));
    }
    if view.now.restarts() > 0 {
        out.push_str(&format!(", {}", counted(view.now.restarts(), "restart", "restarts")));
    }
    if !view.now.tasks.is_empty() {
        out.push_str(&format!(", {}", tasks_ended(view)));
    }
    out.push_str(&gpus(&view.now.devices));
    out
}

const ENDED: [TaskStanding; 3] = [TaskStanding::Done, TaskStanding::Failed, TaskStanding::Skipped];
/// Failed, and those that were not started for that.
const FAILED: [TaskStanding; 2] = [TaskStanding::Failed, TaskStanding::Skipped];

fn n_tasks(view: &ProgressView, are: &[TaskStanding]) -> u64 {
    view.now.tasks.iter().filter(|task| are.contains(&task.state)).count() as u64
}

fn tasks_ended(view: &ProgressView) -> String {
    let all = counted(view.now.tasks.len() as u64, "task", "tasks");
    format!("{} of {all}", count(n_tasks(view, &ENDED)))
}

/// What all GPUs together do, where something is known of one: the mean of their utilisation, and the sum of the rest.
fn gpus(devices: &[DeviceStatus]) -> String {
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
    let (finished, total) = match has_tasks_alone(view) {
        true => (n_tasks(view, &ENDED), Some(view.now.tasks.len() as u64)),
        false => (view.now.items.read, view.now.items.total),
    };
    if let Some(total) = total.filter(|total| *total > 0) {
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
    let (tasks, ended) = (view.now.tasks.len() as u64, n_tasks(view, &ENDED));
    if has_tasks_alone(view) {
        facts.push((format!("{:>5}%", percent(ended, tasks)), plain()));
    } else {
        let ItemCounts { read, failed, total, listed, .. } = view.now.items;
        match total {
            Some(total) => {
                facts.push((format!("{:>5}%", percent(read, total)), plain()));
                facts.push((format!("{}/{}", count(read), count(total)), plain()));
            }
            None => facts.push((format!("{}/{} so far", count(read), count(listed)), plain())),
        }
        facts.push((format!("{}/s", per_second(view.per_second)), plain()));
        facts.extend(view.eta.map(|eta| (format!("eta {}", clock(eta)), plain())));
        if failed > 0 {
            facts.push((format!("{} failed", count(failed)), bad()));
        }
        if view.now.restarts() > 0 {
            facts.push((counted(view.now.restarts(), "restart", "restarts"), Style::new().yellow()));
        }
    }
    if tasks > 0 {
        facts.push((format!("{}/{} tasks", count(ended), count(tasks)), plain()));
        facts.push((format!("{} running", count(n_tasks(view, &[TaskStanding::Running]))), plain()));
    }
    let failed = n_tasks(view, &FAILED);
    if failed > 0 {
        facts.push((counted(failed, "task failed", "tasks failed"), bad()));
    }
    facts
}

/// Whether the run has commands and no items.
fn has_tasks_alone(view: &ProgressView) -> bool {
    !view.now.tasks.is_empty() && view.now.stages.is_empty() && view.now.items.total == Some(0)
}

fn bar(finished: u64, total: u64) -> String {
    let filled = (u128::from(finished.min(total)) * BAR_CELLS as u128 / u128::from(total)) as usize; // at most `BAR_CELLS`
    let head = if filled < BAR_CELLS { ">" } else { "" };
    format!("[{}{head}{}]", "=".repeat(filled), " ".repeat(BAR_CELLS - filled - head.len()))
}

/// Rows below one another, behind the name of the section.
fn section(name: &str, mut rows: Vec<Vec<String>>, look: Look) -> Vec<String> {
    let n = rows.len();
    rows.truncate(if n > MAX_LINES { MAX_LINES - 1 } else { MAX_LINES });
    let hidden = (n - rows.len()) as u64;
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

fn command(task: &TaskReport) -> Vec<String> {
    let again = if task.attempts > 1 { format!("attempt {}", task.attempts) } else { String::new() };
    let memory = if task.peak_memory > 0 { format_bytes(task.peak_memory) } else { String::new() };
    let elapsed = clock(Duration::from_secs_f64(task.seconds));
    vec![task.task.clone(), task.place.clone(), again, elapsed, memory, metrics(task)]
}

fn stage(stage: &StageStatus, rate: f64) -> Vec<String> {
    let queued = count(stage.entered.saturating_sub(stage.out + stage.failed));
    vec![stage.name.clone(), format!("{queued} queued"), format!("{}/s", per_second(rate))]
}

fn device(device: &DeviceStatus, busy: f64) -> Vec<String> {
    let busy = (busy.clamp(0.0, 1.0) * 100.0).round() as u32; // NaN stays NaN, and `as` makes it 0
    let of_gpu =
        |text: &dyn Fn(&Gpu) -> Option<String>| device.gpu.as_ref().and_then(text).unwrap_or_default();
    vec![
        device.device.clone(),
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
    use std::sync::Arc;

    use orchestra_launch::{MetricValues, TaskMetrics};

    use super::*;

    fn gpu(used: u64, total: u64) -> Gpu {
        Gpu { memory_total: total, memory_free: total - used, ..Gpu::default() }
    }

    fn view() -> ProgressView {
        let stage = |name: &str, queued: u64| StageStatus {
            name: name.into(),
            entered: 50_000 + queued,
            out: 49_990,
            failed: 10,
            ..StageStatus::default()
        };
        let device =
            |name: &str, ready, gpu| DeviceStatus { device: name.into(), ready, gpu, ..Default::default() };
        let first = device("cuda:0", 2, Some(gpu(3_650_722_201, 85_899_345_920)));
        let items = ItemCounts { read: 42_317, failed: 3, total: Some(100_000), ..ItemCounts::default() };
        let now = RunStatus {
            items,
            stages: vec![stage("pixels", 120), stage("classify", 64), stage("answer", 0)],
            devices: vec![DeviceStatus { restarts: 1, ..first }, device("cuda:1", 0, None)],
            ..RunStatus::default()
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
        let command = |task: &str, attempts, seconds, metrics| {
            Arc::new(TaskReport {
                task: task.into(),
                state: TaskStanding::Running,
                attempts,
                place: "slot 0, cuda:0".into(),
                seconds,
                peak_memory: if attempts == 1 { 3 << 30 } else { 0 },
                metrics,
                ..TaskReport::default()
            })
        };
        let mut tasks = vec![
            Arc::default(),
            command("test", 2, 3.0, TaskMetrics::new()),
            command("train[lr=0.1]", 1, 72.0, loss(0.25)),
        ];
        tasks.extend((0..5).map(|_| command("more", 1, 0.0, TaskMetrics::new())));
        let now = RunStatus { tasks, ..RunStatus::default() };
        let view = ProgressView { now, ..ProgressView::default() };
        let at = |width| render(&view, Look { width, color: false })[1..].join("\n");
        assert_eq!(
            at(80),
            "\
running  train[lr=0.1]  slot 0, cuda:0             1:12  3 GiB  loss 0.2500
         test           slot 0, cuda:0  attempt 2  0:03
         more           slot 0, cuda:0             0:00  3 GiB
         more           slot 0, cuda:0             0:00  3 GiB
         more           slot 0, cuda:0             0:00  3 GiB
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
        let view = |read, total, listed| {
            let items = ItemCounts { read, total, listed, ..ItemCounts::default() };
            let now = RunStatus { items, ..RunStatus::default() };
            ProgressView { now, per_second: 2.0, ..ProgressView::default() }
        };
        let growing = view(1, None, 1234);
        assert_eq!(render(&growing, Look { width: 80, color: false }), ["1/1,234 so far  2.00/s"]);
        assert_eq!(plain_line(&growing), "progress: 1 of 1,234 items so far, 2.00/s");
        let empty = view(0, Some(0), 0);
        assert_eq!(render(&empty, Look { width: 80, color: false }), ["100.0%  0/0  2.00/s"]);
        assert_eq!(plain_line(&empty), "progress: 0 of 0 items (100.0%), 2.00/s");
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
        view.now.items.read = u64::MAX;
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
    }
}
