//! Which GPUs a process may use: reads an inherited `CUDA_VISIBLE_DEVICES` as CUDA does, and writes the one of a worker.
//! Pure: it reads no environment and sets none.

use orchestra_core::DeviceKind;

use crate::gpu::Gpu;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visible {
    /// The GPUs that may be used, in the order of the variable.
    pub gpus: Vec<Gpu>,
    /// Why none is left, or where the variable's list was cut off; `None` when every entry named a GPU.
    pub hidden: Option<String>,
}

/// Narrows `all`, which is in PCI bus order, to what `CUDA_VISIBLE_DEVICES=list` allows, by CUDA's own rules: entries are
/// numbers, or `GPU-…` UUIDs that may be cut short while they stay unique, or `MIG-…` UUIDs; the kind of the first entry
/// is the kind of all; the list ends at the first entry that names no GPU; a GPU named twice hides everything. `find_mig`
/// looks up a MIG instance that `all` does not name.
///
/// A number or a `GPU-…` UUID of a GPU that is cut into MIG instances gives all of these. (A single process would get the first alone, but
/// each worker is a process of its own.)
///
/// Numbers count in PCI bus order, as schedulers give them and as workers are told to (`CUDA_DEVICE_ORDER=PCI_BUS_ID`).
pub fn visible(all: &[Gpu], list: &str, find_mig: impl Fn(&str) -> Option<Gpu>) -> Visible {
    let list = list.trim();
    if list.is_empty() {
        return Visible {
            gpus: Vec::new(),
            hidden: Some("`CUDA_VISIBLE_DEVICES` is empty, which hides all GPUs".into()),
        };
    }
    let kind = EntryKind::of(list);
    let mut gpus: Vec<Gpu> = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let found = match kind {
            _ if EntryKind::of(entry) != kind => Vec::new(),
            EntryKind::Number => number(entry).map(|n| of_place(all, n)).unwrap_or_default(),
            EntryKind::Gpu => of_uuid(all, entry),
            EntryKind::Mig => only(all.iter().filter(|gpu| gpu.uuid.starts_with(entry)))
                .cloned()
                .or_else(|| find_mig(entry))
                .into_iter()
                .collect(),
        };
        if found.is_empty() {
            let hidden = format!(
                "`CUDA_VISIBLE_DEVICES={list}` ends at `{entry}`, which names none of the {} GPUs of this machine",
                all.len()
            );
            return Visible { gpus, hidden: Some(hidden) };
        }
        if gpus.iter().any(|known| found.iter().any(|gpu| gpu.uuid == known.uuid)) {
            let hidden =
                format!("`CUDA_VISIBLE_DEVICES={list}` names a GPU twice (`{entry}`), which hides all GPUs");
            return Visible { gpus: Vec::new(), hidden: Some(hidden) };
        }
        gpus.extend(found);
    }
    Visible { gpus, hidden: None }
}

/// The UUID by which whole GPUs are named and told apart: of an instance, that of the GPU that it is a part of.
fn whole(gpu: &Gpu) -> &str {
    gpu.part_of.as_deref().unwrap_or(&gpu.uuid)
}

/// The GPU with this number, or its instances. Where that one does not answer there is none: the next one may be another user's.
fn of_place(all: &[Gpu], n: usize) -> Vec<Gpu> {
    all.iter().filter(|gpu| usize::try_from(gpu.index) == Ok(n)).cloned().collect()
}

/// The GPU whose UUID starts like this, or its instances; nothing where several do.
fn of_uuid(all: &[Gpu], start: &str) -> Vec<Gpu> {
    let found: Vec<Gpu> = all.iter().filter(|gpu| whole(gpu).starts_with(start)).cloned().collect();
    let is_one = found.windows(2).all(|two| whole(&two[0]) == whole(&two[1]));
    if is_one { found } else { Vec::new() }
}

