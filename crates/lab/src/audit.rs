//! The audit: what became of each item of a run, against the list of items and against a run that was left in peace. It reads files and
//! counts; it changes nothing.

mod account;
mod compare;

use std::fmt;
use std::io;

use orchestra_store::ListingReader;
use serde::Serialize;

pub use account::{Account, Items};

use account::Key;
use compare::{same_failure, same_record};

/// Findings of each kind that are named.
const NAMED: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Flaw {
    /// It has no failure, and no record in at least one of its sinks.
    Lost,
    /// It has more than one record in a sink, more than one failure, or both.
    Doubled,
    /// It ended otherwise than in the run that was left in peace.
    Differing,
    /// There is a record of something that is no item.
    Unknown,
}

/// One of the first items with a flaw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub flaw: Flaw,
    /// The item as records name it; `None` where there is no item.
    pub item: Option<String>,
    pub index: Option<u64>,
    pub source: Option<String>,
    pub what: String,
}

/// What became of the items of one or several runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Audit {
    pub items: u64,
    /// With a record in each of their sinks.
    pub done: u64,
    pub failed: u64,
    pub lost: u64,
    pub doubled: u64,
    pub differing: u64,
    pub unknown: u64,
    /// The first of each kind.
    pub findings: Vec<Finding>,
}

impl Audit {
    /// Of one run. `peace` is the account of a run over the same items that was left in peace.
    pub fn of(items: &Items, account: &Account, peace: Option<&Account>) -> io::Result<Self> {
        let mut audit = Self { items: items.total(), unknown: account.unknown, ..Self::default() };
        for what in &account.unknown_shown {
            let what = what.clone();
            audit.name(Finding { flaw: Flaw::Unknown, item: None, index: None, source: None, what });
        }
        for (place, source) in items.sources.iter().enumerate() {
            for index in 0..source.count() {
                audit.item(items, account, peace, (place, index))?;
            }
        }
        Ok(audit)
    }

    pub fn is_clean(&self) -> bool {
        self.lost == 0 && self.doubled == 0 && self.differing == 0 && self.unknown == 0
    }

    pub fn add(&mut self, other: Self) {
        self.items += other.items;
        self.done += other.done;
        self.failed += other.failed;
        self.lost += other.lost;
        self.doubled += other.doubled;
        self.differing += other.differing;
        self.unknown += other.unknown;
        for finding in other.findings {
            self.name(finding);
        }
    }

    fn item(
        &mut self,
        items: &Items,
        account: &Account,
        peace: Option<&Account>,
        key: Key,
    ) -> io::Result<()> {
        let source = &items.sources[key.0];
        let records = account.records_of(&source.sinks, key);
        let failed = account.has_failed(key);
        self.failed += u64::from(failed);
        self.done += u64::from(!failed && records == source.sinks.len());
        let twice = match account.doubled.get(&key) {
            None if failed && records > 0 => Some("a failure and a record".to_owned()),
            twice => twice.cloned(),
        };
        let is_lost = !failed && records < source.sinks.len();
        // Two records in one sink say nothing of another that has none: an item may be both.
        let is_sound = twice.is_none() && !is_lost;
        if let Some(what) = twice {
            self.doubled += 1;
            self.found(items, Flaw::Doubled, key, what)?;
        }
        if is_lost {
            self.lost += 1;
            let what = format!("no failure, and a record in {records} of {} sinks", source.sinks.len());
            self.found(items, Flaw::Lost, key, what)?;
        }
        let Some(peace) = peace.filter(|_| is_sound) else { return Ok(()) };
        if let Some(what) = difference(&source.sinks, account, peace, key)? {
            self.differing += 1;
            self.found(items, Flaw::Differing, key, what)?;
        }
        Ok(())
    }

