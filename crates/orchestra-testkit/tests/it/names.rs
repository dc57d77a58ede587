//! A name stands for one type of the workspace, tests left out. It reads declarations line by line, and knows nothing of scopes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Crates, folders and files of tests alone; and what others end with.
const OF_TESTS: [&str; 7] =
    ["orchestra-testkit", "orchestra-fuzz-checks", "benches", "examples", "fault_tests", "tests", "tests.rs"];
const TESTS_END: [&str; 2] = ["_tests", "_tests.rs"];

/// The type that a line declares. An alias counts where it begins the line: any other belongs to a trait.
fn declared(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub") || word.ends_with(')'));
    let is_type = match words.next()? {
        "struct" | "enum" | "trait" => true,
        "type" => !line.starts_with(' '),
        _ => false,
    };
    let name = words.next().filter(|_| is_type)?.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    // A macro takes it.
    (!name.is_empty()).then_some(name)
}

/// Notes the file and the line of each type that is declared below `folder`.
fn note_types(folder: &Path, places: &mut BTreeMap<String, Vec<String>>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
        if OF_TESTS.contains(&&*name) || TESTS_END.iter().any(|end| name.ends_with(end)) {
            continue;
        }
        if path.is_dir() {
            note_types(&path, places);
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(&path).unwrap();
            let production = text.split("mod tests {").next().unwrap();
            for (number, name) in (1..).zip(production.lines().map(declared)) {
                let place = || format!("{}:{number}", path.display());
                name.into_iter().for_each(|name| places.entry(name.into()).or_default().push(place()));
            }
        }
    }
}

#[test]
fn no_two_types_share_a_name() {
    let mut places = BTreeMap::new();
    note_types(&Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name(""), &mut places);
    assert!(places.len() > 1000, "only {} declarations were found", places.len());
    let shared = places.iter().filter(|(_, places)| places.len() > 1);
    let shared: Vec<_> = shared.map(|(name, places)| format!("`{name}`: {}", places.join(", "))).collect();
    assert!(
        shared.is_empty(),
        "each of these names stands for several types; keep it for the most public one, and call the others by a noun that says what they are, as `TarCursor` does:\n{}",
        shared.join("\n")
    );
}
