//! What must hold for all errors and warnings about a file. It knows no file format.

use orchestra_plan::{Diagnostic, Diagnostics, RenderStyle, Severity};

/// Errors about a workflow or the machine as a whole, which have no place in the file. All others must say where.
const WITHOUT_A_PLACE: [&str; 3] =
    ["the workflow has no sink", "this machine cannot be looked at", "one batch slot per worker takes"];

/// Checks what was said about a file, and that it can be shown in every way. `accepted`: whether something was made of the file.
pub(crate) fn check(diags: &Diagnostics, accepted: bool) {
    assert_eq!(accepted, !diags.has_errors(), "a file is taken exactly if there is no error: {diags:?}");
    assert_eq!(diags.cause().is_some(), diags.has_errors());
    for diagnostic in diags.all() {
        check_one(diags, diagnostic);
    }
    let plain = diags.render(RenderStyle::Plain);
    assert_eq!(plain.is_empty(), diags.all().is_empty());
    // What a file says must not steer the terminal that shows the message.
    let steers = |c: char| c != '\n' && c.is_control();
    assert!(!plain.contains(steers), "a control character is shown as it is: {plain:?}");
    let coloured = diags.render(RenderStyle::Coloured);
    assert!(!coloured.contains(|c| c != '\u{1b}' && steers(c)), "{coloured:?}");
    let json = diags.to_json();
    assert_eq!(json["errors"].as_array().map(Vec::len), Some(diags.errors().count()));
    assert_eq!(json["warnings"].as_array().map(Vec::len), Some(diags.warnings().count()));
}

fn check_one(diags: &Diagnostics, diagnostic: &Diagnostic) {
    assert!(!diagnostic.message.is_empty());
    assert!(!diagnostic.message.contains("this is a bug of orchestra"), "{diagnostic:?}");
    let Some(span) = diagnostic.span else {
        let may_have_none = WITHOUT_A_PLACE.iter().any(|m| diagnostic.message.starts_with(m))
            || diagnostic.severity == Severity::Warning;
        assert!(may_have_none, "an error says where: {diagnostic:?}");
        return;
    };
    let (_, text) = diags.text_of(span);
    assert!(text.get(span.start..span.end).is_some(), "{diagnostic:?} is no part of {} bytes", text.len());
    let (line, column) = diags.line_and_column(span);
    assert!(line >= 1 && column >= 1 && line <= text.matches('\n').count() + 1);
}
