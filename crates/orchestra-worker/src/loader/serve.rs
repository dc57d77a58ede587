//! The loop of a loader process: takes items from the parent, and sends what became of them.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use orchestra_core::ErrorClass;
use orchestra_core::shapes::{KindSettings, Registry};
use orchestra_store::FileKinds;

use super::events::{ChainSpec, FromLoader, MapSpec, ToLoader};
use super::look;
use super::parent::{End, Parent};
use super::region::Ring;
use super::walk::{LoaderChain, MapNode};
use crate::BUILD;
use crate::codec::{FrameReader, FrameWriter};
use crate::frames::PROTOCOL_VERSION;
use crate::process::{EXIT_LOAD_FAILED, EXIT_PROTOCOL};
use crate::sandbox::Sandbox;
use crate::serve::LoadError;

/// What a loader process knows of kinds.
pub trait LoaderKinds: Registry + FileKinds {}

impl<T: Registry + FileKinds> LoaderKinds for T {}

/// Loads items for the parent, or looks into files for it, until it hangs up. Returns the exit code.
pub fn run_loader(socket: &UnixStream, region: OwnedFd, kinds: &dyn LoaderKinds) -> i32 {
    match serve(socket, region, kinds) {
        Ok(()) | Err(End::Gone) => 0,
        Err(End::Refused) => EXIT_LOAD_FAILED,
        Err(End::Protocol(what)) => {
            eprintln!("loader: protocol error: {what}");
            EXIT_PROTOCOL
        }
    }
}

fn serve(socket: &UnixStream, region: OwnedFd, kinds: &dyn LoaderKinds) -> Result<(), End> {
    let clone = || socket.try_clone().map_err(|e| End::Protocol(e.to_string()));
    let mut reader: FrameReader<UnixStream, ToLoader> = FrameReader::new(clone()?);
    let mut writer: FrameWriter<UnixStream, FromLoader> = FrameWriter::new(clone()?);
    writer.write(&FromLoader::Hello { protocol: PROTOCOL_VERSION, build: BUILD.to_owned() })?;
    let load = match reader.read()? {
        Some(ToLoader::Load(load)) => load,
        Some(ToLoader::Look(spec)) => return look::serve(&spec, &mut reader, &mut writer, kinds),
        Some(ToLoader::Items { .. } | ToLoader::List { .. } | ToLoader::Describe { .. }) => {
            return Err(End::Protocol("the first frame is neither `Load` nor `Look`".to_owned()));
        }
        None => return Err(End::Gone),
    };
    let ready = ready(&load, region, kinds);
    let (mut chain, ring) = match ready {
        Ok(ready) => ready,
        Err(LoadError { class, error }) => {
            writer.write(&FromLoader::Refused { class, error })?;
            return Err(End::Refused);
        }
    };
    writer.write(&FromLoader::Ready)?;
    let has_all_room = load.region_bytes >= load.most_region_bytes;
    let mut parent = Parent::new(reader, writer, ring, has_all_room);
    while let Some(item) = parent.next_item() {
        if chain.item(&item, &mut parent).is_err() {
            break;
        }
    }
    Err(parent.end.unwrap_or(End::Gone))
}

/// Confines the process and makes the chain.
fn ready(
    load: &ChainSpec,
    region: OwnedFd,
    registry: &dyn LoaderKinds,
) -> Result<(LoaderChain, Ring), LoadError> {
    let refused = |error: String| LoadError { class: ErrorClass::Permanent, error };
    let ring = Ring::map(region, load.region_bytes)
        .map_err(|e| refused(format!("its region cannot be mapped: {e}")))?;
    crate::limits::confine(load.memory).map_err(|e| refused(format!("its limits cannot be set: {e}")))?;
    let unknown = |settings: &KindSettings| {
        refused(format!(
            "the program of the loader knows no kind `{}` of these settings; it must register the kinds that the run uses",
            settings.kind
        ))
    };
    fn nodes(
        specs: &[MapSpec],
        registry: &dyn LoaderKinds,
        unknown: &dyn Fn(&KindSettings) -> LoadError,
    ) -> Result<Vec<MapNode>, LoadError> {
        let node = |spec: &MapSpec| {
            let map = registry.map(&spec.map).ok_or_else(|| unknown(&spec.map))?;
            let (run, next) = (map.start(), nodes(&spec.next, registry, unknown)?);
            let packed = |column: &usize| map.packing(*column).map(|packing| packing.bytes());
            let packed = spec.sends.iter().map(packed).collect();
            Ok(MapNode { spec: MapSpec { next: Vec::new(), ..spec.clone() }, map, run, packed, next })
        };
        specs.iter().map(node).collect()
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
    let (run, maps) = (fetch.start(), nodes(&load.maps, registry, &unknown)?);
    Ok((LoaderChain { fetch, sends: load.sends.clone(), maps, run }, ring))
}
