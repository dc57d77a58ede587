//! Footers of Parquet files, in a plan that reads rows of one. It reads no rows. Without the feature `parquet` the plan knows no such file, and
//! nothing is shown.

use orchestra_plan::PlanOptions;

use crate::memory::measured;
use crate::workflow;
use crate::world::World;

/// What a plan without a model may take beyond what a byte of the footer may cost.
const SLACK: usize = 8 << 20;
/// The path of each column is kept, with the names of its groups: of a footer of kilobytes some hundred times what it has.
const PER_BYTE: usize = 1 << 10;

/// A file with these bytes as its footer is planned with or explained, in memory that its claims do not decide.
pub fn parquet_footer(bytes: &[u8]) {
    let file = "version = 1\n\
         [sources.rows]\nkind = \"parquet\"\npaths = [\"rows.parquet\"]\n\
         [sinks.all]\nkind = \"jsonl\"\nfrom = \"rows\"\n";
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
    let whole = [b"PAR1", bytes, &len, b"PAR1"].concat();
    let world = World { item: Some(("rows.parquet", whole)), ..World::with_gpus(0) };
    let ((), taken) = measured(|| workflow::check(file, &PlanOptions::default(), &world));
    assert!(taken.peak <= SLACK + PER_BYTE * bytes.len(), "{taken:?} for a footer of {} bytes", bytes.len());
}
