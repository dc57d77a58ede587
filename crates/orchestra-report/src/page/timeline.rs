//! What loaders, stages, devices and slots did over time, and what happened to workers. The clock stands still between two starts.

use maud::{Markup, html};
use orchestra_core::compare_numbers;

use super::table::{self, table};
use crate::gather::{Attempt, Moment, RunHistory, RunReport};
use crate::human::{count, elapsed};

/// Parts of the time that are told apart.
const BUCKETS: usize = 120;
/// Events in the table, and slots with a lane of their own.
const MOST_EVENTS: usize = 200;
const MOST_SLOTS: usize = 40;

/// What one part of a run did: shares of each part of the time, which lie above each other.
struct Lane {
    name: String,
    /// The class of each share.
    shares: Vec<(&'static str, [f64; BUCKETS])>,
    in_words: String,
}

struct Clock<'a> {
    history: &'a RunHistory,
    /// Of a bucket, in seconds.
    width: f64,
}

impl Clock<'_> {
    /// Adds an amount that belongs to the time between two moments.
    fn spread(&self, to: &mut [f64; BUCKETS], from: f64, until: f64, amount: f64) {
        let (from, until) = (self.history.clock(from), self.history.clock(until));
        let length = (until - from).max(1e-6);
        let first = ((from / self.width) as usize).min(BUCKETS - 1);
        let last = ((until / self.width) as usize).min(BUCKETS - 1);
        for (at, bucket) in to.iter_mut().enumerate().take(last + 1).skip(first) {
            let (begin, end) = (at as f64 * self.width, (at + 1) as f64 * self.width);
            let part = (until.min(end) - from.max(begin)).max(0.0) / length;
            *bucket += amount * if first == last { 1.0 } else { part };
        }
    }

    /// Seconds of work in each bucket, of which one has room for `most`. Work is counted when it ends, so what is more was done before.
    fn work(&self, counter: impl Fn(&Moment) -> f64, most: f64) -> [f64; BUCKETS] {
        let mut work = self.growth(counter);
        let mut before = 0.0;
        for bucket in work.iter_mut().rev() {
            let all = *bucket + before;
            *bucket = all.min(most);
            before = all - *bucket;
        }
        work
    }

    /// How much a counter grew in each bucket.
    fn growth(&self, counter: impl Fn(&Moment) -> f64) -> [f64; BUCKETS] {
        let mut growth = [0.0; BUCKETS];
        let mut before = None;
        for moment in &self.history.moments {
            let now = counter(moment);
            let (at, value) = match before {
                Some((start, at, value)) if start == moment.start => (at, value),
                _ => (self.history.starts[moment.start].at, 0.0),
            };
            self.spread(&mut growth, at, moment.at, (now - value).max(0.0));
            before = Some((moment.start, moment.at, now));
        }
        growth
    }
}

pub fn timeline(report: &RunReport) -> Option<Markup> {
    let history = &report.history;
    let length = history.length();
    if length <= 0.0 {
        return None;
    }
    let clock = Clock { history, width: length / BUCKETS as f64 };
    let mut lanes: Vec<Lane> = loaders(&clock).into_iter().collect();
    lanes.extend(
        report
            .status
            .stages
            .iter()
            .filter(|stage| stage.workers > 0)
            .map(|stage| of_stage(&clock, &stage.name, stage.workers)),
    );
    if report.status.devices.len() > 1 {
        let devices = report.status.devices.iter().enumerate().filter(|(_, device)| device.workers > 0);
        lanes.extend(devices.map(|(at, device)| of_device(&clock, at, &device.device, device.workers)));
    }
    let slots = slots(&report.attempts.rows);
    let events = events(report);
    if lanes.is_empty() && slots.is_empty() && events.is_empty() {
        return None;
    }
    let has_marks = !events.is_empty() || history.n_starts() > 1;
    Some(html! {
        p.legend {
            span.key.run { "running" } " " span.key.load { "loading or reading" } " " span.key.wait { "waiting for a model" } " "
            span.key.sink { "waiting for sinks" } " " span.key.idle { "idle" }
            @if has_marks { " " span.key.mark { "something happened" } }
            @if !slots.is_empty() { " " span.key.done { "ended well" } " " span.key.failed { "did not" } }
        }
        div.lanes {
            @for lane in &lanes { (draw(lane)) }
            @for (slot, attempts) in &slots { (draw_slot(&clock, slot, attempts, length)) }
            @if has_marks { (draw_marks(&clock, &events, length)) }
            div.lane.axis { span {} span.ticks { span { "0" } span { (elapsed(length / 2.0)) } span { (elapsed(length)) } } }
        }
        @if history.n_starts() > 1 {
            p { "The time between starts is left out." }
        }
        @if events.is_empty() {
            p { "No worker died, and no device was lost." }
        } @else {
            (table("What happened", &["after", "what", "where", "how"], events.iter().take(MOST_EVENTS).map(|event| vec![
                table::number(clock.history.clock(event.at), elapsed(clock.history.clock(event.at))),
                table::text(event.what), table::text(&event.place), table::text(&event.how),
            ]).collect()))
            @if events.len() > MOST_EVENTS { p { "and " (count((events.len() - MOST_EVENTS) as u64)) " more." } }
        }
    })
}

