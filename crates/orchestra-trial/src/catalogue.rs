//! Which items a trial runs over: all of them, a sample spread evenly over the sources, or, where there are too few, the same ones again
//! and again. It names items and opens none.

use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use orchestra_core::SourceId;
use orchestra_plan::Plan;
use orchestra_source::{ListError, ListingReader, ListingSpec, write_listing_while};

use crate::cancel::Cancel;
use crate::error::TrialError;

/// All items of all sources, as lists on disk.
#[derive(Debug)]
pub struct Catalogue {
    sources: Vec<Listed>,
}

#[derive(Debug)]
struct Listed {
    name: String,
    path: PathBuf,
    items: u64,
}

/// Some of the items, held in memory.
#[derive(Debug)]
pub struct Sample {
    /// In the order of the plan's sources.
    pub sources: Vec<SourceSample>,
}

/// Those of one source.
#[derive(Debug)]
pub struct SourceSample {
    /// Which source.
    pub source: SourceId,
    /// Where they lie.
    pub paths: Vec<PathBuf>,
}

/// The items of one source, as a list on disk that a run can read.
#[derive(Debug, Clone)]
pub struct SourceList {
    /// How to list it.
    pub listing: ListingSpec,
    /// How many items that gives.
    pub items: u64,
}

impl Catalogue {
    /// Lists every source of the plan, once, into `folder`.
    ///
    /// # Errors
    /// A source cannot be listed, there is no item at all, or it is cancelled.
    pub fn list(plan: &Plan, folder: &Path, cancel: &Cancel) -> Result<Self, TrialError> {
        let list = |(i, source): (usize, &orchestra_plan::SourcePlan)| {
            let path = folder.join(format!("items-{i}"));
            let listed = write_listing_while(&source.listing, &path, &|| !cancel.is_cancelled());
            match listed {
                Ok(summary) => Ok(Listed { name: source.name.clone(), path, items: summary.count }),
                Err(_) if cancel.is_cancelled() => Err(TrialError::Cancelled),
                Err(error) => Err(TrialError::Listing { source_name: source.name.clone(), error }),
            }
        };
        let sources = plan.sources.iter().enumerate().map(list).collect::<Result<Vec<_>, _>>()?;
        let catalogue = Self { sources };
        if catalogue.total() == 0 { Err(TrialError::NoItems) } else { Ok(catalogue) }
    }

    /// Items of all sources.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.sources.iter().map(|s| s.items).sum()
    }

    /// About `n` items, at least one of each source that has any, spread evenly; never more than there are. Items whose path is no text
    /// are left out, because the list that a run reads is text.
    ///
    /// # Errors
    /// A list cannot be read, or there is no item that can be named in text.
    pub fn sample(&self, n: u64) -> Result<Sample, TrialError> {
        let take = |(i, listed): (usize, &Listed)| {
            let share = self.share(listed, n).min(listed.items);
            let mut paths = Vec::new();
            listed.each(share, &mut |path| paths.push(path.to_owned())).map_err(listed.error())?;
            Ok(SourceSample { source: SourceId(i as u16), paths })
        };
        let sources = self.sources.iter().enumerate().map(take).collect::<Result<Vec<_>, TrialError>>()?;
        let sample = Sample { sources };
        if sample.n_items() == 0 { Err(TrialError::NoItems) } else { Ok(sample) }
    }

    /// Writes lists of about `n` items into `folder`, at least one of each source that has any. Where there are more, they are spread
    /// evenly; where there are fewer, each comes again and again, and each time it is an item of its own. Items whose path is no text
    /// are left out. Nothing is held in memory.
    ///
    /// # Errors
    /// A list cannot be read or written, or there is no item that can be named in text.
    pub fn write_lists(&self, n: u64, folder: &Path) -> Result<Vec<SourceList>, TrialError> {
        let write = |(i, listed): (usize, &Listed)| {
            let path = folder.join(format!("list-{i}.jsonl"));
            let failed = |error| TrialError::io("writing the list of the items")(error);
            let mut out = BufWriter::new(File::create(&path).map_err(failed)?);
            let (mut items, mut trouble) = (0, Ok(()));
            let mut put = |path: &Path| {
                if trouble.is_ok() {
                    trouble = put_line(&mut out, path);
                    items += 1;
                }
            };
            let mut left = self.share(listed, n);
            while left > 0 {
                let now = left.min(listed.items);
                listed.each(now, &mut put).map_err(listed.error())?;
                left -= now;
            }
            trouble.and_then(|()| out.flush()).map_err(failed)?;
            Ok(SourceList { listing: manifest(path), items })
        };
        let lists = self.sources.iter().enumerate().map(write).collect::<Result<Vec<_>, TrialError>>()?;
        if lists.iter().all(|l| l.items == 0) { Err(TrialError::NoItems) } else { Ok(lists) }
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
                Some(item) if item.path.to_str().is_some() => visit(&item.path),
                Some(_) => {}
                None => break,
            }
        }
        Ok(())
    }

    fn error(&self) -> impl Fn(ListError) -> TrialError + '_ {
        |error| TrialError::Listing { source_name: self.name.clone(), error }
    }
}

/// The place of the `k`-th of `n` items that are spread over `of`.
fn place(k: u64, n: u64, of: u64) -> u64 {
    (u128::from(k) * u128::from(of) / u128::from(n.max(1))) as u64 // below `of`, because `k` is below `n`
}

