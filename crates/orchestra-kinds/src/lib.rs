//! The kinds of sources, stages and sinks that a workflow file may name. A kind is one file, with a folder of its name where it is large: its keys,
//! what it gives for what it reads, and what it does to a row. What several kinds need is in `sources/reading/`, `stages/shared/` and `sinks/shared/`. Nothing here knows actors, workers or the journal.

mod elements;
pub mod inspect;
mod objects;
mod picture_encoders;
mod python_script;
mod sinks;
mod sources;
mod stages;

use std::sync::Arc;

pub use sinks::reply::{Reply, read_reply, reply_json};
pub use sinks::shared::read_back::read_lines;

use orchestra_plan::{Kinds, Typed};

/// All kinds that orchestra brings along. A program that embeds it adds its own with [`Kinds::with_stage`] and the like.
pub fn builtin() -> Kinds {
    Kinds {
        sources: vec![
            Arc::new(Typed::<sources::images::Images>::kind()),
            Arc::new(Typed::<sources::files::FilesSource>::kind()),
            Arc::new(Typed::<sources::tensors::TensorFiles>::kind()),
            Arc::new(Typed::<sources::jsonl::JsonLinesSource>::kind()),
            Arc::new(Typed::<sources::csv::CsvSource>::kind()),
            Arc::new(Typed::<sources::parquet::ParquetSource>::kind()),
            Arc::new(Typed::<sources::tar::TarSource>::kind()),
            Arc::new(Typed::<sources::zip::Zip>::kind()),
            Arc::new(Typed::<sources::range::Range>::kind()),
            Arc::new(Typed::<sources::random::Random>::kind()),
            Arc::new(Typed::<sources::python::PythonSource>::kind()),
            Arc::new(Typed::<sources::request::RequestSource>::kind()),
        ],
        stages: vec![
            Arc::new(Typed::<stages::image::Image>::kind()),
            Arc::new(Typed::<stages::pages::PagesStage>::kind()),
            Arc::new(Typed::<stages::size::Size>::kind()),
            Arc::new(Typed::<stages::infer::Infer>::kind()),
            Arc::new(Typed::<stages::iterate::Iterate>::kind()),
            Arc::new(Typed::<stages::python::Python>::kind()),
            Arc::new(Typed::<stages::cuda::Cuda>::kind()),
            Arc::new(Typed::<stages::classify::Classify>::kind()),
            Arc::new(Typed::<stages::crop::Crop>::kind()),
            Arc::new(Typed::<stages::detect::Detect>::kind()),
            Arc::new(Typed::<stages::filter::Filter>::kind()),
            Arc::new(Typed::<stages::gather::Gather>::kind()),
            Arc::new(Typed::<stages::split::SplitStage>::kind()),
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
            Arc::new(Typed::<sinks::jsonl::JsonLinesSink>::kind()),
            Arc::new(Typed::<sinks::csv::CsvSink>::kind()),
            Arc::new(Typed::<sinks::images::ImageSettings>::kind()),
            Arc::new(Typed::<sinks::npy::Npy>::kind()),
            Arc::new(Typed::<sinks::parquet::ParquetSink>::kind()),
            Arc::new(Typed::<sinks::tar::TarSink>::kind()),
            Arc::new(Typed::<sinks::python::PythonSink>::kind()),
            Arc::new(Typed::<sinks::reply::Reply>::kind()),
        ],
    }
}
