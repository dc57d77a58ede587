//! Fetches a library into the cache, once for all processes of a user. Searches nowhere else.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::library::cache::{self, CacheRecord};
use crate::library::candidate::{examine, examine_file};
use crate::library::env::Env;
use crate::library::error::LibraryError;
use crate::library::found::{Library, Progress};
use crate::library::lock;
use crate::library::origin::{Flavor, LibraryOrigin};
use crate::library::pins::Pin;
use crate::library::pip;
use crate::library::staging::Staging;

/// Whether anything can be fetched for this machine, as far as it tells without a network.
pub(crate) fn is_possible(flavor: Flavor, env: &Env) -> Result<(), LibraryError> {
    let pin = pin_of(flavor, env)?;
    env.cache_folder().ok_or(LibraryError::NoCacheFolder)?;
    pip::interpreter(env, pin).map(drop)
}

fn pin_of(flavor: Flavor, env: &Env) -> Result<&Pin, LibraryError> {
    let pin = env.pins_for(flavor).into_iter().find(|pin| pin.flavor == flavor);
    pin.ok_or_else(|| LibraryError::NoPin { flavor, arch: std::env::consts::ARCH.to_owned() })
}

/// Returns the library that another process fetched meanwhile, or fetches it.
pub(crate) fn fetch(flavor: Flavor, env: &Env, progress: &mut dyn Progress) -> Result<Library, LibraryError> {
    let pin = pin_of(flavor, env)?;
    let root = env.cache_folder().ok_or(LibraryError::NoCacheFolder)?;
    let folder = root.join(pin.folder_name());
    // Without Python nothing can be done, so say that before a folder is made.
    let python = pip::interpreter(env, pin)?;
    fs::create_dir_all(&root).map_err(LibraryError::io("create", &root))?;
    let _lock = lock::take(&root.join(format!(".{}.lock", pin.folder_name())), progress)?;
    if let Ok(found) = cached(&folder, pin, flavor, LibraryOrigin::Cache) {
        return Ok(found);
    }
    let staging = Staging::new(&root, &pin.folder_name())?;
    check_room(&root, pin)?;
    progress.note(&format!(
        "fetching {} {} ({} MB) with pip into `{}`: this is done once",
        pin.package,
        pin.version,
        pin.wheel_bytes.div_ceil(1_000_000),
        folder.display()
    ));
    pip::install(&python, pin, &staging, env, progress)?;
    let files = staging.take_library()?;
    let damaged = |file: PathBuf, help| move |why| LibraryError::Damaged { file, why, help };
    examine(&staging.library, flavor, LibraryOrigin::Fetched)
        .map_err(damaged(pin.folder_name().into(), "it was not used; try again"))?;
    if progress.cancelled() {
        return Err(LibraryError::Cancelled);
    }
    let record = CacheRecord { wheel_sha256: pin.sha256.clone(), files };
    staging.publish(&folder, &record).map_err(|error| full_disk(error, &root, pin))?;
    progress.note(&format!("{} {} is ready", pin.package, pin.version));
    cached(&folder, pin, flavor, LibraryOrigin::Fetched).map_err(damaged(folder, "delete it and try again"))
}

fn cached(folder: &Path, pin: &Pin, flavor: Flavor, origin: LibraryOrigin) -> Result<Library, String> {
    cache::lookup(folder, pin).and_then(|file| examine_file(&file, flavor, origin))
}

/// Better said before minutes of download than after.
fn check_room(root: &Path, pin: &Pin) -> Result<(), LibraryError> {
    // Where the system does not tell, writing will.
    let Ok(disk) = rustix::fs::statvfs(root) else { return Ok(()) };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let is_enough = free >= pip::needed_bytes(pin);
    if is_enough { Ok(()) } else { Err(pip::disk_full(root, pin, Some(free / 1_000_000))) }
}

fn full_disk(error: LibraryError, root: &Path, pin: &Pin) -> LibraryError {
    match error {
        LibraryError::Io { source, .. }
            if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) =>
        {
            pip::disk_full(root, pin, None)
        }
        other => other,
    }
}
