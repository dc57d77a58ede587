//! What a worker process must say of itself before it is given a model. Decides only.

use orchestra_core::DeviceKind;
use orchestra_worker::BUILD;
use orchestra_worker::frames::PROTOCOL_VERSION;

/// Why this is not the worker that was started, if it is not, and what to do. `sees` is its `CUDA_VISIBLE_DEVICES`.
pub(crate) fn mismatch(
    device: &DeviceKind,
    protocol: u32,
    build: &str,
    sees: Option<&str>,
) -> Option<String> {
    if protocol != PROTOCOL_VERSION || build != BUILD {
        return Some(format!(
            "it is build {build} with protocol {protocol}, this is build {BUILD} with protocol {PROTOCOL_VERSION}; use the worker executable of the same build"
        ));
    }
    match device {
        // Without the variable it would see every GPU, and take the first.
        DeviceKind::Cuda { uuid } if sees != Some(uuid) => {
            let has = sees.map_or("without `CUDA_VISIBLE_DEVICES`".to_owned(), |s| {
                format!("with `CUDA_VISIBLE_DEVICES={s}`")
            });
            Some(format!(
                "it was started {has}, expected `{uuid}` alone; what starts the workers must leave that variable as it is"
            ))
        }
        DeviceKind::Cuda { .. } | DeviceKind::Cpu => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_build_that_sees_its_own_device_alone_is_greeted() {
        let gpu = DeviceKind::Cuda { uuid: "GPU-1".into() };
        let of = |device: &DeviceKind, sees| mismatch(device, PROTOCOL_VERSION, BUILD, sees);
        assert_eq!(
            (of(&gpu, Some("GPU-1")), of(&DeviceKind::Cpu, Some("")), of(&DeviceKind::Cpu, None)),
            (None, None, None)
        );
        for (sees, says) in [
            (None, "without `CUDA_VISIBLE_DEVICES`"),
            (Some(""), "with `CUDA_VISIBLE_DEVICES=`"),
            (Some("GPU-0"), "with `CUDA_VISIBLE_DEVICES=GPU-0`"),
            (Some("GPU-1,GPU-2"), "with `CUDA_VISIBLE_DEVICES=GPU-1,GPU-2`"),
        ] {
            let why = of(&gpu, sees).expect("it sees another device, or more than one");
            assert!(why.contains(says) && why.contains("expected `GPU-1` alone"), "{why}");
        }
        for (protocol, build) in [(PROTOCOL_VERSION + 1, BUILD), (PROTOCOL_VERSION, "another")] {
            let why = mismatch(&DeviceKind::Cpu, protocol, build, None).expect("it is another build");
            assert!(why.contains("use the worker executable of the same build"), "{why}");
        }
    }
}