fn loaders(clock: &Clock<'_>) -> Option<Lane> {
    let loading = clock.growth(|moment| moment.status.loaders.seconds_loading);
    let for_row = clock.growth(|moment| moment.status.loaders.seconds_waiting_for_row);
    let for_sinks = clock.growth(|moment| moment.status.loaders.seconds_waiting_for_sinks);
    let sum = |at: usize| loading[at] + for_row[at] + for_sinks[at];
    // How many loaders there are is not noted: the most that were seen to do anything.
    let whole = (0..BUCKETS).map(sum).fold(0.0, f64::max);
    let in_words = in_words(
        &[("reading", &loading), ("waiting for models", &for_row), ("waiting for sinks", &for_sinks)],
        whole,
    );
    let of = |shares: [f64; BUCKETS]| shares.map(|share| share / whole);
    let shares = vec![("load", of(loading)), ("wait", of(for_row)), ("sink", of(for_sinks))];
    (whole > 0.0).then(|| Lane { name: "loaders".to_owned(), shares, in_words })
}

fn of_stage(clock: &Clock<'_>, name: &str, workers: u64) -> Lane {
    let stage = |moment: &Moment| {
        moment.status.stages.iter().find(|stage| stage.name == name).map(|stage| stage.seconds_busy)
    };
    let whole = clock.width * workers as f64;
    let run = clock.work(|moment| stage(moment).unwrap_or(0.0), whole);
    let mut load = [0.0; BUCKETS];
    for life in clock.history.workers.iter().filter(|life| life.stage == name) {
        let until = life.ready.or(life.ended.as_ref().map(|(at, _)| *at));
        let until = until.unwrap_or(clock.history.starts[life.start].until);
        clock.spread(&mut load, life.began, until, until - life.began);
    }
    let in_words = in_words(&[("running", &run), ("loading", &load)], whole);
    let of = |shares: [f64; BUCKETS]| shares.map(|share| (share / whole).min(1.0));
    Lane { name: name.to_owned(), shares: vec![("run", of(run)), ("load", of(load))], in_words }
}

fn of_device(clock: &Clock<'_>, at: usize, name: &str, workers: u64) -> Lane {
    let whole = clock.width * workers as f64;
    let busy = |moment: &Moment| moment.status.devices.get(at).map_or(0.0, |device| device.seconds_busy);
    let run = clock.work(busy, whole);
    let in_words = in_words(&[("running", &run)], whole);
    Lane { name: name.to_owned(), shares: vec![("run", run.map(|share| (share / whole).min(1.0)))], in_words }
}

fn in_words(shares: &[(&str, &[f64; BUCKETS])], whole: f64) -> String {
    let of = |(name, share): &(&str, &[f64; BUCKETS])| {
        format!("{name} {:.0} %", (share.iter().sum::<f64>() / (whole * BUCKETS as f64) * 100.0).min(100.0))
    };
    shares.iter().map(of).collect::<Vec<_>>().join(", ")
}

fn draw(lane: &Lane) -> Markup {
    let mut below = [0.0; BUCKETS];
    let areas = lane.shares.iter().map(|(class, shares)| {
        let path = area(&below, shares);
        below.iter_mut().zip(shares).for_each(|(below, share)| *below = (*below + share).min(1.0));
        (*class, path)
    });
    let areas: Vec<_> = areas.collect();
    html! {
        div.lane {
            span.name { (lane.name) }
            svg role="img" aria-label={ (lane.name) ": " (lane.in_words) } viewBox="0 0 120 100" preserveAspectRatio="none" {
                title { (lane.name) ": " (lane.in_words) }
                @for (class, path) in &areas { path class=(class) d=(path) {} }
            }
            span.words { (lane.in_words) }
        }
    }
}

/// The steps between two heights.
fn area(below: &[f64; BUCKETS], shares: &[f64; BUCKETS]) -> String {
    let mut path = String::new();
    for (at, (below, share)) in below.iter().zip(shares).enumerate() {
        let height = (share * 100.0).min(100.0 - below * 100.0).round();
        if height >= 1.0 {
            let bottom = 100.0 - (below * 100.0).round();
            path.push_str(&format!("M{at} {bottom}v-{height}h1v{height}z"));
        }
    }
    path
}

struct RunEvent {
    at: f64,
    what: &'static str,
    place: String,
    how: String,
}

