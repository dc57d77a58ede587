//! The lists of items that a run begins with: new ones, or those of an earlier run, which go on (what was added, what is missing). It reads no item:
//! files that hold several are listed in loader processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orchestra_core::{SourceId, StageId};
use orchestra_plan::{Plan, SourcePlan};
use orchestra_store::{Catalog, Expand, Extension, Journal, ListError, ListingReader, NumberSet};

use super::StartRunError;
use crate::child::spawn::ProcessLauncher;
use crate::flow::listing::{Listing, list_made};
use crate::flow::reduce_rows::{OpenReduce, ReduceError};
use crate::look::expand_of;

pub(super) struct Lists {
    private: PathBuf,
    /// Of a run with results, as they are now.
    relisted: Vec<Relisted>,
    /// Of a run without results, whose items may have other numbers now: being written, while the run begins.
    begun: Vec<Catalog>,
    /// Why the run cannot go on, where sources name less than before.
    pub missing: Vec<String>,
}

impl Lists {
    /// Where no result counts (`finished` is 0), no item has a number that must stay: the run goes on while its items are listed.
    pub fn of(
        plan: &Plan,
        private: &Path,
        finished: u64,
        loaders: Option<&ProcessLauncher>,
    ) -> Result<Self, StartRunError> {
        let private = private.to_owned();
        if finished == 0 {
            let list = |s: &SourcePlan, expand, most| {
                Catalog::list(&s.listing, expand, most, &listing_path(&private, &s.name))
            };
            let begun = each_source(plan, loaders, list)?;
            return Ok(Self { private, relisted: Vec::new(), begun, missing: Vec::new() });
        }
        let relist = |s: &SourcePlan, expand, most| relist(&private, s, expand, most);
        let relisted = each_source(plan, loaders, relist)?;
        let missing = plan.sources.iter().zip(&relisted).filter_map(|(s, r)| r.missing(&s.name));
        Ok(Self { missing: missing.collect(), relisted, private, begun: Vec::new() })
    }

    pub fn new_items(&self) -> u64 {
        self.relisted.iter().map(Relisted::new_items).sum()
    }

    /// Why the run cannot go on, where items that are finished are others now, under the same names. Failed ones may have changed where they are
    /// `retried`.
    pub fn changed(
        &self,
        plan: &Plan,
        journal: &Journal,
        retried: bool,
    ) -> Result<Vec<String>, StartRunError> {
        let mut changes = Vec::new();
        for ((source, relisted), id) in plan.sources.iter().zip(&self.relisted).zip((0..).map(SourceId)) {
            let Relisted { next, extension: Some(extension), .. } = relisted else { continue };
            let mut changed = extension.changed.clone();
            changed.keep(&journal.finished(id));
            if retried {
                changed.subtract(&journal.failed(id));
            }
            if changed.is_empty() {
                continue;
            }
            let failed = |error| StartRunError::Listing { source_name: source.name.clone(), error };
            let names = names_of(next, changed.iter().take(CHANGED_SHOWN)).map_err(failed)?.join("`, `");
            let more = if changed.len() > CHANGED_SHOWN as u64 { ", .." } else { "" };
            let items = if changed.len() == 1 { "item is" } else { "items are" };
            let why = match &source.lister {
                Some(script) => format!("for which `{}` yields other rows, or none", script.script.display()),
                None => "whose files were edited or replaced".to_owned(),
            };
            changes.push(format!(
                "{} finished {items} not the same any more in source `{}` (`{names}`{more}), {why}",
                changed.len(),
                source.name
            ));
        }
        Ok(changes)
    }

    pub fn keep(mut self, plan: &Plan, journal: &Journal) -> Result<Vec<Listing>, StartRunError> {
        let finished = (0..).map(SourceId).map(|source| journal.finished(source));
        let catalogs = match self.relisted.is_empty() {
            true => std::mem::take(&mut self.begun),
            false => {
                let kept = plan.sources.iter().zip(std::mem::take(&mut self.relisted)).zip(finished.clone());
                let opened = kept.map(|((source, relisted), finished)| {
                    let opened = relisted
                        .keep(&finished)
                        .and_then(|()| Catalog::open(&listing_path(&self.private, &source.name)));
                    opened.map_err(|error| StartRunError::Listing { source_name: source.name.clone(), error })
                });
                opened.collect::<Result<_, _>>()?
            }
        };
        let listings = catalogs.into_iter().zip(finished);
        let mut listings: Vec<Listing> =
            listings.map(|(catalog, finished)| Listing { catalog: Arc::new(catalog), finished }).collect();
        self.add_made(plan, journal, &mut listings)?;
        Ok(listings)
    }

