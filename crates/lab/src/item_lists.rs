//! Which items an experiment runs over: some, spread evenly over the sources, or all of them again and again. It opens no item.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use orchestra_core::SourceId;
use orchestra_plan::Plan;
use orchestra_store::{ListError, ListingReader, ListingSpec, write_items};

use crate::error::LabError;
use crate::run::Cancel;

/// All items of all sources, as lists on disk.
#[derive(Debug)]
pub struct ItemLists {
    sources: Vec<Listed>,
}

#[derive(Debug)]
struct Listed {
    name: String,
    path: PathBuf,
    items: u64,
}

/// What a run goes over, in the order of the plan's sources.
#[derive(Debug, Default)]
pub struct Lists(pub Vec<SourceList>);

/// Items of one source, as a list on disk that a run can read.
#[derive(Debug, Clone)]
pub struct SourceList {
    pub listing: ListingSpec,
    pub items: u64,
}

impl ItemLists {
    /// Lists every source of the plan, once, into `folder`.
    pub fn list(plan: &Plan, folder: &Path, cancel: &Cancel) -> Result<Self, LabError> {
        let list = |(i, source): (usize, &orchestra_plan::SourcePlan)| {
            let path = folder.join(format!("items-{i}"));
            let most = plan.pipelines[source.pipeline.index()].limits.max_items;
            let go_on = || !cancel.is_cancelled();
            match write_items(&source.listing, source.expand.as_deref(), most, &path, &go_on) {
                Ok(summary) => Ok(Listed { name: source.name.clone(), path, items: summary.count }),
                Err(_) if cancel.is_cancelled() => Err(LabError::Cancelled),
                Err(error) => Err(LabError::Listing { source_name: source.name.clone(), error }),
            }
        };
        let sources = plan.sources.iter().enumerate().map(list).collect::<Result<Vec<_>, _>>()?;
        let item_lists = Self { sources };
        if item_lists.total() == 0 { Err(LabError::NoItems) } else { Ok(item_lists) }
    }

    pub fn total(&self) -> u64 {
        self.sources.iter().map(|s| s.items).sum()
    }

    /// Per source about its share of `n` items, at least one of a source that has any, never one twice. Items whose path is no text are
    /// left out, because the list that a run reads is text.
    pub fn paths(&self, n: u64) -> Result<Vec<Vec<PathBuf>>, LabError> {
        let take = |listed: &Listed| {
            let mut paths = Vec::new();
            let n = self.share(listed, n).min(listed.items);
            listed.each(n, &mut |path| paths.push(path.to_owned())).map_err(listed.error())?;
            Ok(paths)
        };
        let paths = self.sources.iter().map(take).collect::<Result<Vec<_>, LabError>>()?;
        if paths.iter().all(Vec::is_empty) { Err(LabError::NoItems) } else { Ok(paths) }
    }

    /// The same as lists in `folder`. Where a source has fewer items than its share, each comes again and again, and each time it is an
    /// item of its own. Nothing is held in memory.
    pub fn write_lists(&self, n: u64, folder: &Path) -> Result<Lists, LabError> {
        let write = |(i, listed): (usize, &Listed)| {
            let path = folder.join(format!("list-{i}.jsonl"));
            let failed = |error| LabError::io("writing the list of the items")(error);
            let mut out = BufWriter::new(File::create(&path).map_err(failed)?);
            let (mut items, mut written) = (0, Ok(()));
            let mut put = |path: &Path| {
                if written.is_ok() {
                    written = put_line(&mut out, path);
                    items += 1;
                }
            };
            let mut left = self.share(listed, n);
            while left > 0 {
                let now = left.min(listed.items);
                listed.each(now, &mut put).map_err(listed.error())?;
                left -= now;
            }
            written.and_then(|()| out.flush()).map_err(failed)?;
            Ok(SourceList { listing: manifest(path), items })
        };
        let lists = self.sources.iter().enumerate().map(write).collect::<Result<Vec<_>, LabError>>()?;
        let lists = Lists(lists);
        if lists.total() == 0 { Err(LabError::NoItems) } else { Ok(lists) }
    }

    /// What a source has of `n` items: its part of all, rounded up.
    fn share(&self, listed: &Listed, n: u64) -> u64 {
        if listed.items == 0 {
            return 0;
        }
        let share = (u128::from(n) * u128::from(listed.items)).div_ceil(u128::from(self.total().max(1)));
        u64::try_from(share).unwrap_or(u64::MAX).max(1)
    }
}