    fn found(&mut self, items: &Items, flaw: Flaw, (place, index): Key, what: String) -> io::Result<()> {
        if !self.has_room(flaw) {
            return Ok(());
        }
        let source = &items.sources[place];
        let mut list = ListingReader::open(&source.list).map_err(io::Error::other)?;
        list.skip_to(index).map_err(io::Error::other)?;
        let item = list.next().transpose().map_err(io::Error::other)?.map(|item| item.name);
        self.name(Finding { flaw, item, index: Some(index), source: Some(source.name.clone()), what });
        Ok(())
    }

    fn has_room(&self, flaw: Flaw) -> bool {
        self.findings.iter().filter(|f| f.flaw == flaw).count() < NAMED
    }

    fn name(&mut self, finding: Finding) {
        if self.has_room(finding.flaw) {
            self.findings.push(finding);
        }
    }
}

/// How an item ended otherwise than in peace. An item that was lost or doubled there is a flaw of that run.
fn difference(sinks: &[usize], account: &Account, peace: &Account, key: Key) -> io::Result<Option<String>> {
    let what = match (peace.failure(key)?, account.failure(key)?) {
        (Some(then), Some(now)) => (!same_failure(&then, &now)).then(|| "another failure".to_owned()),
        (None, Some(now)) => Some(format!("done without faults, and failed with them: {}", text(&now))),
        (Some(then), None) => Some(format!("done with faults, and failed without them: {}", text(&then))),
        (None, None) => {
            let mut differs = None;
            for sink in sinks {
                let (then, now) = (peace.record(*sink, key)?, account.record(*sink, key)?);
                if let (Some(then), Some(now)) = (then, now)
                    && !same_record(&then, &now)
                {
                    differs = Some(format!("{} instead of {}", text(&now), text(&then)));
                    break;
                }
            }
            differs
        }
    };
    Ok(what)
}

