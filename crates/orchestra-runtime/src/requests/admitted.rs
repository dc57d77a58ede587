//! A request that has a place: takes its items into slots, or to loaders, and waits for the answer. It decides nothing about batches.

use std::ops::Range;
use std::sync::Arc;

use futures::future::try_join_all;
use orchestra_core::data::{OwnedRow, OwnedValue, Value};
use orchestra_core::shapes::RowScope;
use orchestra_plan::Origin;
use tokio::time::timeout_at;

use super::admission::Place;
use super::flow::{ProcessError, RequestFlow, RequestTerms};
use super::waiting::{PendingRequest, ReplyRecord, RequestEnd, RowOutputs};
use crate::batch::slot_pool::{RowLease, SlotPool};
use crate::flow::chain::{Chain, Outcome};
use crate::flow::ticket::{RequestContent, RequestPayload, Ticket};
use crate::flow::token::Token;

/// Rows of a request, each an item of its own, with the columns that the source gives.
pub trait RequestRows: Sync {
    /// At least 1.
    fn count(&self) -> usize;

    /// Copies some of them to `to`, where rows of a column of tensors lie one behind the other.
    fn write(&self, column: usize, rows: Range<usize>, to: &mut [u8]);

    fn row(&self, row: usize) -> OwnedRow;
}

