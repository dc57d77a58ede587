//! The curves of an attempt's metrics, in a file beside its log: a line for each step. However many steps there are, the number of lines is bounded.
//! It reads no line of the command.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Instant;

/// Points of a metric, beside the least, the greatest and the last. Where there are more, every second one goes.
const MOST_POINTS: usize = 1000;
/// The metric that gives the numbers of the steps; else they are counted.
const STEP: &str = "step";

#[derive(Debug, Clone, Copy)]
struct CurvePoint {
    /// Counts what was read at one moment; the order of the lines.
    row: u64,
    step: f64,
    seconds: f64,
    value: f64,
}

/// The points that are kept of a metric: each whose number is a multiple of `stride`, the first value having number 0.
#[derive(Debug)]
struct Curve {
    name: String,
    points: Vec<CurvePoint>,
    stride: u64,
    /// How many values there were.
    count: u64,
    least: Option<CurvePoint>,
    greatest: Option<CurvePoint>,
    last: Option<CurvePoint>,
}

pub(crate) struct CurveFile {
    path: String,
    file: File,
    began: Instant,
    rows: u64,
    step: f64,
    curves: Vec<Curve>,
    /// Lines that the file has not got yet.
    new_lines: String,
    /// The file has points that were left out since: it is written anew.
    is_outdated: bool,
    pub error: Option<String>,
}

impl Curve {
    fn new(name: &str) -> Self {
        let (points, least, greatest, last) = Default::default();
        Self { name: name.to_owned(), points, stride: 1, count: 0, least, greatest, last }
    }

    /// Whether the point is kept for now.
    fn add(&mut self, point: CurvePoint) -> bool {
        let is_kept = self.count.is_multiple_of(self.stride);
        self.count += 1;
        self.last = Some(point);
        if point.value.is_finite() {
            if self.least.is_none_or(|least| point.value < least.value) {
                self.least = Some(point);
            }
            if self.greatest.is_none_or(|greatest| point.value > greatest.value) {
                self.greatest = Some(point);
            }
        }
        if is_kept {
            self.points.push(point);
        }
        is_kept
    }

    /// Leaves points out where there are too many; whether it did.
    fn thin(&mut self) -> bool {
        let is_too_long = self.points.len() > MOST_POINTS;
        if is_too_long {
            self.stride *= 2;
            self.points = self.points.iter().step_by(2).copied().collect();
        }
        is_too_long
    }
}

impl CurveFile {
    /// The file is made anew, for the metrics of these names.
    pub fn create<'a>(path: &str, names: impl Iterator<Item = &'a str>) -> io::Result<Self> {
        Ok(Self {
            file: created(path)?,
            path: path.to_owned(),
            began: Instant::now(),
            rows: 0,
            step: 0.0,
            curves: names.map(Curve::new).collect(),
            new_lines: String::new(),
            is_outdated: false,
            error: None,
        })
    }

    /// Takes what was read of the metrics at one moment, in their order.
    pub fn add(&mut self, values: &[Option<f64>]) {
        let of_step = self.curves.iter().position(|curve| curve.name == STEP);
        self.rows += 1;
        self.step = match of_step {
            Some(at) => values[at].filter(|step| step.is_finite()).unwrap_or(self.step),
            None => self.rows as f64,
        };
        let (row, step, seconds) = (self.rows, self.step, self.began.elapsed().as_secs_f64());
        let mut kept = Vec::new();
        for (at, curve) in self.curves.iter_mut().enumerate().filter(|(at, _)| Some(*at) != of_step) {
            let Some(value) = values[at] else { continue };
            if curve.add(CurvePoint { row, step, seconds, value }) {
                kept.push((at, value));
            }
            self.is_outdated |= curve.thin();
        }
        if !kept.is_empty() && !self.is_outdated {
            self.new_lines += &self.line(step, seconds, &kept);
        }
    }

    /// Writes what is new. A full disk is no reason to end a command: it is told at the end.
    pub fn write(&mut self) {
        let written = match self.is_outdated {
            true => self.write_anew(),
            false => self.file.write_all(self.new_lines.as_bytes()),
        };
        self.new_lines.clear();
        if let Err(error) = written {
            self.error.get_or_insert(format!("`{}`: {error}", self.path));
        }
    }

    /// Writes the rest: of curves with points left out also the least, the greatest and the last.
    pub fn finish(&mut self) {
        self.is_outdated |= self.curves.iter().any(|curve| curve.stride > 1);
        self.write();
    }

    fn write_anew(&mut self) -> io::Result<()> {
        let mut rows: BTreeMap<u64, (CurvePoint, BTreeMap<usize, f64>)> = BTreeMap::new();
        for (at, curve) in self.curves.iter().enumerate() {
            let others = [curve.least, curve.greatest, curve.last].into_iter().flatten();
            for point in curve.points.iter().copied().chain(others) {
                rows.entry(point.row).or_insert((point, BTreeMap::new())).1.insert(at, point.value);
            }
        }
        let line = |(point, values): &(CurvePoint, BTreeMap<usize, f64>)| {
            let values: Vec<_> = values.iter().map(|(at, value)| (*at, *value)).collect();
            self.line(point.step, point.seconds, &values)
        };
        let text: String = rows.values().map(line).collect();
        let next = format!("{}.next", self.path);
        let mut file = created(&next)?;
        file.write_all(text.as_bytes())?;
        fs::rename(next, &self.path)?;
        (self.file, self.is_outdated) = (file, false);
        Ok(())
    }

    /// Values by the places of their metrics. What is no number is `null`.
    fn line(&self, step: f64, seconds: f64, values: &[(usize, f64)]) -> String {
        let mut line = format!("{{\"step\":{step},\"time_s\":{seconds:.3}");
        for (at, value) in values {
            let name = serde_json::Value::from(&self.curves[*at].name[..]);
            let value = serde_json::Value::from(*value);
            let _ = write!(line, ",{name}:{value}"); // A text takes all.
        }
        line + "}\n"
    }
}

