//! Kinds whose settings are typed structs: what the planner and the loaders ask of a kind follows from them.

use std::ffi::OsStr;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use bincode::{Decode, Encode};
use orchestra_core::ScriptProgram;
use orchestra_core::data::Schema;
use orchestra_core::shapes::{
    Encoder, Fetch, FetchRun, FileAccess, KindSettings, Map, Network, RowWork, map_from,
};
use orchestra_store::{Expand, Found, ListError, ObjectOutput, ObjectStore, PushFound};
use serde_json::Value as Json;

use super::{
    Connect, Draft, Input, ReadBack, SinkContext, SinkKind, SourceConnected, SourceContext, SourceKind,
    StageKind, Writes,
};
use crate::diagnostics::Reported;
use crate::fields::{Fields, Upstreams};
use crate::key::Key;
use crate::settings::Settings;

/// The settings of a kind of stage.
pub trait TypedStage: Settings + Drafted + 'static {
    /// As `kind = ".."` names it.
    const NAME: &'static str;
    /// What it does, in a sentence.
    const ABOUT: &'static str;
    /// What is done to a row, with all that it needs: often the settings themselves. `()` for a stage that works on no row by itself.
    type Work: RowWork;
    /// Its settings, and those that the planner reads.
    const ALL_KEYS: &'static [Key] = Self::KEYS;

    /// As [`StageKind::upstreams`].
    fn upstreams(fields: &mut Fields<'_, '_>) -> Upstreams {
        fields.upstreams()
    }

    /// Reports settings that do not go together.
    fn check(&self, fields: &mut Fields<'_, '_>) {
        let _ = fields;
    }
}

/// Settings of a stage that were read.
pub trait Drafted {
    /// What becomes of them. `None` after an error.
    fn draft(self, fields: &mut Fields<'_, '_>) -> Option<Draft>;
}

impl<K: Connect + 'static> Drafted for K {
    fn draft(self, _: &mut Fields<'_, '_>) -> Option<Draft> {
        Some(Draft::Stage(Box::new(self)))
    }
}

/// The settings of a kind of source.
pub trait TypedSource: Settings + 'static {
    /// As `kind = ".."` names it.
    const NAME: &'static str;
    /// What it gives, in a sentence.
    const ABOUT: &'static str;
    /// As [`SourceKind::has_files`].
    const HAS_FILES: bool = true;
    /// Whether a file holds several items. Else it is one.
    const LISTS_FILES: bool = true;
    /// Two items of a file may have the same name.
    const NAMES_REPEAT: bool = false;
    /// What reads objects, where `paths` may name URLs.
    const OBJECTS: Option<ObjectAccess> = None;
    /// What finds its items in files and reads them.
    type Items: Items;

    /// What its items are, known from the first of the files that it names.
    fn connect(self, source: &mut SourceContext<'_, '_>) -> Result<(ItemSchema, Self::Items), Reported>;

    /// As [`SourceKind::describe`].
    fn describe(question: &KindSettings, file: &Path) -> Result<Vec<u8>, ListError> {
        super::asks_nothing(question, file)
    }
}

/// What speaks to stores.
#[derive(Debug, Clone, Copy)]
pub struct ObjectAccess {
    /// As [`SourceKind::objects`].
    pub store: fn() -> Result<Arc<dyn ObjectStore>, String>,
    /// What loaders need that read URLs of these schemes, at least one.
    pub network: fn(schemes: &[String]) -> Network,
}

/// What the items of a source are, known before the run.
#[derive(Debug)]
pub struct ItemSchema {
    pub gives: Schema,
    /// As [`SourceConnected::settings`].
    pub settings: Json,
    /// As [`SourceConnected::decoders`].
    pub decoders: Option<&'static str>,
}

/// The items of a source. A loader process gets them as bytes, and lists and reads them there.
pub trait Items: fmt::Debug + Encode + Decode<()> + Send + Sync + 'static {
    /// As [`Expand::expand`], where files hold several items. First it says the version of the file, where it has one.
    fn list(&self, file: &Path, push: PushFound<'_>) -> Result<(), ListError> {
        let _ = push;
        Err(ListError::bad_file(file, "it is an item itself; this is a bug"))
    }

    /// As [`Expand::has_changed`].
    fn has_changed(&self, before: &Path, now: &Path) -> bool {
        let _ = (before, now);
        false
    }

    /// As [`Fetch::start`].
    fn start(&self, options: &ReadOptions) -> Box<dyn FetchRun>;

    /// Whether a loader process reads them. Else they come with what asks for them.
    fn are_read(&self) -> bool {
        true
    }

    /// As [`Fetch::opens`], where the source names files: those that items lie in, unless a kind says otherwise.
    fn opens(&self) -> FileAccess {
        FileAccess::OfItems(file_of)
    }
}