/// Shows a row that is not copied unless it has to wait for a thread of its own.
pub type ShowRow<'a> = &'a (dyn Fn(&mut dyn FnMut(&[Value<'_>])) + Sync);

/// A request that has a place, and takes its items through the graph.
pub struct Admitted<'a> {
    pub(super) flow: &'a RequestFlow,
    pub(super) place: Arc<Place>,
    pub(super) terms: RequestTerms,
}

impl<'a> Admitted<'a> {
    /// Waits for what is asked, no longer than until the deadline.
    pub async fn in_time<T, E: From<ProcessError>>(
        &self,
        asked: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        match self.terms.deadline {
            Some(deadline) => {
                timeout_at(deadline, asked).await.unwrap_or_else(|_| Err(ProcessError::Deadline.into()))
            }
            None => asked.await,
        }
    }

    /// As [`RequestFlow::process`], of a row that fits.
    pub async fn row(&self, name: &str, row: ShowRow<'_>) -> Result<Vec<ReplyRecord>, ProcessError> {
        loop {
            let chain = self.flow.chain().await?;
            let Some(pool) = chain.only_batch() else {
                let content = || owned(row).map(|content| RequestPayload::Records(Some(content)));
                return self.queued(name, content).await.map(records);
            };
            let from = Origin::Source(self.flow.requests.source);
            let write = |lease, ticket: &Ticket, _| {
                let (token, mut out) = (Token::whole(ticket.clone()), Outcome::default());
                let mut lease = Some(lease);
                row(&mut |row| {
                    if let Some(lease) = lease.take() {
                        let scope = RowScope { from, row, carried: &[], up: None };
                        chain.row_of(lease, &token, &scope, &mut out);
                    }
                });
                chain.send(&mut out);
            };
            let pending = self.write(pool, &chain, (1, name), || RequestPayload::Records(None), write).await;
            let Some(pending) = pending else { continue };
            if let Some(answer) = self.answer(pending).await? {
                return Ok(records(answer));
            }
        }
    }

    /// The outputs of the only stage of the flow, a batch of which the only sink reads all columns, for rows that fit: of rows that shared a batch together, in any order.
    pub async fn rows(&self, name: &str, rows: &dyn RequestRows) -> Result<Vec<RowOutputs>, ProcessError> {
        loop {
            let chain = self.flow.chain().await?;
            let Some((pool, columns)) = chain.batch_of_columns() else {
                let each = (0..rows.count()).map(|row| self.queued_row(name, rows, row));
                return Ok(try_join_all(each).await?.concat());
            };
            let write = |mut lease: RowLease<'_>, first: &Ticket, at: Range<usize>| {
                for (input, column) in columns.clone().enumerate() {
                    rows.write(column, at.clone(), lease.input_mut(input));
                }
                chain.publish(lease, first);
            };
            let content = || RequestPayload::Outputs(None);
            let pending = self.write(pool, &chain, (rows.count(), name), content, write).await;
            let Some(pending) = pending else { continue };
            if let Some(answer) = self.answer(pending).await? {
                return Ok(outputs(answer));
            }
        }
    }

    async fn queued_row(
        &self,
        name: &str,
        rows: &dyn RequestRows,
        row: usize,
    ) -> Result<Vec<RowOutputs>, ProcessError> {
        let end = self.queued(name, || Ok(RequestPayload::Outputs(Some(rows.row(row))))).await;
        let end = end.map_err(|error| match error {
            ProcessError::Failed { failure, .. } => ProcessError::Failed { row, failure },
            other => other,
        })?;
        Ok(outputs(end).into_iter().map(|outputs| RowOutputs { first: row, ..outputs }).collect())
    }

    /// Writes `n` items into slots as rows of these are free: `write` gets each lease, the ticket of its first item, and which items of the request it is for.
    /// `None`: the pipeline is over.
    ///
    /// No row is held while others are waited for, so a request may have more items than there are rows.
    async fn write<'c>(
        &self,
        pool: &'c SlotPool,
        chain: &'c Arc<Chain>,
        (n, name): (usize, &str),
        content: impl FnOnce() -> RequestPayload,
        write: impl Fn(RowLease<'c>, &Ticket, Range<usize>),
    ) -> Option<PendingRequest<'a>> {
        let requests = &self.flow.requests;
        let claim = |most| async move {
            let _turn = self.flow.turn.admit(self.terms.priority).await;
            pool.claim_async(most).await
        };
        let mut lease = claim(n).await?;
        let mut pending = requests.direct(&self.place, chain, (n, name), content())?;
        loop {
            let (first, more) = (n - pending.left, lease.n_rows());
            requests.count_handed(more);
            write(lease, &pending.ticket.behind(first), first..first + more);
            pending.left -= more;
            if pending.left == 0 {
                return Some(pending);
            }
            let next = claim(pending.left);
            lease = tokio::select! {
                biased;
                // One of its items has failed, or the pipeline is over.
                () = pending.ended() => return Some(pending),
                lease = next => match lease {
                    Some(lease) => lease,
                    None => return Some(pending),
                },
            };
        }
    }

    pub(super) async fn queued(
        &self,
        name: &str,
        content: impl Fn() -> Result<RequestPayload, ProcessError>,
    ) -> Result<RequestEnd, ProcessError> {
        loop {
            let chain = self.flow.chain().await?;
            let pending =
                self.flow.requests.queue(&self.place, self.terms.priority, &chain, name, content()?);
            drop(chain);
            let Some(pending) = pending else { continue };
            if let Some(answer) = self.answer(pending).await? {
                return Ok(answer);
            }
        }
    }

    /// `None`: it is to be asked again.
    async fn answer(&self, pending: PendingRequest<'_>) -> Result<Option<RequestEnd>, ProcessError> {
        match pending.answered().await {
            Some(RequestEnd::Failed(row, failure)) => Err(ProcessError::Failed { row, failure }),
            Some(RequestEnd::Again) => Ok(None),
            Some(end) => Ok(Some(end)),
            None => Err(ProcessError::Over(self.flow.requests.why_over())),
        }
    }
}

pub(super) fn records(end: RequestEnd) -> Vec<ReplyRecord> {
    let RequestEnd::Records(mut records) = end else { return Vec::new() };
    records.sort_by_key(|record| record.sink);
    records
}

fn outputs(end: RequestEnd) -> Vec<RowOutputs> {
    if let RequestEnd::Outputs(outputs) = end { outputs } else { Vec::new() }
}

fn owned(row: ShowRow<'_>) -> Result<RequestContent, ProcessError> {
    let mut copy: Result<OwnedRow, _> = Ok(OwnedRow::new());
    row(&mut |row| copy = row.iter().map(OwnedValue::copy_of).collect());
    copy.map(RequestContent::Row).map_err(|item_error| ProcessError::Input(item_error.error))
}
