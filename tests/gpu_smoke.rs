//! `scripts/gpu-smoke.sh`, the check of a machine with a GPU, on a machine without one. What needs a GPU is left out.

use std::process::Command;

use crate::common::{ORCHESTRA, python, repository};

#[test]
fn the_smoke_check_of_a_gpu_passes_on_a_cpu() {
    let Some(python) = python() else { return };
    let mut check = Command::new(repository().join("scripts/gpu-smoke.sh"));
    let ended =
        check.args(["--device", "cpu", "--binary", ORCHESTRA]).env("PYTHON", python).output().unwrap();
    let (table, errors) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{table}{errors}");
    for name in ["digits example", "digits, f32", "out of memory", "kill storm", "bench digits"] {
        let is_well = |line: &str| line.starts_with(name) && line.contains(" ok ");
        assert!(table.lines().any(is_well), "{name}: {table}");
    }
}