fn text(line: &[u8]) -> String {
    const SHOWN: usize = 200;
    let text = String::from_utf8_lossy(line);
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into_owned(),
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.flaw)?;
        if let (Some(source), Some(index)) = (&self.source, self.index) {
            write!(f, "`{}` ({source}[{index}]): ", self.item.as_deref().unwrap_or("?"))?;
        }
        f.write_str(&self.what)
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lost => "lost",
            Self::Doubled => "doubled",
            Self::Differing => "differing",
            Self::Unknown => "unknown",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use orchestra_store::{ListingSpec, write_listing};
    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;

    /// A source of `n` items whose records go to two sinks.
    struct Place {
        dir: TempDir,
        items: Items,
    }

    impl Place {
        fn new(n: u64) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let (rows, list) = (dir.path().join("rows.txt"), dir.path().join("list"));
            let names: String = (0..n).map(|i| format!("{i}.png\n")).collect();
            fs::write(&rows, names).unwrap();
            let spec = ListingSpec::Manifest { path: Some(rows), base: PathBuf::from("/") };
            write_listing(&spec, &list).unwrap();
            let mut items = Items::default();
            items.add("scans", &list, vec![0, 1]).unwrap();
            Self { dir, items }
        }

        fn account(&self, a: &str, b: &str, failures: &str) -> Account {
            // An account keeps its files open: each has files of its own.
            let own = tempfile::tempdir_in(self.dir.path()).unwrap().keep();
            let [a, b, failures] =
                [("a.jsonl", a), ("b.jsonl", b), ("failures.jsonl", failures)].map(|(name, text)| {
                    let path = own.join(name);
                    fs::write(&path, text).unwrap();
                    path
                });
            Account::read(&self.items, &failures, &[a, b]).unwrap()
        }

        fn audit(&self, a: &str, b: &str, failures: &str) -> Audit {
            Audit::of(&self.items, &self.account(a, b, failures), None).unwrap()
        }
    }

    fn line(index: u64) -> String {
        with(index, "0.5")
    }

    fn with(index: u64, score: &str) -> String {
        format!("{{\"item\":\"{index}.png\",\"index\":{index},\"source\":\"scans\",\"result\":[{score}]}}\n")
    }

    fn failure(index: u64, kind: &str) -> String {
        format!(
            "{{\"item\":\"{index}.png\",\"index\":{index},\"source\":\"scans\",\"stage\":\"m\",\"kind\":\"{kind}\",\"error\":\"e\",\"attempts\":1}}\n"
        )
    }

    fn lines(of: impl IntoIterator<Item = u64>) -> String {
        of.into_iter().map(line).collect()
    }

    fn names(audit: &Audit) -> Vec<(Flaw, Option<&str>)> {
        audit.findings.iter().map(|f| (f.flaw, f.item.as_deref())).collect()
    }

    #[test]
    fn what_is_exact_is_clean() {
        let audit = Place::new(4).audit(&lines([3, 0, 1]), &lines([0, 1, 3]), &failure(2, "decode"));
        assert!(audit.is_clean(), "{audit:?}");
        assert_eq!((audit.items, audit.done, audit.failed), (4, 3, 1));
        assert!(audit.findings.is_empty());
    }

    #[test]
    fn an_item_without_an_end_in_one_of_its_sinks_is_lost() {
        let audit = Place::new(4).audit(&lines([0, 1, 2]), &lines([0, 1, 3]), "");
        assert_eq!((audit.done, audit.lost), (2, 2));
        assert_eq!(names(&audit), [(Flaw::Lost, Some("2.png")), (Flaw::Lost, Some("3.png"))]);
        assert_eq!(
            audit.findings[0].to_string(),
            "lost: `2.png` (scans[2]): no failure, and a record in 1 of 2 sinks"
        );
        assert_eq!(Place::new(4).audit("", "", "").lost, 4);
    }

    #[test]
    fn two_ends_are_one_too_many_wherever_they_are() {
        let place = Place::new(3);
        let all = lines(0..3);
        let twice = place.audit(&(all.clone() + &line(1)), &all, "");
        assert_eq!((twice.doubled, twice.lost), (1, 0));
        assert_eq!(names(&twice), [(Flaw::Doubled, Some("1.png"))]);
        let both = place.audit(&all, &lines([0, 1]), &failure(2, "crash"));
        assert_eq!((both.doubled, both.lost, both.failed), (1, 0, 1), "a failure, and a record in one sink");
        let failures = failure(2, "crash") + &failure(2, "crash");
        assert_eq!(place.audit(&lines([0, 1]), &lines([0, 1]), &failures).doubled, 1);
    }

    #[test]
    fn a_line_that_is_no_record_of_an_item_is_unknown() {
        let place = Place::new(2);
        let all = lines(0..2);
        let other_name = line(1).replace("1.png", "7.png");
        let other_source = line(1).replace("scans", "other");
        for bad in [line(2), line(u64::MAX), other_name, other_source, "{}\n".into(), "{\"item".into()] {
            let audit = place.audit(&(all.clone() + &bad), &all, "");
            assert_eq!((audit.unknown, audit.done, audit.doubled), (1, 2, 0), "{bad}");
            assert_eq!(names(&audit), [(Flaw::Unknown, None)], "{bad}");
            assert!(audit.findings[0].what.starts_with("`a.jsonl` has "), "{audit:?}");
        }
    }

    #[test]
    fn an_item_that_ended_otherwise_than_in_peace_differs() {
        let place = Place::new(3);
        let all = lines(0..3);
        let peace = place.account(&all, &all, "");
        let against = |a: &str, b: &str, failures: &str| {
            Audit::of(&place.items, &place.account(a, b, failures), Some(&peace)).unwrap()
        };
        assert!(against(&lines([2, 1, 0]), &all, "").is_clean(), "order is free");
        assert!(against(&(lines([0, 1]) + &with(2, "0.50001")), &all, "").is_clean());
        let other = against(&all, &(lines([0, 1]) + &with(2, "0.6")), "");
        assert_eq!(names(&other), [(Flaw::Differing, Some("2.png"))]);
        let failed = against(&lines([0, 1]), &lines([0, 1]), &failure(2, "crash"));
        assert_eq!((failed.differing, failed.failed, failed.lost), (1, 1, 0));
        assert!(failed.findings[0].what.contains("\"kind\":\"crash\""), "{failed:?}");
    }

    #[test]
    fn failures_are_compared_by_kind() {
        let place = Place::new(1);
        let peace = place.account("", "", &failure(0, "crash"));
        let against = |a: &str, failures: &str| {
            Audit::of(&place.items, &place.account(a, a, failures), Some(&peace)).unwrap()
        };
        assert!(against("", &failure(0, "crash")).is_clean());
        assert_eq!(against("", &failure(0, "timeout")).differing, 1);
        assert_eq!(against(&line(0), "").differing, 1);
        assert_eq!((against("", "").differing, against("", "").lost), (0, 1));
    }

    #[test]
    fn two_records_in_one_sink_do_not_hide_that_another_has_none() {
        let place = Place::new(1);
        let audit = place.audit(&line(0).repeat(2), "", "");
        assert_eq!((audit.doubled, audit.lost, audit.done), (1, 1, 0));
        let flaws: Vec<Flaw> = audit.findings.iter().map(|f| f.flaw).collect();
        assert_eq!(flaws, [Flaw::Doubled, Flaw::Lost]);
    }

    #[test]
    fn sums_keep_the_first_findings_of_each_kind() {
        let place = Place::new(9);
        let mut sum = place.audit("", "", "");
        sum.add(place.audit(&(lines(0..9) + &line(4)), &lines(0..9), ""));
        assert_eq!((sum.items, sum.lost, sum.doubled, sum.done), (18, 9, 1, 9));
        assert_eq!(sum.findings.iter().filter(|f| f.flaw == Flaw::Lost).count(), NAMED);
        assert_eq!(sum.findings.last().map(|f| f.flaw), Some(Flaw::Doubled));
    }

    #[test]
    fn a_file_that_is_not_there_has_no_records() {
        let place = Place::new(2);
        let gone = place.dir.path().join("gone");
        let account = Account::read(&place.items, &gone, &[gone.clone(), gone.clone()]).unwrap();
        assert_eq!(Audit::of(&place.items, &account, None).unwrap().lost, 2);
    }

    proptest! {
        /// Any multiset of records: what the audit counts is what was made.
        #[test]
        fn every_item_is_counted_once_whatever_the_files_hold(
            times in proptest::collection::vec((0u8..3, 0u8..3, 0u8..3), 1..30),
        ) {
            let place = Place::new(times.len() as u64);
            let (mut a, mut b, mut failures) = (String::new(), String::new(), String::new());
            for (index, (in_a, in_b, failed)) in (0..).zip(&times) {
                a += &line(index).repeat(usize::from(*in_a));
                b += &line(index).repeat(usize::from(*in_b));
                failures += &failure(index, "crash").repeat(usize::from(*failed));
            }
            let audit = place.audit(&a, &b, &failures);
            let is_doubled = |(a, b, f): &(u8, u8, u8)| *a > 1 || *b > 1 || *f > 1 || (*f > 0 && a + b > 0);
            let is_lost = |t: &(u8, u8, u8)| t.2 == 0 && (t.0 == 0 || t.1 == 0);
            let count = |is: &dyn Fn(&(u8, u8, u8)) -> bool| times.iter().filter(|t| is(t)).count() as u64;
            prop_assert_eq!(audit.doubled, count(&is_doubled));
            prop_assert_eq!(audit.lost, count(&is_lost));
            prop_assert_eq!(audit.failed, count(&|t| t.2 > 0));
            prop_assert_eq!(audit.is_clean(), audit.done + audit.failed == audit.items && audit.doubled == 0);
        }
    }
}
