//! Which items are measured: all of them, or a sample spread evenly over the sources. It names items and opens none.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use orchestra_core::SourceId;
use orchestra_plan::Plan;
use orchestra_source::{ListError, ListingReader, ListingSpec, write_listing_while};

use crate::cancel::Cancel;
use crate::error::BenchError;

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

/// The items that are measured.
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

impl Catalogue {
    /// Lists every source of the plan, once, into `folder`.
    pub fn list(plan: &Plan, folder: &Path, cancel: &Cancel) -> Result<Self, BenchError> {
        let list = |(i, source): (usize, &orchestra_plan::SourcePlan)| {
            let path = folder.join(format!("items-{i}"));
            let listed = write_listing_while(&source.listing, &path, &|| !cancel.is_cancelled());
            match listed {
                Ok(summary) => Ok(Listed { name: source.name.clone(), path, items: summary.count }),
                Err(_) if cancel.is_cancelled() => Err(BenchError::Cancelled),
                Err(error) => Err(BenchError::Listing { source_name: source.name.clone(), error }),
            }
        };
        let sources = plan.sources.iter().enumerate().map(list).collect::<Result<Vec<_>, _>>()?;
        let catalogue = Self { sources };
        if catalogue.total() == 0 { Err(BenchError::NoItems) } else { Ok(catalogue) }
    }

    /// Items of all sources.
    pub fn total(&self) -> u64 {
        self.sources.iter().map(|s| s.items).sum()
    }

    /// About `n` items, at least one of each source that has any, spread evenly. Items whose path is no text are left out, because the
    /// list that the measured run reads is text.
    pub fn sample(&self, n: u64) -> Result<Sample, BenchError> {
        let total = self.total().max(1);
        let take = |(i, listed): (usize, &Listed)| {
            let share = (u128::from(n) * u128::from(listed.items)).div_ceil(u128::from(total));
            let share = u64::try_from(share).unwrap_or(u64::MAX).clamp(1, listed.items.max(1));
            let paths = listed
                .spread(share)
                .map_err(|error| BenchError::Listing { source_name: listed.name.clone(), error })?;
            Ok(SourceSample { source: SourceId(i as u16), paths })
        };
        let sources = self.sources.iter().enumerate().map(take).collect::<Result<Vec<_>, BenchError>>()?;
        let sample = Sample { sources };
        if sample.n_items() == 0 { Err(BenchError::NoItems) } else { Ok(sample) }
    }
}

impl Listed {
    fn spread(&self, n: u64) -> Result<Vec<PathBuf>, ListError> {
        let mut reader = ListingReader::open(&self.path)?;
        let mut paths = Vec::new();
        for k in 0..n.min(self.items) {
            let at = place(k, n, self.items);
            if at != reader.next_index() {
                reader.skip_to(at)?;
            }
            match reader.next().transpose()? {
                Some(item) if item.path.to_str().is_some() => paths.push(item.path),
                Some(_) => {}
                None => break,
            }
        }
        Ok(paths)
    }
}

/// The place of the `k`-th of `n` items that are spread over `of`.
fn place(k: u64, n: u64, of: u64) -> u64 {
    (u128::from(k) * u128::from(of) / u128::from(n.max(1))) as u64 // below `of`, because `k` is below `n`
}

impl Sample {
    /// Items of all sources.
    pub fn n_items(&self) -> u64 {
        self.sources.iter().map(|s| s.paths.len() as u64).sum()
    }

    /// The share of a source.
    pub fn weight(&self, source: SourceId) -> f64 {
        let of = self.sources.get(source.index()).map_or(0, |s| s.paths.len());
        of as f64 / self.n_items().max(1) as f64
    }

    /// Writes the lists that a run over the sample reads, into `folder`; per source how to list it.
    pub fn manifests(&self, folder: &Path) -> Result<Vec<ListingSpec>, BenchError> {
        let write = |s: &SourceSample| {
            let path = folder.join(format!("sample-{}.jsonl", s.source.index()));
            write_manifest(&path, &s.paths).map_err(BenchError::io("writing the list of the sample"))?;
            Ok(ListingSpec::Manifest { path: Some(path), base: PathBuf::from("/") })
        };
        self.sources.iter().map(write).collect()
    }
}

fn write_manifest(path: &Path, items: &[PathBuf]) -> std::io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    for item in items {
        serde_json::to_writer(&mut out, item)?;
        out.write_all(b"\n")?;
    }
    out.flush()
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
    fn paths_survive_the_list() {
        let dir = tempfile::tempdir().unwrap();
        let odd = ["/a b.png", "/new\nline.png", "/quote\".png", "/ä.png"].map(PathBuf::from).to_vec();
        let sample = Sample { sources: vec![SourceSample { source: SourceId(0), paths: odd.clone() }] };
        let spec = sample.manifests(dir.path()).unwrap().remove(0);
        let list = dir.path().join("list");
        orchestra_source::write_listing(&spec, &list).unwrap();
        let read: Vec<PathBuf> = ListingReader::open(&list).unwrap().map(|i| i.unwrap().path).collect();
        assert_eq!(read, odd);
        assert_eq!(sample.weight(SourceId(0)), 1.0);
    }
}
