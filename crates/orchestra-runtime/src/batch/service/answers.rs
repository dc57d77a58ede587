//! The rows of a service that wait for their answers.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use orchestra_core::data::Column;
use orchestra_core::{DType, Dim, Failure, TensorSpec};
use tokio::sync::{oneshot, watch};

use crate::flow::token::Token;

/// The outputs of one row: shape and data of each.
pub type RowOutputs = Vec<(Vec<usize>, Vec<u8>)>;
pub type Answer = Result<RowOutputs, Failure>;

/// The rows without an answer, and the state of the service. Shared by the requests, the batcher and the root.
pub struct Answers {
    pub stage: String,
    pub columns: Vec<Column>,
    /// What they are, as tensors: a text is its bytes in UTF-8.
    pub outputs: Vec<TensorSpec>,
    /// By the number of the row. Bounded by the rows of the slots: an entry is made with a row lease in hand.
    waiting: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    phase: watch::Sender<Phase>,
}

/// ## Starting => Serving => Over, or Starting => Over
enum Phase {
    Starting,
    Serving,
    Over(String),
}

impl Answers {
    pub fn new(stage: String, columns: Vec<Column>) -> Self {
        let text = |name: &String| TensorSpec {
            name: name.clone(),
            dtype: DType::U8,
            row: vec![Dim::Dynamic],
            batch: Dim::Dynamic,
        };
        let of = |column: &Column| column.ty.stored().cloned().unwrap_or_else(|| text(&column.name));
        let outputs = columns.iter().map(of).collect();
        Self {
            stage,
            columns,
            outputs,
            waiting: Mutex::default(),
            phase: watch::Sender::new(Phase::Starting),
        }
    }

    pub fn n_waiting(&self) -> usize {
        self.waiting().len()
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Answer>>> {
        // A map is consistent after each of its operations, so a poisoned lock is as good as any.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers row `number`; `None` if the service is over. Under the lock that `end` takes, so no row is registered after it.
    pub fn expect(&self, number: u64) -> Option<oneshot::Receiver<Answer>> {
        let (sender, answer) = oneshot::channel();
        let mut waiting = self.waiting();
        let is_over = matches!(*self.phase.borrow(), Phase::Over(_));
        (!is_over).then(|| waiting.insert(number, sender))?;
        Some(answer)
    }

    /// Answers the request of a row, if it is still there.
    pub fn answer(&self, token: &Token, answer: impl FnOnce() -> Answer) {
        let sender = self.waiting().remove(&token.ticket.id().index);
        if let Some(sender) = sender.filter(|sender| !sender.is_closed()) {
            drop(sender.send(answer())); // The request was dropped just now.
        }
    }

    pub fn serving(&self) {
        self.phase.send_if_modified(|phase| {
            matches!(phase, Phase::Starting) && {
                *phase = Phase::Serving;
                true
            }
        });
    }

    /// Drops the senders of all rows, which ends their requests. The first reason stays.
    pub fn end(&self, why: &str) {
        let mut waiting = self.waiting();
        self.phase.send_if_modified(|phase| {
            !matches!(phase, Phase::Over(_)) && {
                *phase = Phase::Over(why.to_owned());
                true
            }
        });
        waiting.clear();
    }

    /// Waits until a worker serves, or the service is over.
    pub async fn started(&self) -> Result<(), String> {
        let mut phase = self.phase.subscribe();
        match phase.wait_for(|phase| !matches!(phase, Phase::Starting)).await.as_deref() {
            Ok(Phase::Over(why)) => Err(why.clone()),
            _ => Ok(()), // `self` is the sender, so it cannot be gone.
        }
    }

    pub fn over(&self) -> String {
        match &*self.phase.borrow() {
            Phase::Over(why) => why.clone(),
            Phase::Starting | Phase::Serving => "its actors are gone".to_owned(),
        }
    }
}