impl Sample {
    /// Items of all sources.
    #[must_use]
    pub fn n_items(&self) -> u64 {
        self.sources.iter().map(|s| s.paths.len() as u64).sum()
    }

    /// The share of a source.
    #[must_use]
    pub fn weight(&self, source: SourceId) -> f64 {
        let of = self.sources.get(source.index()).map_or(0, |s| s.paths.len());
        of as f64 / self.n_items().max(1) as f64
    }

    /// Writes the lists that a run over the sample reads, into `folder`; per source how to list it.
    ///
    /// # Errors
    /// A list cannot be written.
    pub fn manifests(&self, folder: &Path) -> Result<Vec<ListingSpec>, TrialError> {
        let write = |s: &SourceSample| {
            let path = sample_list(folder, s.source);
            write_manifest(&path, &s.paths).map_err(TrialError::io("writing the list of the sample"))?;
            Ok(manifest(path))
        };
        self.sources.iter().map(write).collect()
    }

    /// The sample whose lists [`Sample::manifests`] has written into `folder`, and per source how to list it.
    ///
    /// # Errors
    /// A list cannot be read.
    pub fn read(folder: &Path, n_sources: usize) -> Result<(Self, Vec<ListingSpec>), TrialError> {
        let read = |source: usize| {
            let source = SourceId(source as u16);
            let path = sample_list(folder, source);
            let paths = read_manifest(&path).map_err(TrialError::io("reading the list of the sample"))?;
            Ok((SourceSample { source, paths }, manifest(path)))
        };
        let (sources, lists) =
            (0..n_sources).map(read).collect::<Result<Vec<_>, TrialError>>()?.into_iter().unzip();
        Ok((Self { sources }, lists))
    }
}

fn sample_list(folder: &Path, source: SourceId) -> PathBuf {
    folder.join(format!("sample-{}.jsonl", source.index()))
}

fn manifest(path: PathBuf) -> ListingSpec {
    ListingSpec::Manifest { path: Some(path), base: PathBuf::from("/") }
}

fn write_manifest(path: &Path, items: &[PathBuf]) -> std::io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    for item in items {
        put_line(&mut out, item)?;
    }
    out.flush()
}

fn read_manifest(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let lines = BufReader::new(File::open(path)?).lines();
    lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}

fn put_line(out: &mut BufWriter<File>, item: &Path) -> std::io::Result<()> {
    serde_json::to_writer(&mut *out, item)?;
    out.write_all(b"\n")
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

    fn read(spec: &ListingSpec, list: &Path) -> Vec<PathBuf> {
        orchestra_source::write_listing(spec, list).unwrap();
        ListingReader::open(list).unwrap().map(|i| i.unwrap().path).collect()
    }

    #[test]
    fn paths_survive_the_list() {
        let dir = tempfile::tempdir().unwrap();
        let odd = ["/a b.png", "/new\nline.png", "/quote\".png", "/ä.png"].map(PathBuf::from).to_vec();
        let sample = Sample { sources: vec![SourceSample { source: SourceId(0), paths: odd.clone() }] };
        let spec = sample.manifests(dir.path()).unwrap().remove(0);
        assert_eq!(read(&spec, &dir.path().join("list")), odd);
        let (again, lists) = Sample::read(dir.path(), 1).unwrap();
        assert_eq!((&again.sources[0].paths, read(&lists[0], &dir.path().join("list"))), (&odd, odd.clone()));
        assert_eq!(sample.weight(SourceId(0)), 1.0);
    }

    /// A catalogue of sources with these numbers of items, each named after its source and its place.
    fn catalogue(folder: &Path, sizes: &[u64]) -> Catalogue {
        let list = |(s, size): (usize, &u64)| {
            let names: Vec<PathBuf> = (0..*size).map(|i| PathBuf::from(format!("/{s}/{i}.png"))).collect();
            let (path, rows) = (folder.join(format!("items-{s}")), folder.join(format!("rows-{s}.jsonl")));
            write_manifest(&rows, &names).unwrap();
            if *size > 0 {
                orchestra_source::write_listing(&manifest(rows), &path).unwrap();
            }
            Listed { name: format!("s{s}"), path, items: *size }
        };
        Catalogue { sources: sizes.iter().enumerate().map(list).collect() }
    }

    #[test]
    fn a_list_that_is_too_short_comes_again_and_again_and_a_long_one_is_spread() {
        let dir = tempfile::tempdir().unwrap();
        let all = catalogue(dir.path(), &[4, 0, 8]);
        for n in [1, 3, 12, 13, 100] {
            let lists = all.write_lists(n, dir.path()).unwrap();
            let counts: Vec<u64> = lists.iter().map(|l| l.items).collect();
            assert_eq!(counts, [(n * 4).div_ceil(12), 0, (n * 8).div_ceil(12)], "{n}");
            let named = read(&lists[0].listing, &dir.path().join("list"));
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
    fn a_sample_never_has_more_than_there_is() {
        let dir = tempfile::tempdir().unwrap();
        let all = catalogue(dir.path(), &[4, 8]);
        assert_eq!(all.sample(100).unwrap().n_items(), 12);
        assert_eq!(all.sample(3).unwrap().n_items(), 3);
    }
}
