//! The loop of a loader process: takes items from the parent, and sends what became of them.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use orchestra_core::shapes::{KindSettings, Map, MapRuns, MapStep, MapStepOf, Registry, Step, StepOf};
use orchestra_store::FileKinds;

use super::events::{ChainSpec, FromLoader, LOADER_PROTOCOL, ToLoader};
use super::item::LoaderChain;
use super::look;
use super::parent::Parent;
use super::region::Ring;
use crate::BUILD;
use crate::codec::{FrameReader, FrameWriter};
use crate::exit_codes::EXIT_LOAD_FAILED;
use crate::link::ServingEnd;
use crate::load_error::LoadError;
use crate::sandbox::Sandbox;

/// What a loader process knows of kinds.
pub trait LoaderKinds: Registry + FileKinds {}

impl<T: Registry + FileKinds> LoaderKinds for T {}

/// Loads items for the parent, or looks into files for it, until it hangs up. Returns the exit code.
pub fn run_loader(socket: &UnixStream, region: OwnedFd, kinds: &dyn LoaderKinds) -> i32 {
    serve(socket, region, kinds).map_or_else(|end| end.exit_code("loader"), |()| 0)
}

fn serve(socket: &UnixStream, region: OwnedFd, kinds: &dyn LoaderKinds) -> Result<(), ServingEnd> {
    let clone = || socket.try_clone().map_err(ServingEnd::protocol);
    let mut reader: FrameReader<UnixStream, ToLoader> = FrameReader::new(clone()?);
    let mut writer: FrameWriter<UnixStream, FromLoader> = FrameWriter::new(clone()?);
    writer.write(&FromLoader::Hello { protocol: LOADER_PROTOCOL, build: BUILD.to_owned() })?;
    let load = match reader.read()? {
        Some(ToLoader::Load(load)) => load,
        Some(ToLoader::Look(spec)) => return look::serve(&spec, &mut reader, &mut writer, kinds),
        Some(ToLoader::Items { .. } | ToLoader::List { .. } | ToLoader::Describe { .. }) => {
            return Err(ServingEnd::protocol("the first frame is neither `Load` nor `Look`"));
        }
        None => return Err(ServingEnd::Gone),
    };
    let has_all_room = load.region_bytes >= load.most_region_bytes;
    let ready = ready(*load, region, kinds);
    let (mut chain, ring) = match ready {
        Ok(ready) => ready,
        Err(LoadError { class, error }) => {
            writer.write(&FromLoader::Refused { class, error })?;
            return Err(ServingEnd::Code(EXIT_LOAD_FAILED));
        }
    };
    writer.write(&FromLoader::Ready)?;
    let mut parent = Parent::new(reader, writer, ring, has_all_room);
    while let Some(item) = parent.next_item() {
        chain.item(&item, &mut parent);
    }
    Err(parent.end.unwrap_or(ServingEnd::Gone))
}

/// Confines the process and makes the chain.
fn ready(
    load: ChainSpec,
    region: OwnedFd,
    registry: &dyn LoaderKinds,
) -> Result<(LoaderChain, Ring), LoadError> {
    let refused = |error: String| LoadError::permanent(error);
    let ring = Ring::map(region, load.region_bytes)
        .map_err(|e| refused(format!("its region cannot be mapped: {e}")))?;
    crate::limits::confine(load.memory).map_err(|e| refused(format!("its limits cannot be set: {e}")))?;
    let unknown = |settings: &KindSettings| {
        refused(format!(
            "the program of the loader knows no kind `{}` of these settings; it must register the kinds that the run uses",
            settings.kind
        ))
    };
    type MakeMap<'a> = dyn Fn(&KindSettings) -> Result<Arc<dyn Map>, LoadError> + 'a;
    fn with_maps(steps: Vec<StepOf<KindSettings>>, map: &MakeMap<'_>) -> Result<Vec<Step>, LoadError> {
        let step = |step| {
            Ok(match step {
                StepOf::Map(MapStepOf { stage, at, map: settings, reads, next }) => {
                    let (made, next) = (map(&settings)?, with_maps(next, map)?);
                    Step::Map(MapStep { stage, at, map: made, reads, next })
                }
                StepOf::Leaf(leaf) => Step::Leaf(leaf),
            })
        };
        steps.into_iter().map(step).collect()
    }
    let fetch = registry.fetch(&load.fetch).ok_or_else(|| unknown(&load.fetch))?;
    let network = fetch.network();
    let read = load.readable.iter().map(|path| PathBuf::from(OsStr::from_bytes(path)));
    Sandbox {
        mode: load.sandbox,
        read: read.chain(network.iter().flat_map(|network| network.files.iter().cloned())).collect(),
        network: network.is_some(),
        decodes: true,
        ..Sandbox::default()
    }
    .enter()?;
    let map = |settings: &KindSettings| registry.map(settings).ok_or_else(|| unknown(settings));
    let (run, steps, runs) = (fetch.start(), with_maps(load.steps, &map)?, MapRuns::default());
    let ChainSpec { source, leaves, sends, .. } = load;
    Ok((LoaderChain { source, fetch, run, steps, runs, leaves, sends }, ring))
}
