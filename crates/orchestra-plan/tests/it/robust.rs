//! Files that no person would write: whatever the text, there is a plan or there are errors, never a panic.

use crate::common::{DIGITS, FakeHost};
use orchestra_plan::{PlanOptions, RenderStyle};
use proptest::prelude::*;

fn survives(text: &str, options: &PlanOptions) {
    let (plan, diags) = FakeHost::with_cores(4).plan(text, options);
    assert_eq!(plan.is_none(), diags.has_errors());
    assert_eq!(diags.cause().is_some(), diags.has_errors());
    assert_eq!(diags.render(RenderStyle::Coloured).is_empty(), diags.all().is_empty());
    assert_eq!(diags.to_json()["errors"].as_array().map(Vec::len), Some(diags.errors().count()));
    if options.set.is_empty() {
        let places = diags.all().iter().filter_map(|diagnostic| diagnostic.span);
        for place in places {
            assert!(text.get(place.start..place.end).is_some(), "{place:?} is not in the text");
        }
    }
}

proptest! {
    #[test]
    fn any_value_of_any_key_is_planned_or_explained(
        line in 0usize..40,
        value in prop_oneof![
            Just("-1"), Just("1.5"), Just("nan"), Just("inf"), Just("true"), Just("[]"), Just("{}"),
            Just("\"\""), Just("\"..\""), Just("\"\\u0000\""), Just("[[1]]"), Just("1979-05-27"),
            Just("9223372036854775807"), Just("[32768, 32768]"), Just("\"scans\""), Just("\"answer\""),
        ],
    ) {
        let lines: Vec<String> = DIGITS
            .lines()
            .enumerate()
            .map(|(n, text)| match text.split_once('=') {
                Some((key, _)) if n == line => format!("{key}= {value}"),
                _ => text.to_owned(),
            })
            .collect();
        survives(&lines.join("\n"), &PlanOptions::default());
    }

    #[test]
    fn any_option_is_taken_or_explained(key in "[a-z.\"= ]{0,12}", value in "\\PC{0,12}", device in "\\PC{0,8}") {
        let set = vec![(key, value)];
        survives(DIGITS, &PlanOptions { set, devices: Some(vec![device]), ..PlanOptions::default() });
    }
}

/// Each of these takes minutes where the time grows with more than the length.
#[test]
fn a_long_file_is_planned_or_explained_in_a_time_that_grows_with_its_length() {
    let keys: String = (0..20_000).map(|n| format!("no_key_{n} = {n}\n")).collect();
    let (_, diags) = FakeHost::with_cores(4).plan(
        &format!("{DIGITS}\n[sources.more]\nkind = \"range\"\nstop = 1\n{keys}"),
        &PlanOptions::default(),
    );
    let report = diags.render(RenderStyle::Plain);
    assert!(
        diags.errors().count() >= 20_000 && report.contains("no_key_900 = 900"),
        "{}",
        diags.errors().count()
    );
    // A text shows the first thousand faults of a file.
    assert!(report.len() < 1 << 20 && report.contains("more are not shown"), "{} bytes", report.len());
    let stage = |n: usize| {
        let from = if n == 0 { "scans".to_owned() } else { format!("f{}", n - 1) };
        format!("[stages.f{n}]\nkind = \"filter\"\nkeep = \"true\"\nfrom = \"{from}\"\n")
    };
    let chain = |n: usize| {
        let text: String = (0..n).map(stage).collect();
        let (_, diags) = FakeHost::with_cores(4).plan(&format!("{DIGITS}\n{text}"), &PlanOptions::default());
        diags.render(RenderStyle::Plain)
    };
    assert!(!chain(256).contains("error"), "{}", chain(256));
    assert!(chain(4_000).contains("stage `f256` stands behind 256 others"), "{}", chain(4_000));
    let mut host = FakeHost::with_cores(4);
    host.files.insert("/flows/labels10.txt".into(), b"a\n".repeat((1 << 20) + 1));
    let (_, diags) = host.plan(&DIGITS.replace("labels3.txt", "labels10.txt"), &PlanOptions::default());
    let report = diags.render(RenderStyle::Plain);
    assert!(report.contains("has more than 1048576 lines"), "{report}");
}

#[test]
fn a_table_of_rows_has_bounds() {
    let refused = |name: &str, table: &str, matrix: &str| {
        let text = format!(
            "version = 1\n[tasks.a]\ncommand = [\"true\"]\nfor_each = \"{name}\"\nmatrix = {{ {matrix} }}\n"
        );
        let (_, diags) = FakeHost::with_cores(4)
            .file(&format!("/flows/{name}"), table)
            .plan(&text, &PlanOptions::default());
        let short = |message: &str| message.chars().take(200).collect::<String>();
        diags.errors().map(|error| short(&error.message)).collect::<Vec<_>>().join("; ")
    };
    let columns = |n: usize, value: &str| {
        let names: Vec<String> = (0..n).map(|n| format!("c{n}")).collect();
        let values = vec![value; n];
        (names.join(",") + "\n", values.join(",") + "\n")
    };
    let (names, values) = columns(1000, "1");
    assert_eq!(refused("t.csv", &(names.clone() + &values), ""), "");
    let many = names + &values.repeat(2000);
    assert!(refused("t.csv", &many, "").ends_with("its values take more than 128 MiB"));
    let (names, values) = columns(1001, "1");
    assert!(refused("t.csv", &(names + &values), "").ends_with("it has 1001 columns; 1000 is the most"));
    // A name is held for each row.
    let long = "n".repeat(1 << 20) + "\n" + &"1\n".repeat(1000);
    assert!(refused("t.csv", &long, "").ends_with("its values take more than 128 MiB"));
    let line = format!("{{\"a\": [{}1]}}\n", "1,".repeat(1 << 19));
    assert!(refused("t.jsonl", &line, "").ends_with("line 1 is longer than 1 MiB"));
    let value = "a\n".to_owned() + &"v".repeat(1 << 20) + "\n";
    let matrix = format!("b = [{}]", vec!["1"; 600].join(","));
    assert!(refused("t.csv", &value, &matrix).contains("more than 512 MiB of values"));
}

#[test]
fn a_message_shows_control_characters_and_does_not_send_them_to_the_terminal() {
    let quoted = DIGITS.replace("[32, 32]", "\"\\u001b[2J\"");
    // The last is a control sequence introducer of one character, in UTF-8 of two bytes.
    let files = ["[s\u{1}\0\u{1b}[2Jcans]", "version = \u{1b}]0;title\u{7}", &quoted, " }c\0\u{9b}2Jmo,"];
    for text in files {
        let (plan, diags) = FakeHost::with_cores(4).plan(text, &PlanOptions::default());
        assert!(plan.is_none());
        let shown = diags.render(RenderStyle::Plain);
        assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
    }
}
