//! The page of two runs side by side.

use maud::{Markup, html};

use super::table::{self, table};
use crate::compare::{ComparedFact, RunComparison};

pub fn compared(comparison: &RunComparison) -> Markup {
    let n_changed = comparison.facts.iter().filter(|fact| fact.changed).count();
    let row = |fact: &ComparedFact| {
        let value = |at: usize| table::text(fact.values[at].as_deref().unwrap_or("–"));
        vec![table::text(fact.section), table::text(&fact.what), value(0), value(1)]
    };
    let (changed, same): (Vec<_>, Vec<_>) = comparison.facts.iter().partition(|fact| fact.changed);
    let heads = ["section", "what", "A", "B"];
    html! {
        header {
            h1 { "Two runs side by side" }
            p.verdict.open { strong { (n_changed) " of " (comparison.facts.len()) " facts differ." } }
            dl.facts { @for (name, folder) in ["A", "B"].iter().zip(&comparison.folders) { dt { (name) } dd { code { (folder.display()) } } } }
        }
        main {
            (table("What differs", &heads, changed.into_iter().map(row).collect()))
            (table("What is the same", &heads, same.into_iter().map(row).collect()))
        }
    }
}
