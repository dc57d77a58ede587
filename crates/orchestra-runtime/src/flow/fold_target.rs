//! A fold as chains see it that feed it: where its parts go, and what it is told of them. It brings nothing together.

use std::sync::Arc;

use orchestra_core::StageId;
use orchestra_core::collect::{Arrival, Part};
use orchestra_core::data::OwnedRow;
use orchestra_core::lineage::Share;

use super::token::{PartPath, Token};

/// Takes the parts of a fold. Any thread may call it, and it never waits.
pub trait GatherParts: Send + Sync {
    /// Parts have come to their ends.
    fn parts(&self, parts: Vec<FoldPart>);

    /// No further part will come from one of those that feed it.
    fn drained(&self);
}

/// The slot of a batch, which is free again once this is dropped.
pub type Credit = Arc<dyn Send + Sync>;

/// A part, or the row of one way of a join, and what became of it.
pub struct FoldPart {
    /// Whose it is: the last place of its path is that among the parts, or among the ways.
    pub token: Token,
    pub arrival: Arrival<OwnedRow>,
    /// The batch that it comes from, where [`FoldTarget::may_wait`].
    pub credit: Option<Credit>,
}

/// A fold, for what feeds it or must tell it of a part that ends.
#[derive(Clone)]
pub struct FoldTarget {
    pub stage: StageId,
    pub fold: Arc<dyn GatherParts>,
    /// Which of the ways of a join is meant; `None`: it takes parts.
    pub way: Option<Part>,
    /// The folds behind it, which wait for the row that it makes.
    pub downstream: Arc<[FoldTarget]>,
    /// What follows may have to wait for rows. A batch of untrimmed rows that completes a row here keeps its slot until that row is taken on, so stages in
    /// front run ahead no further than their slots.
    pub may_wait: bool,
}

impl FoldTarget {
    /// What became of a token, as a part of this fold.
    pub fn part(&self, token: &Token, path: &[Part], share: Share, arrival: Arrival<OwnedRow>) -> FoldPart {
        let mut path: PartPath = path.into();
        path.extend(self.way);
        FoldPart { token: Token::new(token.ticket.clone(), share, path), arrival, credit: None }
    }

    /// Whether both are the same input of the same fold, so that one report serves both.
    pub fn same_input(&self, other: &FoldTarget) -> bool {
        self.stage == other.stage && self.way == other.way
    }
}