/// In a folder that others have filled, a link would lead to a file of theirs, and a pipe would never open.
pub(crate) fn created(path: &str) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    File::options().write(true).create(true).truncate(true).custom_flags(flags).open(path)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The lines of the file without their times, and its metrics.
    fn read(file: &CurveFile) -> Vec<Value> {
        let text = fs::read_to_string(&file.path).unwrap();
        let line = |line: &str| {
            let mut line: Value = serde_json::from_str(line).unwrap();
            assert!(line.as_object_mut().unwrap().remove("time_s").unwrap().is_f64());
            line
        };
        text.lines().map(line).collect()
    }

    fn of(names: &[&str]) -> (tempfile::TempDir, CurveFile) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let file = CurveFile::create(path.to_str().unwrap(), names.iter().copied()).unwrap();
        (folder, file)
    }

    #[test]
    fn each_step_is_a_line_that_is_there_at_once() {
        let (_folder, mut file) = of(&["loss", "a \"b\""]);
        file.add(&[Some(0.5), None]);
        file.write();
        assert_eq!(read(&file), [json!({ "step": 1, "loss": 0.5 })]);
        file.add(&[Some(f64::NAN), Some(1e-9)]);
        file.finish();
        assert_eq!(read(&file)[1], json!({ "step": 2, "loss": null, "a \"b\"": 1e-9 }));
    }

    #[test]
    fn a_metric_that_is_called_step_numbers_the_steps() {
        let (_folder, mut file) = of(&["step", "loss"]);
        file.add(&[Some(100.0), Some(2.0)]);
        file.add(&[None, Some(1.0)]);
        file.add(&[Some(200.0), None]);
        file.finish();
        assert_eq!(read(&file), [json!({ "step": 100, "loss": 2.0 }), json!({ "step": 100, "loss": 1.0 })]);
    }

    #[test]
    fn a_long_curve_is_thinned_evenly_and_keeps_its_first_last_and_extreme_values() {
        const STEPS: u64 = 100_000;
        let (_folder, mut file) = of(&["loss", "rare"]);
        for n in 0..STEPS {
            let loss = match n {
                77_777 => -5.0,
                33_333 => 9.0,
                44_444 => f64::INFINITY,
                n => n as f64 / STEPS as f64,
            };
            // It is never among those of the other one that are kept.
            file.add(&[Some(loss), (n % 1000 == 501).then_some(n as f64)]);
            file.write();
        }
        let has =
            |file: &CurveFile, name: &str| read(file).iter().filter(|line| !line[name].is_null()).count();
        assert!(has(&file, "loss") <= MOST_POINTS && has(&file, "rare") == 100, "bounded as it grows");
        file.finish();
        let lines = read(&file);
        assert!((MOST_POINTS / 2..MOST_POINTS + 3).contains(&has(&file, "loss")));
        assert_eq!(has(&file, "rare"), 100, "a metric is thinned by its own values alone");
        let step =
            |step: u64| lines.iter().find(|line| line["step"] == step).map(|line| line["loss"].clone());
        assert_eq!(
            (step(1), step(33_334), step(77_778)),
            (Some(json!(0.0)), Some(json!(9.0)), Some(json!(-5.0)))
        );
        assert_eq!(lines.last().unwrap()["step"], STEPS);
        let steps: Vec<u64> = lines.iter().map(|line| line["step"].as_u64().unwrap()).collect();
        assert!(steps.is_sorted_by(|a, b| a < b), "each step once, in order");
    }

    #[test]
    fn a_disk_that_takes_nothing_is_told() {
        let (folder, mut file) = of(&["loss"]);
        file.is_outdated = true;
        fs::create_dir(folder.path().join("a.jsonl.next")).unwrap();
        file.add(&[Some(1.0)]);
        file.write();
        assert!(file.error.unwrap().contains("a.jsonl"));
    }
}
