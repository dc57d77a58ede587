//! What people read when their file is wrong: every file in `tests/cases` against the report beside it.
//!
//! Run with `UPDATE_REPORTS=1` to write the reports anew, then read the difference.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::path::Path;

use crate::common::FakeHost;
use orchestra_plan::{PlanOptions, RenderStyle};

#[test]
fn every_wrong_file_gets_its_report() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let update = std::env::var_os("UPDATE_REPORTS").is_some();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "toml") {
            continue;
        }
        seen += 1;
        let text = fs::read_to_string(&path).unwrap();
        let (plan, diags) = FakeHost::with_cores(4).plan(&text, &PlanOptions::default());
        assert_eq!(plan.is_none(), diags.has_errors(), "{}", path.display());
        let report = diags.render(RenderStyle::Plain);
        let expected = path.with_extension("txt");
        if update {
            fs::write(&expected, &report).unwrap();
        } else if fs::read_to_string(&expected).unwrap_or_default() != report {
            wrong.push(format!("{}:\n{report}", path.display()));
        }
    }
    assert!(seen >= 20, "only {seen} cases were found");
    assert!(wrong.is_empty(), "reports differ:\n{}", wrong.join("\n"));
}
