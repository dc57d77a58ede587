//! The sources of the workspace without its tests, for checks of what stands there. It judges nothing.

use std::fs;
use std::path::Path;

/// Crates, folders and files of tests alone; and what others end with.
const OF_TESTS: [&str; 7] =
    ["orchestra-testkit", "orchestra-fuzz-checks", "benches", "examples", "fault_tests", "tests", "tests.rs"];
const TESTS_END: [&str; 2] = ["_tests", "_tests.rs"];

/// Shows each file, and its text up to the tests in it.
pub fn each_source(mut look: impl FnMut(&Path, &str)) {
    below(&Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name(""), &mut look);
}

fn below(folder: &Path, look: &mut impl FnMut(&Path, &str)) {
    for entry in fs::read_dir(folder).expect("a folder of sources").flatten() {
        let (path, name) = (entry.path(), entry.file_name().into_string().expect("names are UTF-8"));
        if OF_TESTS.contains(&&*name) || TESTS_END.iter().any(|end| name.ends_with(end)) {
            continue;
        }
        if path.is_dir() {
            below(&path, look);
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(&path).expect("a source is UTF-8");
            look(&path, text.split("mod tests {").next().unwrap_or_default());
        }
    }
}
