//! Numbers as people read them. Formats only; never for files or scripts.

use std::time::Duration;

/// `1,234,567`
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 item`, `2,000 items`
pub fn counted(n: u64, singular: &str, plural: &str) -> String {
    format!("{} {}", count(n), if n == 1 { singular } else { plural })
}

/// A number of things per second, with about three digits that mean something: `1,234`, `56.7`, `0.123`.
pub fn per_second(rate: f64) -> String {
    if !rate.is_finite() || rate <= 0.0 {
        "0".to_owned()
    } else if rate >= 99.95 {
        count(rate.round() as u64) // saturates, and no rate is that high
    } else if rate >= 9.995 {
        format!("{rate:.1}")
    } else if rate >= 0.9995 {
        format!("{rate:.2}")
    } else {
        format!("{rate:.3}")
    }
}

/// A value of a metric, with about four digits that mean something: `0.1234`, `12.34`, `1.2e-5`.
pub fn metric(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() || value.fract() == 0.0 && size < 1e9 {
        value.to_string()
    } else if !(1e-3..1e5).contains(&size) {
        format!("{value:.3e}")
    } else {
        let digits = 3 - size.log10().floor().clamp(-3.0, 3.0) as i32; // 0 to 6
        format!("{value:.*}", usize::try_from(digits).unwrap_or(0))
    }
}

/// Time left, as a clock shows it: `0:46`, `1:02:03`, `2d 03:04`.
pub fn clock(d: Duration) -> String {
    let s = d.as_secs();
    let (days, hours, minutes, seconds) = (s / 86_400, s / 3_600 % 24, s / 60 % 60, s % 60);
    if days > 0 {
        format!("{days}d {hours:02}:{minutes:02}")
    } else if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}

/// Time that has passed: `0.2 s`, `46 s`, `5 min 12 s`, `3 h 04 min`.
pub fn elapsed(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64; // saturates; NaN becomes 0
    match whole {
        0..10 => format!("{:.1} s", if seconds.is_finite() { seconds.max(0.0) } else { 0.0 }),
        10..60 => format!("{whole} s"),
        60..3_600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", count(whole / 3_600), whole / 60 % 60),
    }
}

/// The share of `part` in `whole`, rounded down, so that 100.0 means all: `42.3`.
pub fn percent(part: u64, whole: u64) -> String {
    let tenths = if whole == 0 { 1_000 } else { u128::from(part.min(whole)) * 1_000 / u128::from(whole) };
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// `3.4` of a number of bytes in GiB.
pub fn gib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1u32 << 30))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_about_four_digits() {
        let of = |values: &[f64]| values.iter().map(|value| metric(*value)).collect::<Vec<_>>();
        assert_eq!(
            of(&[0.0, 3.0, 0.123456, 12.3456, 12345.67, 0.001234, 0.0000123, -1234567.8, f64::NAN]),
            ["0", "3", "0.1235", "12.35", "12346", "0.001234", "1.230e-5", "-1.235e6", "NaN"]
        );
    }

    #[test]
    fn counts_are_grouped_by_three() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(counted(1, "item", "items"), "1 item");
        assert_eq!(counted(0, "item", "items"), "0 items");
    }

    #[test]
    fn rates_keep_three_digits_and_never_surprise() {
        let rates = [1234.4, 99.97, 56.78, 9.999, 1.5, 0.1234, 0.0, -1.0, f64::NAN, f64::INFINITY];
        let texts = ["1,234", "100", "56.8", "10.0", "1.50", "0.123", "0", "0", "0", "0"];
        assert_eq!(rates.map(per_second), texts);
    }

    #[test]
    fn times_read_like_a_clock_or_like_speech() {
        let clocks = [46, 60, 3_723, 183_840].map(|s| clock(Duration::from_secs(s)));
        assert_eq!(clocks, ["0:46", "1:00", "1:02:03", "2d 03:04"]);
        let spoken = [0.24, 9.96, 46.4, 59.9, 312.0, 11_047.0, f64::NAN, -3.0].map(elapsed);
        assert_eq!(
            spoken,
            ["0.2 s", "10 s", "46 s", "1 min 00 s", "5 min 12 s", "3 h 04 min", "0.0 s", "0.0 s"]
        );
    }

    #[test]
    fn a_hundred_percent_means_all() {
        assert_eq!(percent(99_999, 100_000), "99.9");
        assert_eq!(percent(100_000, 100_000), "100.0");
        assert_eq!(percent(0, 0), "100.0");
        assert_eq!(percent(7, 3), "100.0");
        assert_eq!(percent(u64::MAX, u64::MAX), "100.0");
    }
}
