//! Which items a run goes over: some, spread evenly over the sources, or all of them again and again. It opens no item.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use orchestra_launch::{Plan, ProcessLauncher, expand_of};
use orchestra_store::{ListError, ListingReader, ListingSpec, write_items};

use crate::Failed;
use crate::exit_code::ExitCode;

/// All items of all sources, as lists on disk.
pub struct ItemLists {
    /// In the order of the plan.
    sources: Vec<ListedSource>,
}

struct ListedSource {
    name: String,
    path: PathBuf,
    items: u64,
}

impl ItemLists {
    /// Lists every source of the plan, once, into `folder`.
    pub fn list(plan: &Plan, folder: &Path, go_on: &dyn Fn() -> bool) -> Result<Self, Failed> {
        let launcher =
            ProcessLauncher::this_executable().map_err(|e| Failed::new(ExitCode::Unavailable, e))?;
        let list = |(i, source): (usize, &orchestra_plan::SourcePlan)| {
            let path = folder.join(format!("items-{i}"));
            let limits = &plan.pipelines[source.pipeline.index()].limits;
            let expand = expand_of(source, limits, Some(&launcher));
            let listed = write_items(&source.listing, expand.as_deref(), limits.max_items, &path, go_on);
            let items = listed.map_err(not_listed(&source.name))?.count;
            Ok(ListedSource { name: source.name.clone(), path, items })
        };
        // Rows that stages make are there once these have run.
        let sources = plan.sources.iter().filter(|source| source.reduced.is_none()).enumerate();
        let sources = sources.map(list).collect::<Result<Vec<_>, Failed>>()?;
        let item_lists = Self { sources };
        match item_lists.total() {
            0 => {
                let what = anyhow!("the sources name no items: there is nothing to run");
                Err(Failed::new(ExitCode::BadFile, what))
            }
            _ => Ok(item_lists),
        }
    }

    pub fn total(&self) -> u64 {
        self.sources.iter().map(|listed| listed.items).sum()
    }

    /// The plan over its share of `n` items for each source, at least one of each that has any, and how many items these are. Lists that a run reads
    /// are text: an item whose path is none is left out.
    pub fn choose(&self, plan: &Plan, n: u64, folder: &Path) -> Result<(Plan, u64), Failed> {
        let (mut plan, mut items) = (plan.clone(), 0);
        for (i, (source, listed)) in plan.sources.iter_mut().zip(&self.sources).enumerate() {
            let path = folder.join(format!("list-{i}.jsonl"));
            let written = listed.write(share(listed.items, n, self.total()), &path);
            items += written.map_err(|error| {
                let error = error.context(format!("the items of source `{}` cannot be listed", listed.name));
                Failed::new(ExitCode::TryAgain, error)
            })?;
            source.listing = ListingSpec::Manifest { path: Some(path), base: PathBuf::from("/") };
            // The list names items, and no files any more.
            source.expand = None;
        }
        Ok((plan, items))
    }
}

impl ListedSource {
    /// Writes the names of `n` items to a file, in order: those of as many passes as it takes. Gives how many they are.
    fn write(&self, n: u64, path: &Path) -> anyhow::Result<u64> {
        let mut out = BufWriter::new(File::create(path)?);
        let (mut left, mut written) = (n, 0);
        while left > 0 {
            let now = left.min(self.items);
            let mut reader = ListingReader::open(&self.path)?;
            for k in 0..now {
                let at = place(k, now, self.items);
                if at != reader.next_index() {
                    reader.skip_to(at)?;
                }
                if let Some(path) = reader.next().transpose()?.as_ref().and_then(|item| item.locator.to_str())
                {
                    serde_json::to_writer(&mut out, path)?;
                    out.write_all(b"\n")?;
                    written += 1;
                }
            }
            left -= now;
        }
        out.flush()?;
        Ok(written)
    }
}

pub fn not_listed(source: &str) -> impl FnOnce(ListError) -> Failed + '_ {
    move |error| {
        let code = if error.is_of_source() { ExitCode::BadFile } else { ExitCode::TryAgain };
        Failed::new(code, anyhow!("the items of source `{source}` cannot be listed: {error}"))
    }
}

/// What a source with so many items has of `n`: its part of all, rounded up.
fn share(items: u64, n: u64, total: u64) -> u64 {
    if items == 0 {
        return 0;
    }
    let share = (u128::from(n) * u128::from(items)).div_ceil(u128::from(total.max(1)));
    u64::try_from(share).unwrap_or(u64::MAX).max(1)
}

/// The place of the `k`-th of `n` items that are spread over `of`.
fn place(k: u64, n: u64, of: u64) -> u64 {
    (u128::from(k) * u128::from(of) / u128::from(n.max(1))) as u64 // below `of`, because `k` is below `n`
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_spread_evenly_and_names_nothing_twice() {
        for (n, of) in [(1, 1), (3, 10), (10, 10), (7, 1_000_003), (400, 401)] {
            let places: Vec<u64> = (0..n).map(|k| place(k, n, of)).collect();
            assert_eq!(places[0], 0);
            assert!(places.is_sorted_by(|a, b| a < b) && places.iter().all(|p| *p < of), "{n} of {of}");
            let gaps = places.windows(2).map(|w| w[1] - w[0]);
            assert!(gaps.clone().max().unwrap_or(1) - gaps.min().unwrap_or(1) <= 1);
        }
    }

    #[test]
    fn a_source_has_its_part_of_the_items_and_at_least_one() {
        assert_eq!([4, 0, 8].map(|items| share(items, 100, 12)), [34, 0, 67]);
        assert_eq!([1, 999].map(|items| share(items, 3, 1000)), [1, 3]);
    }
}