/// The variables that give a worker its one device. A CPU worker gets an empty list, so that nothing it loads can ever take
/// memory on a GPU.
pub fn worker_environment(kind: &DeviceKind) -> Vec<(String, String)> {
    let uuid = match kind {
        DeviceKind::Cpu => String::new(),
        DeviceKind::Cuda { uuid } => uuid.clone(),
    };
    vec![("CUDA_VISIBLE_DEVICES".into(), uuid), ("CUDA_DEVICE_ORDER".into(), "PCI_BUS_ID".into())]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryKind {
    Number,
    Gpu,
    Mig,
}

impl EntryKind {
    fn of(entry: &str) -> Self {
        match entry {
            _ if entry.starts_with("GPU-") => EntryKind::Gpu,
            _ if entry.starts_with("MIG-") => EntryKind::Mig,
            _ => EntryKind::Number,
        }
    }
}

/// As C's `strtoul`, which CUDA uses: what follows the digits is ignored.
fn number(entry: &str) -> Option<usize> {
    let digits = entry.strip_prefix('+').unwrap_or(entry);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

fn only<T>(mut items: impl Iterator<Item = T>) -> Option<T> {
    let first = items.next()?;
    items.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::tests::{gpu, slice};

    fn indices(list: &str) -> Vec<u32> {
        let all = [gpu(0), gpu(1), gpu(2)];
        let mig = |uuid: &str| (uuid == "MIG-1").then(|| Gpu { uuid: uuid.into(), ..gpu(9) });
        visible(&all, list, mig).gpus.iter().map(|gpu| gpu.index).collect()
    }

    #[test]
    fn numbers_select_and_reorder() {
        assert_eq!(indices("1"), [1]);
        assert_eq!(indices("2, 0,1"), [2, 0, 1]);
        assert_eq!(indices("1x,0"), [1, 0]);
    }

    #[test]
    fn uuids_may_be_cut_short_while_they_are_unique() {
        assert_eq!(indices("GPU-2a5f-0000,GPU-0"), [2, 0]);
        assert_eq!(indices("GPU-0,GPU-,GPU-1"), [0]);
        assert_eq!(indices("MIG-1"), [9]);
    }

    #[test]
    fn the_list_ends_at_the_first_entry_that_names_nothing() {
        assert_eq!(indices("1,7,0"), [1]);
        assert_eq!(indices("0,-1,1"), [0]);
        assert_eq!(indices("0,,1"), [0]);
        assert_eq!(indices("0,GPU-1a5f-0000"), [0]);
        assert_eq!(indices("GPU-1a5f-0000,0"), [1]);
        assert_eq!(indices("99999999999999999999999"), [] as [u32; 0]);
        assert_eq!(indices("none"), [] as [u32; 0]);
    }

    #[test]
    fn an_empty_list_and_a_doubled_gpu_hide_everything() {
        for list in ["", "  ", "-1", "1,0,1", "GPU-1,GPU-1a5f"] {
            assert_eq!(indices(list), [] as [u32; 0], "{list}");
        }
    }

    #[test]
    fn a_number_whose_gpu_does_not_answer_names_nothing() {
        let all = [gpu(1), gpu(2)];
        let seen = |list: &str| -> Vec<u32> {
            visible(&all, list, |_| None).gpus.iter().map(|gpu| gpu.index).collect()
        };
        assert_eq!(seen("1"), [1], "not the second of those that answer");
        assert_eq!(seen("0,1"), [] as [u32; 0]);
    }

    /// GPU 0 whole, GPU 1 in three slices, GPU 2 whole.
    fn uuids_beside_slices(list: &str) -> Vec<String> {
        let all = [gpu(0), slice(1, 0), slice(1, 1), slice(1, 2), gpu(2)];
        visible(&all, list, |_| None).gpus.into_iter().map(|gpu| gpu.uuid).collect()
    }

    #[test]
    fn a_gpu_that_is_cut_counts_once_and_gives_its_slices() {
        let slices = [0, 1, 2].map(|n| slice(1, n).uuid);
        assert_eq!(uuids_beside_slices("1"), slices);
        assert_eq!(uuids_beside_slices("2"), [gpu(2).uuid]);
        assert_eq!(uuids_beside_slices("3"), [] as [String; 0]);
        assert_eq!(uuids_beside_slices("GPU-1a5f"), slices);
        assert_eq!(uuids_beside_slices("0,1").len(), 4);
        assert_eq!(uuids_beside_slices("1,1"), [] as [String; 0]);
    }

    #[test]
    fn slices_are_named_by_themselves_and_only_once() {
        assert_eq!(uuids_beside_slices(&slice(1, 2).uuid), [slice(1, 2).uuid]);
        assert_eq!(uuids_beside_slices("MIG-12,MIG-10"), [slice(1, 2).uuid, slice(1, 0).uuid]);
        assert_eq!(uuids_beside_slices("MIG-1"), [] as [String; 0]);
        assert_eq!(uuids_beside_slices("MIG-10,MIG-10"), [] as [String; 0]);
        assert_eq!(uuids_beside_slices("MIG-10,0"), [slice(1, 0).uuid]);
    }

    #[test]
    fn what_is_hidden_is_explained() {
        let all = [gpu(0)];
        assert_eq!(visible(&all, "0", |_| None).hidden, None);
        let cut = visible(&all, "0,3", |_| None).hidden.unwrap();
        assert!(cut.contains("`3`") && cut.contains("1 GPUs"), "{cut}");
        assert!(visible(&all, "", |_| None).hidden.unwrap().contains("is empty"));
        assert!(visible(&all, "0,0", |_| None).hidden.unwrap().contains("twice"));
    }

    #[test]
    fn a_worker_sees_its_own_device_and_nothing_else() {
        let get = |kind: &DeviceKind| {
            worker_environment(kind).into_iter().collect::<std::collections::BTreeMap<_, _>>()
        };
        let cpu = get(&DeviceKind::Cpu);
        assert_eq!(cpu["CUDA_VISIBLE_DEVICES"], "");
        let cuda = get(&DeviceKind::Cuda { uuid: "GPU-1".into() });
        assert_eq!(cuda["CUDA_VISIBLE_DEVICES"], "GPU-1");
        assert_eq!(cuda["CUDA_DEVICE_ORDER"], "PCI_BUS_ID");
    }
}