/// How items are read, whatever their kind.
#[derive(Debug, Clone, Default, Encode, Decode)]
pub struct ReadOptions {
    /// The schemes of the URLs that the source names, each once; none where it reads files.
    pub schemes: Vec<String>,
    /// A picture of more pixels is refused.
    pub max_pixels: u64,
}

impl ReadOptions {
    /// Those of a source that is planned.
    pub fn of(source: &SourceContext<'_, '_>) -> Self {
        let mut schemes: Vec<String> = Vec::new();
        for (scheme, _) in source.urls.iter().filter_map(|url| url.split_once("://")) {
            if schemes.iter().all(|known| known != scheme) {
                schemes.push(scheme.to_owned());
            }
        }
        Self { schemes, max_pixels: source.limits.max_pixels }
    }

    /// Whether items are objects of stores, or lie in such.
    pub fn has_objects(&self) -> bool {
        !self.schemes.is_empty()
    }

    /// What a loader needs beside files.
    pub fn network<K: TypedSource>(&self) -> Option<Network> {
        K::OBJECTS.filter(|_| self.has_objects()).map(|objects| (objects.network)(&self.schemes))
    }
}

/// The file of an item's locator: what stands before the last `#`.
pub fn file_of(locator: &[u8]) -> Option<&Path> {
    let at = locator.iter().rposition(|byte| *byte == b'#')?;
    (at > 0).then(|| Path::new(OsStr::from_bytes(&locator[..at])))
}

/// The settings of a kind of sink.
pub trait TypedSink: Settings + 'static {
    /// As `kind = ".."` names it.
    const NAME: &'static str;
    /// What it writes, in a sentence.
    const ABOUT: &'static str;
    /// As [`SinkKind::extension`].
    const EXTENSION: &'static str = Self::NAME;
    /// How its records are written.
    const WRITES: Writes = Writes::Append;
    /// Reads its files back; `None`: nothing can.
    const READ_BACK: Option<ReadBack> = None;
    /// As [`SinkKind::objects`].
    const OBJECTS: fn() -> Result<Arc<dyn ObjectOutput>, String> = super::no_output;

    /// Makes its encoder for rows of `input`.
    fn connect(self, input: &Input, fields: &mut Fields<'_, '_>) -> Result<Arc<dyn Encoder>, Reported>;

    /// As [`SinkKind::script`].
    fn script(self, sink: &mut SinkContext<'_, '_>) -> Result<Option<ScriptProgram>, Reported>
    where
        Self: Sized,
    {
        let _ = sink;
        Ok(None)
    }
}

/// The kind with these settings.
pub struct Typed<K>(PhantomData<fn() -> K>);

impl<K> Typed<K> {
    pub const fn kind() -> Self {
        Self(PhantomData)
    }
}

impl<K: TypedStage> StageKind for Typed<K> {
    fn name(&self) -> &'static str {
        K::NAME
    }

    fn about(&self) -> &'static str {
        K::ABOUT
    }

    fn keys(&self) -> &'static [Key] {
        K::ALL_KEYS
    }

    fn upstreams(&self, fields: &mut Fields<'_, '_>) -> Upstreams {
        K::upstreams(fields)
    }

    fn read(&self, fields: &mut Fields<'_, '_>) -> Option<Draft> {
        let settings = K::read(fields)?;
        settings.check(fields);
        settings.draft(fields)
    }

    fn map_from_wire(&self, settings: &KindSettings) -> Option<Arc<dyn Map>> {
        map_from::<K::Work>(K::NAME, settings)
    }
}

