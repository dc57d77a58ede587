//! Whether the NVIDIA driver is new enough for a release of CUDA. Judges what the driver says; asks it for no more than needed.

use crate::gpu::ProbeError;

/// The first branch of drivers that runs every release of CUDA 12, and of CUDA 13: "minor version compatibility" in the release notes of
/// the CUDA toolkit.
const FIRST_BRANCH: [(u32, u32); 2] = [(12, 525), (13, 580)];

/// Says which versions the driver has.
pub trait DriverProbe {
    /// Its own version, for example `580.65.06`.
    fn version(&self) -> Result<String, ProbeError>;

    /// The newest CUDA that it can run, as major and minor. Newer user-space parts than those of the installed driver (NVIDIA's
    /// "forward compatibility" package) count. The driver opens `libcuda.so.1` to find out, and so this process has it open for a moment.
    ///
    /// # Errors
    /// `ProbeError::NoDriverLibrary` if there is none; else why there is no driver to ask.
    fn cuda(&self) -> Result<(i32, i32), ProbeError>;
}

/// What keeps the driver from running programs that are built for CUDA `needed`, and what to do; `None`: nothing. `has_library`: whether
/// `libcuda.so.1` was seen. Only where the version alone leaves a doubt is the driver asked for its CUDA.
pub fn driver_problem(driver: &dyn DriverProbe, needed: u32, has_library: bool) -> Option<String> {
    let version = driver.version().ok();
    let first = first_branch(needed);
    if has_library && first.is_some() && version.as_deref().and_then(branch) >= first {
        return None;
    }
    match driver.cuda() {
        Ok((major, _)) if u32::try_from(major).is_ok_and(|major| major >= needed) => None,
        Ok((major, minor)) => {
            Some(too_old(&version.unwrap_or_else(|| "unknown".into()), (major, minor), needed))
        }
        Err(error) => Some(error.to_string()),
    }
}

fn too_old(version: &str, (major, minor): (i32, i32), needed: u32) -> String {
    let which =
        first_branch(needed).map_or("a newer driver".into(), |branch| format!("driver {branch} or newer"));
    format!(
        "the NVIDIA driver {version} runs CUDA up to {major}.{minor}, and this ONNX Runtime is built for CUDA {needed}: install {which}, or \
         set `ORT_DYLIB_PATH` to the `libonnxruntime.so` of a GPU build for CUDA {major}"
    )
}

fn first_branch(cuda: u32) -> Option<u32> {
    FIRST_BRANCH.iter().find(|(release, _)| *release == cuda).map(|(_, branch)| *branch)
}

/// 580 of `580.65.06`.
fn branch(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    struct Fake {
        version: Result<&'static str, ProbeError>,
        cuda: Result<(i32, i32), ProbeError>,
        asked_for_cuda: Cell<bool>,
    }

    impl DriverProbe for Fake {
        fn version(&self) -> Result<String, ProbeError> {
            self.version.clone().map(str::to_owned)
        }

        fn cuda(&self) -> Result<(i32, i32), ProbeError> {
            self.asked_for_cuda.set(true);
            self.cuda.clone()
        }
    }

    fn driver(version: &'static str, cuda: (i32, i32)) -> Fake {
        Fake { version: Ok(version), cuda: Ok(cuda), asked_for_cuda: Cell::new(false) }
    }

    #[test]
    fn a_driver_that_is_new_enough_by_its_version_is_asked_for_nothing_else() {
        for (version, needed) in [("580.65.06", 13), ("590.1", 13), ("525.60.13", 12), ("580.65.06", 12)] {
            let driver = driver(version, (0, 0));
            assert_eq!(driver_problem(&driver, needed, true), None, "{version}");
            assert!(!driver.asked_for_cuda.get(), "the parent of workers would have CUDA loaded");
        }
    }

    #[test]
    fn a_driver_of_cuda_12_does_not_run_cuda_13_and_the_text_says_what_to_do() {
        let problem = driver_problem(&driver("570.86.15", (12, 8)), 13, true).unwrap();
        for part in ["570.86.15", "12.8", "built for CUDA 13", "driver 580 or newer", "GPU build for CUDA 12"]
        {
            assert!(problem.contains(part), "{problem}");
        }
        assert_eq!(driver_problem(&driver("570.86.15", (12, 8)), 12, true), None);
        let older = driver_problem(&driver("470.57.02", (11, 4)), 12, true).unwrap();
        assert!(older.contains("driver 525 or newer"), "{older}");
    }

    #[test]
    fn newer_user_space_parts_on_an_old_driver_are_believed() {
        assert_eq!(driver_problem(&driver("535.54.03", (13, 0)), 13, true), None);
    }

    #[test]
    fn without_its_library_a_driver_runs_nothing_unless_it_says_so_itself() {
        let mut container = driver("580.65.06", (13, 0));
        assert_eq!(driver_problem(&container, 13, false), None, "it lies where we did not look");
        container.cuda = Err(ProbeError::NoDriverLibrary);
        let problem = driver_problem(&container, 13, false).unwrap();
        assert!(problem.contains("libcuda.so.1") && problem.contains("compute"), "{problem}");
    }

    #[test]
    fn a_release_that_is_not_known_is_for_the_driver_to_judge() {
        assert_eq!(driver_problem(&driver("700.1", (14, 0)), 14, true), None);
        assert!(driver_problem(&driver("590.1", (13, 1)), 14, true).unwrap().contains("a newer driver"));
    }
}
