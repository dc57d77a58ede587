//! The kinds of sources, stages and sinks that a workflow file may name. A kind is one file, with a folder of its name where it is large: its keys,
//! what it gives for what it reads, and what it does to a row. What several kinds need is in `sources/reading/`, `stages/shared/` and `sinks/shared/`. Nothing here knows actors, workers or the journal.

mod elements;
pub mod inspect;
mod objects;
mod picture_encoders;
mod sinks;
mod sources;
mod stages;

use std::sync::Arc;

pub use sinks::shared::read_back::read_lines;

use orchestra_plan::{Kinds, Typed};

/// All kinds that orchestra brings along. A program that embeds it adds its own with [`Kinds::with_stage`] and the like.
#[must_use]
pub fn builtin() -> Kinds {
    Kinds {
        sources: vec![
            Arc::new(sources::images::Images),
            Arc::new(sources::tensors::Tensors),
            Arc::new(sources::jsonl::JsonLines),
            Arc::new(sources::csv::Csv),
            Arc::new(sources::parquet::Parquet),
            Arc::new(sources::tar::Tar),
            Arc::new(sources::zip::Zip),
            Arc::new(sources::range::Range),
            Arc::new(sources::random::Random),
        ],
        stages: vec![
            Arc::new(Typed::<stages::image::Image>::kind()),
            Arc::new(Typed::<stages::pages::Pages>::kind()),
            Arc::new(Typed::<stages::size::Size>::kind()),
            Arc::new(stages::infer::Infer),
            Arc::new(stages::iterate::Iterate),
            Arc::new(stages::python::Python),
            Arc::new(stages::cuda::Cuda),
            Arc::new(Typed::<stages::classify::Classify>::kind()),
            Arc::new(Typed::<stages::crop::Crop>::kind()),
            Arc::new(Typed::<stages::detect::Detect>::kind()),
            Arc::new(Typed::<stages::filter::Filter>::kind()),
            Arc::new(Typed::<stages::gather::Gather>::kind()),
            Arc::new(Typed::<stages::merge::Merge>::kind()),
            Arc::new(Typed::<stages::reduce::ReduceStage>::kind()),
            Arc::new(Typed::<stages::ctc::Ctc>::kind()),
            Arc::new(Typed::<stages::select::Select>::kind()),
            Arc::new(Typed::<stages::embed::Embed>::kind()),
            Arc::new(Typed::<stages::threshold::Threshold>::kind()),
            Arc::new(Typed::<stages::argmax::Argmax>::kind()),
            Arc::new(Typed::<stages::mask::Mask>::kind()),
            Arc::new(Typed::<stages::draw::Draw>::kind()),
        ],
        sinks: vec![
            Arc::new(sinks::jsonl::JsonLines),
            Arc::new(sinks::csv::Csv),
            Arc::new(sinks::images::ImageFiles),
            Arc::new(sinks::npy::Npy),
            Arc::new(sinks::parquet::Parquet),
            Arc::new(sinks::tar::Tar),
        ],
    }
}