impl<K: TypedSource> SourceKind for Typed<K> {
    fn name(&self) -> &'static str {
        K::NAME
    }

    fn about(&self) -> &'static str {
        K::ABOUT
    }

    fn keys(&self) -> &'static [Key] {
        K::KEYS
    }

    fn has_files(&self) -> bool {
        K::HAS_FILES
    }

    fn objects(&self) -> Result<Arc<dyn ObjectStore>, String> {
        K::OBJECTS.map_or_else(super::no_objects, |objects| (objects.store)())
    }

    fn connect(&self, source: &mut SourceContext<'_, '_>) -> Option<SourceConnected> {
        let settings = read::<K>(&mut source.fields).ok()?;
        let (ItemSchema { gives, settings, decoders }, items) = settings.connect(source).ok()?;
        let items = Arc::new(ItemsOf::<K> { options: ReadOptions::of(source), items });
        let expand = K::LISTS_FILES.then(|| Arc::clone(&items) as _);
        Some(SourceConnected {
            gives,
            fetch: items,
            expand,
            names_repeat: K::NAMES_REPEAT,
            settings,
            decoders,
        })
    }

    fn fetch_from_wire(&self, settings: &KindSettings) -> Option<Arc<dyn Fetch>> {
        Some(Arc::new(ItemsOf::<K>::read(settings)?))
    }

    fn expand_from_wire(&self, settings: &KindSettings) -> Option<Arc<dyn Expand>> {
        Some(Arc::new(ItemsOf::<K>::read(settings)?))
    }

    fn describe(&self, question: &KindSettings, file: &Path) -> Result<Vec<u8>, ListError> {
        K::describe(question, file)
    }
}

/// The settings of a table; none where any of them is wrong.
fn read<K: Settings>(fields: &mut Fields<'_, '_>) -> Result<K, Reported> {
    let before = fields.diags.errors().count();
    let settings = K::read(fields).ok_or(Reported)?;
    if fields.diags.errors().count() > before { Err(Reported) } else { Ok(settings) }
}

/// The items of a kind of source, as the run and its loaders use them.
struct ItemsOf<K: TypedSource> {
    options: ReadOptions,
    items: K::Items,
}

impl<K: TypedSource> ItemsOf<K> {
    fn read(settings: &KindSettings) -> Option<Self> {
        let (options, items) = settings.read()?;
        Some(Self { options, items })
    }

    /// What makes another list of the same file: other settings, which may come from another file, and another program.
    fn list_version(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        env!("CARGO_PKG_VERSION").hash(&mut hasher);
        KindSettings::of(K::NAME, &(&self.options, &self.items)).hash(&mut hasher);
        hasher.finish()
    }
}

impl<K: TypedSource> fmt::Debug for ItemsOf<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.items.fmt(f)
    }
}

impl<K: TypedSource> Fetch for ItemsOf<K> {
    fn start(&self) -> Box<dyn FetchRun> {
        self.items.start(&self.options)
    }

    fn to_wire(&self) -> Option<KindSettings> {
        KindSettings::of(K::NAME, &(&self.options, &self.items)).filter(|_| self.items.are_read())
    }

    fn network(&self) -> Option<Network> {
        self.options.network::<K>()
    }

    fn opens(&self) -> FileAccess {
        if self.options.has_objects() { FileAccess::OfItems(|_| None) } else { self.items.opens() }
    }
}

impl<K: TypedSource> Expand for ItemsOf<K> {
    fn expand(&self, file: &Path, push: PushFound<'_>) -> Result<(), ListError> {
        self.items.list(file, &mut |found| match found {
            Found::Version(version) => push(Found::Version(version ^ self.list_version())),
            found => push(found),
        })
    }

    fn has_changed(&self, before: &Path, now: &Path) -> bool {
        self.items.has_changed(before, now)
    }

    /// What has no files opens none, so it lists in the process of the run.
    fn to_wire(&self) -> Option<KindSettings> {
        Fetch::to_wire(self).filter(|_| K::HAS_FILES)
    }
}

impl<K: TypedSink> SinkKind for Typed<K> {
    fn name(&self) -> &'static str {
        K::NAME
    }

    fn about(&self) -> &'static str {
        K::ABOUT
    }

    fn extension(&self) -> &'static str {
        K::EXTENSION
    }

    fn writes(&self) -> Writes {
        K::WRITES
    }

    fn keys(&self) -> &'static [Key] {
        K::KEYS
    }

    fn read_back(&self) -> Option<ReadBack> {
        K::READ_BACK
    }

    fn objects(&self) -> Result<Arc<dyn ObjectOutput>, String> {
        K::OBJECTS()
    }

    fn read(&self, fields: &mut Fields<'_, '_>) {
        drop(read::<K>(fields)); // It has reported them.
    }

    fn connect(&self, input: &Input, fields: &mut Fields<'_, '_>) -> Option<Arc<dyn Encoder>> {
        read::<K>(fields).and_then(|settings| settings.connect(input, fields)).ok()
    }

    fn script(&self, sink: &mut SinkContext<'_, '_>) -> Result<Option<ScriptProgram>, Reported> {
        read::<K>(&mut sink.fields)?.script(sink)
    }
}
