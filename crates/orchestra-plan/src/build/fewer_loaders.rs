//! As many loaders as memory has room for. It decides nothing about what one of them gets.

use crate::bytes::format_bytes;
use crate::diagnostics::Diagnostics;
use crate::fields::At;
use crate::plan::{LEAST_LOADER_BYTES, Plan};

/// Takes loaders away until each can have what a loader needs at least, or each source has one. Warns where the file asks for more, in
/// `limits`.
pub(super) fn fewer_loaders(plan: &mut Plan, limits: Option<&At<u64>>, diags: &mut Diagnostics) {
    let before = plan.n_loaders();
    while plan.loader_share() < LEAST_LOADER_BYTES
        && let Some(largest) = plan.pipelines.iter_mut().max_by_key(|pipeline| pipeline.loaders)
        && largest.loaders > 1
    {
        largest.loaders -= 1;
    }
    let after = plan.n_loaders();
    if after == before {
        return;
    }
    plan.loader_threads = plan.loader_threads.min(after);
    plan.reasons.push(format!(
        "loaders: {after} instead of {before}: {} are left for them, of which one takes {}, and one that has an item alone {}; `limits.memory` gives them more",
        format_bytes(plan.bytes_left),
        format_bytes(LEAST_LOADER_BYTES),
        format_bytes(plan.least_alone()),
    ));
    if let Some(asked) = limits.filter(|n| n.value > after as u64) {
        let message = format!("`limits.loaders` is {}, but memory has room for {after}", asked.value);
        let warning = diags.warning(asked.span, message).label(format!("{after} start"));
        warning.help("lower it, or raise `limits.memory`");
    }
}