/// What is no ordinary course of things, in order.
fn events(report: &RunReport) -> Vec<RunEvent> {
    let history = &report.history;
    let died = history.workers.iter().filter(|life| life.died()).filter_map(|life| {
        let (at, exit) = life.ended.clone()?;
        Some(RunEvent {
            at,
            what: "worker ended",
            place: format!("{} on {}", life.stage, life.device),
            how: exit,
        })
    });
    let lost = history.losses.iter().map(|(at, device, why)| RunEvent {
        at: *at,
        what: "device lost",
        place: device.clone(),
        how: why.clone(),
    });
    let mut events: Vec<RunEvent> = died.chain(lost).collect();
    for (at, start) in history.starts.iter().enumerate().skip(1) {
        let before = match history.starts[at - 1].exit_code {
            _ if start.is_second_part => "they are planned by what the tasks have come to".to_owned(),
            Some(code) => format!("the one before ended with code {code}"),
            None => "the one before was killed".to_owned(),
        };
        let place = format!("start {} of {}", at + 1, history.starts.len());
        let (what, place) = match start.is_second_part {
            true => ("items began", "after the tasks".to_owned()),
            false => ("started again", place),
        };
        events.push(RunEvent { at: start.at, what, place, how: before });
    }
    events.sort_by(|a, b| compare_numbers(a.at, b.at));
    events
}

fn draw_marks(clock: &Clock<'_>, events: &[RunEvent], length: f64) -> Markup {
    let place = |at: f64| format!("{:.2}", clock.history.clock(at) / length * 120.0);
    html! {
        div.lane.marks {
            span.name { "events" }
            svg role="img" aria-label="When workers ended, devices were lost and the run was started; the table below names them" viewBox="0 0 120 100" preserveAspectRatio="none" {
                @for event in events {
                    path class=(if event.what == "worker ended" || event.what == "device lost" { "mark" } else { "start" }) d={ "M" (place(event.at)) " 0v100" } { title { (event.what) ": " (event.place) " – " (event.how) } }
                }
            }
            span.words { (events.len()) }
        }
    }
}

/// Attempts by the slots that they had.
fn slots(attempts: &[Attempt]) -> Vec<(String, Vec<&Attempt>)> {
    let mut slots: Vec<(String, Vec<&Attempt>)> = Vec::new();
    for attempt in attempts {
        match slots.iter().position(|(slot, _)| *slot == attempt.place) {
            Some(at) => slots[at].1.push(attempt),
            None if slots.len() < MOST_SLOTS => slots.push((attempt.place.clone(), vec![attempt])),
            None => {}
        }
    }
    slots.sort_by(|a, b| (a.0.len(), &a.0).cmp(&(b.0.len(), &b.0)));
    slots
}

fn draw_slot(clock: &Clock<'_>, slot: &str, attempts: &[&Attempt], length: f64) -> Markup {
    let scale = 120.0 / length;
    let bar = |attempt: &Attempt| {
        let from = clock.history.clock(attempt.began) * scale;
        let width = (clock.history.clock(attempt.began + attempt.seconds) * scale - from).max(0.15);
        (format!("{from:.2}"), format!("{width:.2}"), if attempt.end == "done" { "done" } else { "failed" })
    };
    let words = crate::human::counted(attempts.len() as u64, "attempt", "attempts");
    html! {
        div.lane {
            span.name { (slot) }
            svg role="img" aria-label={ (slot) ": " (words) } viewBox="0 0 120 100" preserveAspectRatio="none" {
                @for attempt in attempts {
                    @let (x, width, class) = bar(attempt);
                    rect class=(class) x=(x) y="10" width=(width) height="80" { title { (attempt.task) ", " (attempt.end) ", " (elapsed(attempt.seconds)) } }
                }
            }
            span.words { (words) }
        }
    }
}

#[cfg(test)]
mod tests {
    use orchestra_launch::RunStatus;

    use super::*;
    use crate::gather::RunStart;

    #[test]
    fn a_worker_that_is_never_idle_has_no_gap_however_long_its_batches_are() {
        // Ten statuses a second over a minute, of which each sees a batch once it has ended.
        let start = RunStart { at: 0.0, until: 60.0, ..RunStart::default() };
        let moment =
            |n: usize| Moment { at: n as f64 / 10.0, start: 0, machine: None, status: RunStatus::default() };
        let moments = (1..=600).map(moment).collect();
        let history = RunHistory { starts: vec![start], moments, ..RunHistory::default() };
        let clock = Clock { history: &history, width: 60.0 / BUCKETS as f64 };
        for tenths in [1, 3, 7, 25, 60] {
            let ended =
                |moment: &Moment| ((moment.at * 10.0).round() as usize / tenths * tenths) as f64 / 10.0;
            let work = clock.work(ended, clock.width);
            let last = ((600 / tenths * tenths) as f64 / 10.0 / clock.width) as usize;
            let is_full = |seconds: &f64| (seconds - clock.width).abs() < 1e-6;
            assert!(work[..last].iter().all(is_full), "{tenths}: {work:?}");
        }
    }
}
