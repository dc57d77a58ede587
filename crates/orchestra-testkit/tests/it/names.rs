//! A name stands for one type of the workspace, tests left out. It reads declarations line by line, and knows nothing of scopes.

use std::collections::BTreeMap;

use orchestra_testkit::production::each_source;

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

#[test]
fn no_two_types_share_a_name() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    each_source(|path, text| {
        for (number, name) in (1..).zip(text.lines().map(declared)) {
            let place = || format!("{}:{number}", path.display());
            name.into_iter().for_each(|name| places.entry(name.into()).or_default().push(place()));
        }
    });
    assert!(places.len() > 1000, "only {} declarations were found", places.len());
    let shared = places.iter().filter(|(_, places)| places.len() > 1);
    let shared: Vec<_> = shared.map(|(name, places)| format!("`{name}`: {}", places.join(", "))).collect();
    assert!(
        shared.is_empty(),
        "each of these names stands for several types; keep it for the most public one, and call the others by a noun that says what they are, as `TarCursor` does:\n{}",
        shared.join("\n")
    );
}