impl Listed {
    /// Visits `n` items (no more than there are), spread evenly, in order.
    fn each(&self, n: u64, visit: &mut dyn FnMut(&Path)) -> Result<(), ListError> {
        let mut reader = ListingReader::open(&self.path)?;
        for k in 0..n {
            let at = place(k, n, self.items);
            if at != reader.next_index() {
                reader.skip_to(at)?;
            }
            match reader.next().transpose()? {
                Some(item) if item.locator.to_str().is_some() => visit(&item.locator),
                Some(_) => {}
                None => break,
            }
        }
        Ok(())
    }

    fn error(&self) -> impl Fn(ListError) -> LabError + '_ {
        |error| LabError::Listing { source_name: self.name.clone(), error }
    }
}

impl Lists {
    pub fn total(&self) -> u64 {
        self.0.iter().map(|s| s.items).sum()
    }

    /// The share of a source, 0 to 1.
    pub fn weight(&self, source: SourceId) -> f64 {
        let of = self.0.get(source.index()).map_or(0, |s| s.items);
        of as f64 / self.total().max(1) as f64
    }
}

/// The place of the `k`-th of `n` items that are spread over `of`.
fn place(k: u64, n: u64, of: u64) -> u64 {
    (u128::from(k) * u128::from(of) / u128::from(n.max(1))) as u64 // below `of`, because `k` is below `n`
}

fn manifest(path: PathBuf) -> ListingSpec {
    ListingSpec::Manifest { path: Some(path), base: PathBuf::from("/") }
}

fn put_line(out: &mut BufWriter<File>, item: &Path) -> std::io::Result<()> {
    serde_json::to_writer(&mut *out, item)?;
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use orchestra_store::write_listing;

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

    fn read(spec: &ListingSpec, list: &Path) -> Vec<PathBuf> {
        write_listing(spec, list).unwrap();
        ListingReader::open(list).unwrap().map(|i| i.unwrap().locator).collect()
    }

    fn item_lists(folder: &Path, sources: &[Vec<PathBuf>]) -> ItemLists {
        let list = |(s, names): (usize, &Vec<PathBuf>)| {
            let (path, rows) = (folder.join(format!("items-{s}")), folder.join(format!("rows-{s}.jsonl")));
            let mut out = BufWriter::new(File::create(&rows).unwrap());
            names.iter().for_each(|name| put_line(&mut out, name).unwrap());
            out.flush().unwrap();
            if !names.is_empty() {
                write_listing(&manifest(rows), &path).unwrap();
            }
            Listed { name: format!("s{s}"), path, items: names.len() as u64 }
        };
        ItemLists { sources: sources.iter().enumerate().map(list).collect() }
    }

    fn numbered(sizes: &[u64]) -> Vec<Vec<PathBuf>> {
        sizes.iter().map(|n| (0..*n).map(|i| PathBuf::from(format!("/{i}.png"))).collect()).collect()
    }

    #[test]
    fn paths_survive_the_list() {
        let dir = tempfile::tempdir().unwrap();
        let odd = ["/a b.png", "/new\nline.png", "/quote\".png", "/ä.png"].map(PathBuf::from).to_vec();
        let all = item_lists(dir.path(), std::slice::from_ref(&odd));
        let lists = all.write_lists(4, dir.path()).unwrap();
        assert_eq!(read(&lists.0[0].listing, &dir.path().join("list")), odd);
        assert_eq!((all.paths(4).unwrap(), lists.weight(SourceId(0))), (vec![odd], 1.0));
    }

    #[test]
    fn a_list_that_is_too_short_comes_again_and_again_and_a_long_one_is_spread() {
        let dir = tempfile::tempdir().unwrap();
        let all = item_lists(dir.path(), &numbered(&[4, 0, 8]));
        for n in [1, 3, 12, 13, 100] {
            let lists = all.write_lists(n, dir.path()).unwrap();
            let counts: Vec<u64> = lists.0.iter().map(|l| l.items).collect();
            assert_eq!(counts, [(n * 4).div_ceil(12), 0, (n * 8).div_ceil(12)], "{n}");
            let named = read(&lists.0[0].listing, &dir.path().join("list"));
            let mut times = [0u64; 4];
            for path in &named {
                let stem = path.file_stem().unwrap().to_str().unwrap();
                times[stem.parse::<usize>().unwrap()] += 1;
            }
            assert_eq!(times.iter().sum::<u64>(), counts[0]);
            assert!(times.iter().max().unwrap() - times.iter().min().unwrap() <= 1, "{times:?}");
        }
    }

    #[test]
    fn paths_are_never_more_than_there_are() {
        let dir = tempfile::tempdir().unwrap();
        let all = item_lists(dir.path(), &numbered(&[4, 8]));
        let n = |n| all.paths(n).unwrap().iter().map(Vec::len).sum::<usize>();
        assert_eq!((n(100), n(3)), (12, 3));
    }
}