    /// Adds the sources whose items are rows of a stage that reduces, which stand behind all others: complete where all of these rows are written.
    fn add_made(
        &self,
        plan: &Plan,
        journal: &Journal,
        listings: &mut Vec<Listing>,
    ) -> Result<(), StartRunError> {
        let made = &plan.sources[listings.len()..];
        let rows = |error: ReduceError| StartRunError::Rows(error.to_string());
        let reduces =
            if made.is_empty() { Vec::new() } else { OpenReduce::all(plan, journal).map_err(rows)? };
        for source in made {
            let of_pipeline = |stage: StageId| plan.stages[stage.index()].pipeline;
            let reduce = reduces.iter().find(|reduce| Some(reduce.stage()) == source.reduced);
            let is_complete = |reduce: &OpenReduce| {
                let before = plan.sources.iter().zip(&*listings);
                before.filter(|(s, _)| s.pipeline == of_pipeline(reduce.stage())).all(|(_, l)| l.is_done())
            };
            let is_written = match reduce.filter(|reduce| is_complete(reduce)) {
                Some(reduce) => reduce.is_written(journal).map_err(rows)?,
                None => false,
            };
            let finished = journal.finished(SourceId(listings.len() as u16)); // tables are no more than ids
            let path = listing_path(&self.private, &source.name);
            let catalog = Arc::new(Catalog::unlisted(&path, finished.len()));
            if is_written {
                list_made(plan, source, &catalog)
                    .map_err(|error| StartRunError::Listing { source_name: source.name.clone(), error })?;
            }
            listings.push(Listing { catalog, finished });
        }
        Ok(())
    }
}

/// Calls `list` for each source, with what lists its files and the number of items that it may have.
fn each_source<T>(
    plan: &Plan,
    loaders: Option<&ProcessLauncher>,
    mut list: impl FnMut(&SourcePlan, Option<Arc<dyn Expand>>, u64) -> Result<T, ListError>,
) -> Result<Vec<T>, StartRunError> {
    let listed = plan.sources.iter().zip((0..).map(SourceId)).filter(|(source, _)| source.reduced.is_none());
    let listed = listed.map(|(source, id)| {
        let limits = plan.limits_of_source(id);
        list(source, expand_of(source, limits, loaders), limits.max_items)
            .map_err(|error| StartRunError::Listing { source_name: source.name.clone(), error })
    });
    listed.collect()
}

/// Names of changed items that are shown.
const CHANGED_SHOWN: usize = 3;

fn names_of(list: &Path, items: impl Iterator<Item = u64>) -> Result<Vec<String>, ListError> {
    let mut reader = ListingReader::open(list)?;
    let mut names = Vec::new();
    for item in items {
        reader.skip_to(item)?;
        names.extend(reader.read()?.map(|(name, _)| name.to_owned()));
    }
    Ok(names)
}

/// The items of a source, listed anew beside the list that an earlier run used: those keep their numbers, new ones come behind them.
struct Relisted {
    next: PathBuf,
    target: PathBuf,
    /// `None` if the earlier list is gone.
    extension: Option<Extension>,
}

fn relist(
    private: &Path,
    source: &SourcePlan,
    expand: Option<Arc<dyn Expand>>,
    most: u64,
) -> Result<Relisted, ListError> {
    let next = private.join(format!("items-{}.next", source.name));
    let mut relisted = Relisted { next, target: listing_path(private, &source.name), extension: None };
    let Relisted { next, target, .. } = &relisted;
    if target.exists() {
        let extension = orchestra_store::relist(&source.listing, expand.as_deref(), most, target, next)?;
        relisted.extension = Some(extension);
    }
    Ok(relisted)
}

impl Relisted {
    fn new_items(&self) -> u64 {
        // What an earlier run had no time to list is not new.
        self.extension.as_ref().filter(|e| e.was_complete).map_or(0, |e| e.appended)
    }

    fn missing(&self, source: &str) -> Option<String> {
        let Some(Extension { missing_count, missing, .. }) = &self.extension else {
            // Results count, so there was one: without it no item is known to have its number.
            return Some(format!(
                "the list of the items of source `{source}` is gone, `{}`",
                self.target.display()
            ));
        };
        let items = match missing_count {
            0 => return None,
            1 => "1 item".to_owned(),
            n => format!("{n} items"),
        };
        Some(format!("source `{source}` names {items} less (`{}`)", missing.join("`, `")))
    }

    /// Makes it the list of the run. Only done when nothing speaks against the run: a refused start must leave no trace.
    fn keep(self, finished: &NumberSet) -> Result<(), ListError> {
        let Self { next, target, extension } = &self;
        if extension.as_ref().is_some_and(|e| finished.count_below(e.numbered) < finished.len()) {
            let reason = "it ends before items that are finished; use `--fresh` to start over";
            return Err(ListError::Damaged { path: target.clone(), reason });
        }
        fs::rename(next, target).map_err(|error| ListError::ListFile {
            path: target.clone(),
            doing: "write",
            error,
        })
    }
}

/// A list that was not kept was written in vain.
impl Drop for Relisted {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.next)); // It has another name by now, if it was kept.
    }
}

fn listing_path(private: &Path, source: &str) -> PathBuf {
    private.join(format!("items-{source}"))
}
