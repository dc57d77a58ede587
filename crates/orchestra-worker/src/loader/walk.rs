//! What a loader process does with one item: reads it, and takes its rows through the maps. It notes events, and lays values into the ring.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use orchestra_core::FailureKind;
use orchestra_core::data::{Pixels, Refusal, TensorView, Value, WriteTensor};
use orchestra_core::shapes::{Emit, Fetch, FetchRun, Map, MapRun};

use super::events::{Event, MapSpec, Refused, RowOrigin, SentValue};
use super::parent::{Gone, Parent};
use crate::process::{EXIT_NO_MEMORY, leave};

/// The maps of a chain, and the fetch in front of them.
pub(super) struct LoaderChain {
    pub fetch: Arc<dyn Fetch>,
    pub sends: Vec<usize>,
    pub maps: Vec<MapNode>,
    pub run: Box<dyn FetchRun>,
}

pub(super) struct MapNode {
    pub spec: MapSpec,
    pub map: Arc<dyn Map>,
    pub run: Box<dyn MapRun>,
    /// For each column that is sent, in the order of `spec.sends`: the length of its smaller form.
    pub packed: Vec<Option<usize>>,
    pub next: Vec<MapNode>,
}

/// Why an item is over before its end.
enum Over {
    /// It was refused, which is noted.
    Refused,
    Gone,
}

/// The rows that a row was made of, innermost first.
struct RowScope<'a> {
    from: RowOrigin,
    row: &'a [Value<'a>],
    up: Option<&'a RowScope<'a>>,
}

impl<'a> RowScope<'a> {
    fn get(&self, (from, column): (RowOrigin, usize)) -> Option<Value<'a>> {
        let mut at = Some(self);
        while let Some(scope) = at {
            if scope.from == from {
                return scope.row.get(column).copied();
            }
            at = scope.up;
        }
        None
    }
}

impl LoaderChain {
    /// Notes what becomes of an item.
    pub fn item(&mut self, locator: &[u8], parent: &mut Parent) -> Result<(), Gone> {
        let began = Instant::now();
        parent.begin_item();
        let mut read = began;
        let walked = catch_unwind(AssertUnwindSafe(|| {
            let fetched = self.run.fetch(locator);
            read = Instant::now();
            let is_read = fetched.is_ok();
            parent.note(Event::Read(fetched.map_err(refused)));
            let mut over = Ok(());
            if is_read {
                let Self { run, sends, maps, .. } = self;
                run.with_row(&mut |row| {
                    over = walk((sends, &[]), maps, &RowScope { from: None, row, up: None }, parent)
                });
            }
            over
        }));
        let mut left_out = Vec::new();
        match walked {
            Ok(Err(Over::Gone)) => return Err(Gone),
            Ok(Ok(())) => left_out = self.run.left_out(),
            Ok(Err(Over::Refused)) => {}
            // A bug of ours, which fails the item by name. What was at work is in no known state.
            Err(_) => {
                let error = "internal error while the item was loaded; this is a bug".to_owned();
                parent.forget_item();
                parent.note(Event::Read(Err(Refused { kind: FailureKind::Read, error })));
                self.run = self.fetch.start();
                self.maps.iter_mut().for_each(MapNode::restart);
            }
        }
        parent.end_item(began, read, left_out);
        Ok(())
    }
}

impl MapNode {
    fn restart(&mut self) {
        self.run = self.map.start();
        self.next.iter_mut().for_each(MapNode::restart);
    }
}

/// Lays those columns of a row into the ring, in their smaller form where they have one, and takes it through the maps behind it.
fn walk(
    (sends, packed): (&[usize], &[Option<usize>]),
    maps: &mut [MapNode],
    scope: &RowScope<'_>,
    parent: &mut Parent,
) -> Result<(), Over> {
    let mut sent = Vec::with_capacity(sends.len());
    for (n, column) in sends.iter().enumerate() {
        let value = scope.row.get(*column).ok_or_else(missing);
        let packed = packed.get(n).copied().flatten();
        sent.push(match value.and_then(|value| lay(value, packed, parent)) {
            Ok(sent) => sent,
            Err(refusal) => {
                parent.is_there()?;
                SentValue::Refused(refused(refusal))
            }
        });
    }
    parent.note(Event::Row(sent));
    for node in maps {
        let inputs: Option<Vec<Value<'_>>> = node.spec.reads.iter().map(|read| scope.get(*read)).collect();
        let (packed, next) = (&node.packed, &mut node.next);
        let mut rows = Rows { node: &node.spec, packed, next, scope, parent, over: None };
        let applied = match &inputs {
            Some(inputs) => node.run.apply(inputs, &mut rows),
            None => Err(missing()),
        };
        if let Some(over) = rows.over {
            return Err(over);
        }
        let is_refused = applied.is_err();
        parent.note(Event::Applied(applied.map_err(refused)));
        if is_refused {
            return Err(Over::Refused);
        }
    }
    Ok(())
}

