//! Maps whose work is a value that can be written down: a loader process gets it as it is.

use std::fmt;
use std::sync::Arc;

use bincode::{Decode, Encode};

use super::{Emit, FanOut, KindSettings, Map, MapRun, Packing};
use crate::data::{ItemError, Value};

/// What a stage does to a row, with all that it needs for it.
pub trait RowWork: fmt::Debug + Send + Sync + Encode + Decode<()> + 'static {
    /// The buffers of a thread.
    type Scratch: Default + Send;
    /// How many rows it makes of one.
    const FAN: FanOut = FanOut::One;
    /// Whether a loader process may do it, as it may with all but lists.
    const IN_LOADER: bool = true;

    /// As [`MapRun::apply`].
    fn apply(
        &self,
        scratch: &mut Self::Scratch,
        inputs: &[Value<'_>],
        emit: &mut dyn Emit,
    ) -> Result<(), ItemError>;

    /// As [`Map::packing`].
    fn packing(&self, column: usize) -> Option<Arc<dyn Packing>> {
        let _ = column;
        None
    }
}

/// That of a kind that makes no map.
impl RowWork for () {
    type Scratch = ();
    const IN_LOADER: bool = false;

    fn apply(&self, (): &mut (), _: &[Value<'_>], _: &mut dyn Emit) -> Result<(), ItemError> {
        Err(ItemError::result("internal error: the stage is no map; this is a bug"))
    }
}

/// The map of a kind that does this work. `cost` is that of [`Map::cost`]; `None`: no bound is known.
pub fn map_of<W: RowWork>(kind: &'static str, work: W, cost: Option<usize>) -> Arc<dyn Map> {
    Arc::new(TypedMap { kind, work: Arc::new(work), cost: cost.unwrap_or(usize::MAX) })
}

/// The same map in a loader process, of what [`Map::to_wire`] wrote down; `None` where these are other settings.
pub fn map_from<W: RowWork>(kind: &'static str, settings: &KindSettings) -> Option<Arc<dyn Map>> {
    let (work, cost) = settings.read()?;
    Some(Arc::new(TypedMap::<W> { kind, work: Arc::new(work), cost }))
}

#[derive(Debug)]
struct TypedMap<W> {
    kind: &'static str,
    work: Arc<W>,
    cost: usize,
}

impl<W: RowWork> Map for TypedMap<W> {
    fn fan(&self) -> FanOut {
        W::FAN
    }

    fn start(&self) -> Box<dyn MapRun> {
        Box::new(MapOfRun { work: Arc::clone(&self.work), scratch: W::Scratch::default() })
    }

    fn cost(&self) -> usize {
        self.cost
    }

    fn to_wire(&self) -> Option<KindSettings> {
        let settings = (&*self.work, self.cost);
        W::IN_LOADER.then(|| KindSettings::of(self.kind, &settings)).flatten()
    }

    fn packing(&self, column: usize) -> Option<Arc<dyn Packing>> {
        self.work.packing(column)
    }
}

struct MapOfRun<W: RowWork> {
    work: Arc<W>,
    scratch: W::Scratch,
}

impl<W: RowWork> MapRun for MapOfRun<W> {
    fn apply(&mut self, inputs: &[Value<'_>], emit: &mut dyn Emit) -> Result<(), ItemError> {
        self.work.apply(&mut self.scratch, inputs, emit)
    }
}
