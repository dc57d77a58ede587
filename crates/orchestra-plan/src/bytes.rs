//! Amounts of memory as people write them. Knows nothing of workflow files.

const UNITS: [(&str, u64); 13] = [
    ("b", 1),
    ("k", 1000),
    ("kb", 1000),
    ("m", 1_000_000),
    ("mb", 1_000_000),
    ("g", 1_000_000_000),
    ("gb", 1_000_000_000),
    ("t", 1_000_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

/// Bytes of `4GiB`, `1.5 GB`, `500MB` or `4096`; units in any case. `None` for anything else.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let factor = if unit.is_empty() { 1 } else { UNITS.iter().find(|(name, _)| *name == unit)?.1 };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor);
    }
    let bytes = number.parse::<f64>().ok()? * factor as f64;
    // Beyond 2^63 nothing is an amount of memory.
    (bytes.is_finite() && bytes < 9.2e18).then_some(bytes.round() as u64)
}

/// The amount with a binary unit and at most one decimal: `4 GiB`, `1.5 MiB`, `512 B`.
pub fn format_bytes(bytes: u64) -> String {
    const SIZES: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let Some((unit, size)) = SIZES.into_iter().find(|(_, size)| bytes >= *size) else {
        return format!("{bytes} B");
    };
    let text = format!("{:.1}", bytes as f64 / size as f64);
    format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        assert_eq!(parse_bytes("4GiB"), Some(4 << 30));
        assert_eq!(parse_bytes("500MB"), Some(500_000_000));
        assert_eq!(parse_bytes("1.5 gib"), Some(3 << 29));
        assert_eq!(parse_bytes("4096"), Some(4096));
        for bad in ["", "GiB", "4 apples", "-1", "1e3", "99999999TiB", "."] {
            assert_eq!(parse_bytes(bad), None, "{bad}");
        }
    }

    #[test]
    fn sizes_are_written_short() {
        assert_eq!(format_bytes(512), "512 B");
        assert_eq!(format_bytes(3 << 29), "1.5 GiB");
        assert_eq!(format_bytes(80 << 30), "80 GiB");
        assert_eq!(format_bytes(2 << 40), "2 TiB");
    }
}