struct Rows<'w, 'e> {
    node: &'w MapSpec,
    packed: &'w [Option<usize>],
    next: &'w mut [MapNode],
    scope: &'w RowScope<'e>,
    parent: &'w mut Parent,
    over: Option<Over>,
}

impl Emit for Rows<'_, '_> {
    fn parts(&mut self, n: usize) -> Result<(), Refusal> {
        self.parent.note(Event::Parts(n as u64));
        Ok(())
    }

    fn row(&mut self, row: &[Value<'_>]) -> Result<(), Refusal> {
        let scope = RowScope { from: Some(self.node.stage), row, up: Some(self.scope) };
        walk((&self.node.sends, self.packed), self.next, &scope, self.parent).map_err(|over| {
            self.over = Some(over);
            // For the map to pass on.
            Refusal::result("")
        })
    }
}

/// Lays a value into the ring.
fn lay(value: &Value<'_>, packed: Option<usize>, parent: &mut Parent) -> Result<SentValue, Refusal> {
    match (value, packed) {
        (Value::Unwritten(tensor), Some(len)) => {
            let (at, to) = parent.room(len)?;
            tensor.write_packed(to)?;
            Ok(SentValue::Packed { at })
        }
        _ => lay_whole(value, parent),
    }
}

fn lay_whole(value: &Value<'_>, parent: &mut Parent) -> Result<SentValue, Refusal> {
    match value {
        Value::Tensor(view) => tensor(view, parent),
        Value::Unwritten(tensor) => unwritten(*tensor, parent),
        Value::Picture(picture) => {
            let mut sent = Err(missing());
            picture.with_pixels(&mut |pixels| {
                sent = picture_pixels(&pixels, parent);
                Ok(())
            })?;
            sent
        }
        Value::Labels(labels) => {
            Ok(SentValue::Labels(labels.iter().map(|l| (l.label.to_owned(), l.class, l.score)).collect()))
        }
        Value::Text(text) => Ok(SentValue::Text((*text).to_owned())),
        Value::Bytes(bytes) => {
            let (at, to) = parent.room(bytes.len())?;
            to.copy_from_slice(bytes);
            Ok(SentValue::Bytes { at, len: bytes.len() as u64 })
        }
        Value::Missing(_) => Ok(SentValue::Missing),
        Value::List(_) => Err(Refusal::result("internal error: a loader gives no lists; this is a bug")),
    }
}

fn tensor(view: &TensorView<'_>, parent: &mut Parent) -> Result<SentValue, Refusal> {
    let (at, to) = parent.room(view.data.len())?;
    to.copy_from_slice(view.data);
    Ok(SentValue::Tensor { at, len: view.data.len() as u64, shape: view.shape.to_vec() })
}

fn unwritten(tensor: &dyn WriteTensor, parent: &mut Parent) -> Result<SentValue, Refusal> {
    let spec = tensor.spec();
    let len = spec.row_bytes().ok_or_else(missing)?;
    let (at, to) = parent.room(len)?;
    tensor.write(to)?;
    let shape = spec.row.iter().map(|dim| dim.fixed().unwrap_or(0)).collect();
    Ok(SentValue::Tensor { at, len: len as u64, shape })
}

fn picture_pixels(pixels: &Pixels<'_>, parent: &mut Parent) -> Result<SentValue, Refusal> {
    let (at, to) = parent.room(pixels.bytes.len())?;
    to.copy_from_slice(pixels.bytes);
    // One or three.
    let channels = u8::try_from(pixels.channels).unwrap_or(0);
    Ok(SentValue::Picture { at, width: pixels.width, height: pixels.height, channels })
}

/// A refusal for the parent. Where there is no memory, this process has done what it can: the item may have more of it in another one.
fn refused(refusal: Refusal) -> Refused {
    if refusal.kind == FailureKind::OutOfMemory {
        eprintln!("{}", refusal.error);
        leave(EXIT_NO_MEMORY);
    }
    refusal.into()
}

fn missing() -> Refusal {
    Refusal::result("internal error: a column that a stage reads is missing; this is a bug")
}

impl From<Gone> for Over {
    fn from(_: Gone) -> Self {
        Over::Gone
    }
}
