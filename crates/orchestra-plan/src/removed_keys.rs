//! Keys that earlier versions of the file format had. Each is an error that says what takes its place; none is read.

/// The beginning of what messages call the table, the key, and what to do instead.
const REMOVED: [(&str, &str, &str); 2] =
    [("model ", "spare", WITHOUT_SPARE), ("stage ", "spare", WITHOUT_SPARE)];

const WITHOUT_SPARE: &str =
    "leave it out: a dead worker is replaced at once; `workers = 2` keeps one at work meanwhile";

/// What to do instead of `key` of the table that messages call `what`, if that key was removed.
pub(crate) fn instead_of(what: &str, key: &str) -> Option<&'static str> {
    let removed = REMOVED.iter().find(|(table, name, _)| *name == key && what.starts_with(table));
    removed.map(|(.., instead)| *instead)
}
