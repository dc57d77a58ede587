//! The name that was probably meant, for messages.

/// The candidate most like `name`, if one is like enough.
pub(crate) fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = name.to_lowercase();
    // `retry` and `retries`: all but the last letter of one begins the other.
    let has_its_stem = |candidate: &str| {
        let same = lower.bytes().zip(candidate.bytes()).take_while(|(a, b)| a == b).count();
        same >= 4 && same + 1 >= lower.len().min(candidate.len())
    };
    candidates
        .into_iter()
        .map(|c| (strsim::damerau_levenshtein(&lower, &c.to_lowercase()), c))
        .filter(|(distance, c)| {
            *distance <= (name.chars().count().max(c.chars().count()) / 3).max(1)
                || has_its_stem(&c.to_lowercase())
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, c)| c)
}

/// "did you mean `x`?", followed by all choices.
pub(crate) fn suggestion<'a>(
    what: &str,
    name: &str,
    candidates: impl IntoIterator<Item = &'a str> + Clone,
) -> String {
    let choices = list(candidates.clone());
    match nearest(name, candidates) {
        Some(meant) => format!("did you mean `{meant}`? {what}: {choices}"),
        None if choices.is_empty() => format!("{what}: none"),
        None => format!("{what}: {choices}"),
    }
}

/// "`a`, `b`"
pub fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ")
}

/// The name of a column as a key of a workflow file.
pub fn toml_key(name: &str) -> String {
    let is_bare = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    // A string of TOML is written as one of JSON.
    if is_bare && !name.is_empty() { name.to_owned() } else { serde_json::Value::from(name).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_close_name_is_suggested() {
        assert_eq!(nearest("colour", ["color", "size"]), Some("color"));
        assert_eq!(nearest("Sacns", ["scans"]), Some("scans"));
        assert_eq!(nearest("zebra", ["color", "size"]), None);
        assert_eq!(nearest("retry", ["command", "retries", "metrics"]), Some("retries"));
        assert_eq!(nearest("outputs_of", ["inputs", "outputs"]), Some("outputs"));
        assert_eq!(nearest("outsider", ["inputs", "outputs"]), None);
        assert_eq!(suggestion("stages", "pixel", ["pixels"]), "did you mean `pixels`? stages: `pixels`");
    }
}
