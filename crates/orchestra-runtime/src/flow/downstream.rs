//! What follows a batch stage in a pipeline: completed rows go to the processor, failures to the sink and, if they are parts, to their folds.

use std::sync::Arc;

use orchestra_core::Failure;
use orchestra_core::lineage::End;
use ractor::ActorRef;
use smallvec::SmallVec;

use crate::batch::completion::Completion;
use crate::flow::fold::FoldTarget;
use crate::flow::processor::Processor;
use crate::flow::token::Token;
use crate::messages::{CompletedBatch, PipelineMsg, SinkMsg, TokenEnd};

pub struct Downstream {
    pub processor: Processor,
    /// The folds that wait for the rows which end here.
    pub folds: Arc<[FoldTarget]>,
    pub sink: ActorRef<SinkMsg>,
    pub pipeline: ActorRef<PipelineMsg>,
}

impl Completion for Downstream {
    fn completed(&self, batch: CompletedBatch) {
        self.processor.process(batch);
    }

    fn failed(&self, token: &Token, failure: Failure) {
        self.folds.iter().for_each(|fold| fold.failed(token));
        let end = End { share: token.share(), records: SmallVec::new(), failure: Some(failure) };
        drop(self.sink.cast(SinkMsg::Ends(vec![TokenEnd { ticket: token.ticket.clone(), end }])));
    }

    fn drained(&self) {
        self.processor.drained();
    }

    fn no_device(&self, why: String) {
        drop(self.pipeline.cast(PipelineMsg::NoDevice(why)));
    }
}
