//! Curves: their numbers as data in the page, and the same in a sentence.

use maud::{Markup, html};
use serde::Serialize;

use super::json;
use crate::human::metric;

/// What `x` counts in charts over time.
pub const SECONDS: &str = "seconds";

#[derive(Debug, Default, Serialize)]
pub struct Chart {
    #[serde(skip)]
    pub title: String,
    /// What `x` counts, and what the values are in.
    pub x_label: String,
    pub unit: String,
    pub x: Vec<f64>,
    pub series: Vec<Series>,
    /// Places on `x` that are marked: the starts of a run but the first.
    pub marks: Vec<f64>,
}

#[derive(Debug, Default, Serialize)]
pub struct Series {
    pub name: String,
    pub values: Vec<Option<f64>>,
    /// Drawn stronger than the others.
    pub strong: bool,
}

impl Chart {
    /// Adds a series of values at the places of `x`; one without any value is left out.
    pub fn add(&mut self, name: &str, points: Vec<(f64, Option<f64>)>) {
        if points.iter().all(|(_, value)| value.is_none()) {
            return;
        }
        if self.x.is_empty() {
            self.x = points.iter().map(|(x, _)| short(*x)).collect();
        }
        let values = points.into_iter().map(|(_, value)| value.filter(|value| value.is_finite()).map(short));
        self.series.push(Series { name: name.to_owned(), values: values.collect(), strong: false });
    }

    /// `None` where there is no curve: two moments are none.
    pub fn figure(&self) -> Option<Markup> {
        let known = |series: &Series| series.values.iter().flatten().count();
        self.series.iter().any(|series| known(series) > 2).then(|| {
            html! {
                figure.chart {
                    h3 { (self.title) }
                    div.plot role="img" aria-label={ (self.title) ": " (self.in_words()) } {}
                    script type="application/json" { (json(self)) }
                    figcaption { (self.in_words()) }
                }
            }
        })
    }

    fn in_words(&self) -> String {
        const NAMED: usize = 6;
        let of = |series: &Series| {
            let known = || series.values.iter().flatten().copied();
            let (least, most) =
                known().fold((f64::MAX, f64::MIN), |(a, b), value| (a.min(value), b.max(value)));
            let last = known().last().unwrap_or_default();
            let then = match self.x_label.as_str() {
                SECONDS => format!("mean {}", metric(short(self.mean(series)))),
                _ => format!("last {}", metric(last)),
            };
            format!("{}: {} to {}, {then}", series.name, metric(least), metric(most))
        };
        let mut words: Vec<String> = self.series.iter().take(NAMED).map(of).collect();
        if self.series.len() > NAMED {
            words.push(format!("and {} more", self.series.len() - NAMED));
        }
        format!("{} ({})", words.join("; "), self.unit)
    }
}

impl Chart {
    /// Over time: a value holds since the one before.
    fn mean(&self, series: &Series) -> f64 {
        let (mut before, mut sum, mut length) = (0.0, 0.0, 0.0);
        for (x, value) in self.x.iter().zip(&series.values) {
            if let Some(value) = value {
                sum += value * (x - before);
                length += x - before;
            }
            before = *x;
        }
        if length > 0.0 { sum / length } else { 0.0 }
    }
}

/// Five digits are more than a screen shows.
pub fn short(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let scale = 10_f64.powi(4 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}
