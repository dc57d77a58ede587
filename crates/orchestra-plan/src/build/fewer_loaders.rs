//! As many loaders as memory has room for. It decides nothing about what one of them gets.

use crate::bytes::format_bytes;
use crate::diagnostics::Diagnostics;
use crate::fields::At;
use crate::plan::{LEAST_LOADER_BYTES, Plan};
use crate::raw::RawPipeline;

/// Takes loaders away until each can have what a loader needs at least, or each source has one. Warns where the file asks for more: `limits` is what it says
/// of all, and `own` what it says of each pipeline.
pub(super) fn fewer_loaders(
    plan: &mut Plan,
    limits: Option<&At<u64>>,
    own: &[Option<&RawPipeline>],
    diags: &mut Diagnostics,
) {
    let asked: Vec<usize> = plan.pipelines.iter().map(|pipeline| pipeline.loaders).collect();
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
    let mut warn = |key: &str, asked: &At<u64>, get: usize| {
        diags
            .warning(asked.span, format!("`{key}` is {}, but memory has room for {get}", asked.value))
            .label(format!("{get} start"))
            .help("lower it, or raise `limits.memory`");
    };
    if let Some(limits) = limits.filter(|n| n.value > after as u64) {
        warn("limits.loaders", limits, after);
    }
    for ((pipeline, asked), own) in plan.pipelines.iter().zip(asked).zip(own) {
        if let Some(own) = own
            && let Some(loaders) = own.loaders.as_ref().filter(|_| pipeline.loaders < asked)
        {
            warn(&format!("pipelines.{}.loaders", own.name.value), loaders, pipeline.n_loaders());
        }
    }
}
