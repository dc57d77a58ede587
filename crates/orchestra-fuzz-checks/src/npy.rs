//! Headers of arrays: a `.npy` file, and the same bytes as an archive of arrays, in a plan that reads them. It reads no rows.

use orchestra_plan::PlanOptions;

use crate::memory::measured;
use crate::workflow;
use crate::world::World;

/// What a plan with one model may take beyond what it reads of the file.
const SLACK: usize = 8 << 20;

/// A file of arrays is planned with or explained, in memory that its claims do not decide.
pub fn npy(bytes: &[u8]) {
    for name in ["rows.npy", "rows.npz"] {
        let file = format!(
            "version = 1\n\
             [sources.rows]\nkind = \"tensors\"\npaths = [\"{name}\"]\n\
             [sinks.all]\nkind = \"jsonl\"\nfrom = \"rows\"\n"
        );
        let world = World { item: Some((name, bytes.to_vec())), ..World::with_gpus(0) };
        let ((), taken) = measured(|| workflow::check(&file, &PlanOptions::default(), &world));
        assert!(taken.peak <= SLACK + 8 * bytes.len(), "{taken:?} for a file of {} bytes", bytes.len());
    }
}
