//! The kinds that a workflow file may name.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use orchestra_core::shapes::{
    Fetch, KindSettings, MATRIX, Map, Registry, VARIANTS, VariantMap, VariantParts, map_from,
};
use orchestra_store::{Expand, FileKinds, ListError};

use super::{SinkKind, SourceKind, StageKind, Typed, TypedStage};

/// The kinds that a workflow file may name. Several may have one name: [`Kinds::source`], [`Kinds::stage`] and [`Kinds::sink`] say which counts.
#[derive(Clone, Default)]
pub struct Kinds {
    /// `[sources.*]`
    pub sources: Vec<Arc<dyn SourceKind>>,
    /// `[stages.*]`
    pub stages: Vec<Arc<dyn StageKind>>,
    /// `[sinks.*]`
    pub sinks: Vec<Arc<dyn SinkKind>>,
}

impl fmt::Debug for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kinds")
            .field("sources", &self.sources.iter().map(|k| k.name()).collect::<Vec<_>>())
            .field("stages", &self.stages.iter().map(|k| k.name()).collect::<Vec<_>>())
            .field("sinks", &self.sinks.iter().map(|k| k.name()).collect::<Vec<_>>())
            .finish()
    }
}

impl Kinds {
    /// These, and one more kind of source.
    pub fn with_source(mut self, kind: impl SourceKind + 'static) -> Self {
        self.sources.push(Arc::new(kind));
        self
    }

    /// These, and one more kind of stage.
    pub fn with_stage(mut self, kind: impl StageKind + 'static) -> Self {
        self.stages.push(Arc::new(kind));
        self
    }

    /// These, and the kind of stage with these settings.
    pub fn with_typed_stage<K: TypedStage>(self) -> Self {
        self.with_stage(Typed::<K>::kind())
    }

    /// These, and one more kind of sink.
    pub fn with_sink(mut self, kind: impl SinkKind + 'static) -> Self {
        self.sinks.push(Arc::new(kind));
        self
    }

    /// The kind of source of this name: of several the last, so that a host can replace a kind.
    pub fn source(&self, name: &str) -> Option<&Arc<dyn SourceKind>> {
        self.sources.iter().rfind(|kind| kind.name() == name)
    }

    /// The kind of stage of this name: of several the last.
    pub fn stage(&self, name: &str) -> Option<&Arc<dyn StageKind>> {
        self.stages.iter().rfind(|kind| kind.name() == name)
    }

    /// The kind of sink of this name: of several the last.
    pub fn sink(&self, name: &str) -> Option<&Arc<dyn SinkKind>> {
        self.sinks.iter().rfind(|kind| kind.name() == name)
    }
}

impl Registry for Kinds {
    fn fetch(&self, settings: &KindSettings) -> Option<Arc<dyn Fetch>> {
        self.source(&settings.kind)?.fetch_from_wire(settings)
    }

    fn map(&self, settings: &KindSettings) -> Option<Arc<dyn Map>> {
        match &*settings.kind {
            MATRIX => map_from::<VariantParts>(MATRIX, settings),
            VARIANTS => VariantMap::from_wire(settings, self),
            kind => self.stage(kind)?.map_from_wire(settings),
        }
    }
}

impl FileKinds for Kinds {
    fn expand(&self, settings: &KindSettings) -> Option<Arc<dyn Expand>> {
        self.source(&settings.kind)?.expand_from_wire(settings)
    }

    fn describe(&self, question: &KindSettings, file: &Path) -> Result<Vec<u8>, ListError> {
        match self.source(&question.kind) {
            Some(kind) => kind.describe(question, file),
            None => Err(ListError::bad_file(file, format!("no source of kind `{}` is known", question.kind))),
        }
    }
}
