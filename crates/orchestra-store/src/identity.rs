//! What makes a run the same run when it is started again, and what changed if it is not. Decides nothing about it.

use std::fmt;

use bincode::{Decode, Encode};

/// What makes a run this one. Stored in the journal's first entry.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct RunIdentity {
    /// Unique name of the run, kept when it is resumed.
    pub run_id: String,
    pub workflow: String,
    /// What a change of would make old and new records disagree: name (`model digits`) and digest, in any order.
    pub fingerprint: Vec<(String, String)>,
    /// When the run was first started, in milliseconds since 1970 UTC.
    pub started_unix_ms: u64,
}

/// One part of the fingerprint that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Which part, for example `model digits`.
    pub name: String,
    /// What it was; `None` if it is new.
    pub before: Option<String>,
    /// What it is; `None` if it is gone.
    pub after: Option<String>,
}

impl RunIdentity {
    /// What of `now` differs from this stored identity: the workflow's name and the fingerprint. Empty if it is the same run;
    /// the run's id and start never count.
    pub fn changes(&self, now: &RunIdentity) -> Vec<Change> {
        let before = self.parts();
        let after = now.parts();
        let value = |parts: &[(String, String)], name: &str| {
            parts.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone())
        };
        let changed = before.iter().filter_map(|(name, old)| {
            let new = value(&after, name);
            (new.as_ref() != Some(old)).then(|| Change {
                name: name.clone(),
                before: Some(old.clone()),
                after: new,
            })
        });
        // What is said beside of a part that the old run had (`what decodes source `x``) was not noted when it began.
        let is_noted_since = |name: &str| before.iter().any(|(old, _)| name.ends_with(&old[..]));
        let added = after
            .iter()
            .filter(|(name, _)| value(&before, name).is_none() && !is_noted_since(name))
            .map(|(name, new)| Change { name: name.clone(), before: None, after: Some(new.clone()) });
        changed.chain(added).collect()
    }

    fn parts(&self) -> Vec<(String, String)> {
        let name = ("workflow name".to_owned(), self.workflow.clone());
        std::iter::once(name).chain(self.fingerprint.iter().cloned()).collect()
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match (&self.before, &self.after) {
            (None, _) => "is new",
            (_, None) => "is gone",
            _ => "changed",
        };
        write!(f, "`{}` {what}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(workflow: &str, parts: &[(&str, &str)]) -> RunIdentity {
        RunIdentity {
            run_id: "r".into(),
            workflow: workflow.into(),
            fingerprint: parts.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect(),
            started_unix_ms: 0,
        }
    }

    #[test]
    fn only_what_differs_is_named_and_order_does_not_matter() {
        let before = identity("w", &[("file", "1"), ("model a", "2"), ("model b", "3")]);
        let same =
            RunIdentity { run_id: "other".into(), started_unix_ms: 9, ..identity("w", &[("model b", "3")]) };
        let same = RunIdentity {
            fingerprint: vec![
                same.fingerprint[0].clone(),
                ("file".into(), "1".into()),
                ("model a".into(), "2".into()),
            ],
            ..same
        };
        assert_eq!(before.changes(&same), []);
        let after = identity("v", &[("file", "1"), ("model a", "4"), ("model c", "5")]);
        let text: Vec<_> = before.changes(&after).iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            ["`workflow name` changed", "`model a` changed", "`model b` is gone", "`model c` is new"]
        );
    }

    #[test]
    fn what_older_versions_did_not_note_of_a_part_is_no_change() {
        let before = identity("w", &[("model `m`", "1")]);
        let now = identity("w", &[("model `m`", "1"), ("`tf32` of model `m`", "false")]);
        assert_eq!(before.changes(&now), []);
        let later = identity("w", &[("model `m`", "1"), ("`tf32` of model `m`", "true")]);
        assert_eq!(now.changes(&later).len(), 1, "once it is noted, it counts");
        let more = identity("w", &[("model `m`", "1"), ("model `n`", "1")]);
        assert_eq!(before.changes(&more).len(), 1);
    }
}
