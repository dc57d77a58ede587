//! The thread that takes records down: nothing told before the end is missing, and what finds no room is counted.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use opentelemetry::trace::Status;
use opentelemetry_sdk::trace::SpanData;
use orchestra_runtime::trace::{
    BatchEnd, BatchTrace, DoneRows, EndedItems, ItemEnd, RunTracer, Token, TraceContext, Tracer as _,
};

use super::fixture::{ALL, KeptSpans, Made, began, began_at, each_of, groups, item, ms, over, rows_of};
use crate::names::{attribute, span};
use crate::traces::Recorder;
use crate::traces::span::Sink;

/// The thread gives way to everything else on this machine.
const PATIENCE: Duration = Duration::MAX;

fn recorder() -> (Recorder, KeptSpans) {
    recorder_of(ALL)
}

fn recorder_of(slow: Option<Duration>) -> (Recorder, KeptSpans) {
    let kept = KeptSpans::default();
    (Recorder::over(kept.sink(1_000_000), slow).expect("a thread can be started"), kept)
}

fn names(kept: &KeptSpans) -> Vec<String> {
    kept.take().into_iter().map(|span| span.name.into_owned()).collect()
}

#[test]
fn what_many_threads_tell_of_many_runs_is_all_there_at_the_end() {
    let (recorder, spans_kept) = recorder();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let run = recorder.begin(began());
                for n in 0..100 {
                    let number = run.number_batch();
                    let batch = Arc::into_inner(Made::with(None).batch(n, 2, BatchEnd::Done)).unwrap();
                    let batch = Arc::new(BatchTrace { number, ..batch });
                    run.batch_ended(Arc::clone(&batch));
                    let of_it = |index| item(index, std::slice::from_ref(&batch), ItemEnd::Done);
                    run.items_ended(&groups(vec![of_it(2 * n), of_it(2 * n + 1)]));
                }
                run.ended(over());
            });
        }
    });
    assert_eq!(recorder.finish(PATIENCE), 0);
    let names = names(&spans_kept);
    let count = |name| names.iter().filter(|n| *n == name).count();
    assert_eq!((count(span::RUN), count(span::BATCH), count(span::ITEM)), (4, 400, 800));
}

#[test]
fn items_that_find_no_room_are_left_out_and_counted_but_for_those_that_are_always_traced() {
    let (recorder, spans_kept) = recorder();
    let run = recorder.begin(began());
    let last = 69_999;
    let end = |n| if n == last { super::failure() } else { ItemEnd::Done };
    // More at once than there is room for, so that the exporter makes no room meanwhile.
    run.items_ended(&groups((0..=last).map(|n| item(n, &[], end(n))).collect()));
    run.ended(over());
    assert_eq!(recorder.finish(PATIENCE), last - 49_152, "three quarters of the room");
    let spans = spans_kept.take();
    assert_eq!(spans.len(), 1 + 49_153 * 4, "the run, and items that were read, decoded and written");
    assert!(spans.iter().any(|s| s.name == span::ITEM && s.status != Status::Unset));
    assert!(spans.iter().any(|s| s.name == span::RUN));
}

/// A recorder whose exporter is full, and the run and the number of its items that filled it: nothing takes anything out of the spans_kept.
fn full() -> (Recorder, KeptSpans, Arc<dyn RunTracer>, u64) {
    let kept = KeptSpans::default();
    let sink: Sink = kept.sink(1_000);
    let recorder = Recorder::over(sink.clone(), ALL).expect("a thread can be started");
    let run = recorder.begin(began());
    let mut told = 0;
    while sink.has_room(8) {
        run.items_ended(&groups((told..told + 64).map(|n| item(n, &[], ItemEnd::Done)).collect()));
        told += 64;
    }
    (recorder, kept, run, told)
}

#[test]
fn while_the_exporter_is_full_plain_items_are_left_out_and_counted_and_others_are_not() {
    let (recorder, spans_kept, run, told) = full();
    run.items_ended(&groups(vec![item(told, &[], ItemEnd::Done), item(told + 1, &[], super::failure())]));
    run.ended(over());
    let left_out = recorder.finish(PATIENCE);
    let items: Vec<SpanData> = spans_kept.take().into_iter().filter(|s| s.name == span::ITEM).collect();
    assert!(items.iter().any(|s| s.status != Status::Unset), "the one that failed");
    assert!(left_out >= 1, "the plain one after it was full");
    assert_eq!(items.len() as u64 + left_out, told + 2, "each is there, or counted");
}

#[test]
fn what_a_host_wants_is_traced_also_while_the_exporter_is_full() {
    let (recorder, spans_kept, _filling, _) = full();
    let request = TraceContext { trace_id: [7; 16], span_id: [8; 8], flags: 1 };
    let run = recorder.clone().with_item_parents(Arc::new(move |_, _| Some(request))).begin(began());
    run.items_ended(&groups(vec![item(0, &[], ItemEnd::Done)]));
    recorder.finish(PATIENCE);
    let spans = spans_kept.take();
    let is_wanted = |s: &&SpanData| s.name == span::ITEM && s.span_context.trace_id().to_bytes() == [7; 16];
    assert_eq!(spans.iter().filter(is_wanted).count(), 1);
}

#[test]
fn a_run_below_a_request_that_is_not_sampled_has_no_spans_and_items_follow_their_own_parents() {
    let (recorder, spans_kept) = recorder_of(None);
    let request = TraceContext { trace_id: [7; 16], span_id: [8; 8], flags: 1 };
    let parents = move |_: &str, name: &str| (name == "1.png").then_some(request);
    let recorder =
        recorder.with_run_parent(TraceContext { flags: 0, ..request }).with_item_parents(Arc::new(parents));
    let run = recorder.begin(began());
    let number = run.number_batch();
    assert_eq!(number.context.unwrap().flags, 0, "as its parent");
    let batch = Arc::into_inner(Made::with(None).batch(0, 2, BatchEnd::Done)).unwrap();
    let batch = Arc::new(BatchTrace { number, ..batch });
    run.batch_ended(Arc::clone(&batch));
    let items: Vec<_> = (0..2).map(|n| began_at(n, 5_000)).collect();
    let mut group = rows_of(items, &batch);
    group.written(ms(5_010), &Ok(()));
    run.items_ended(&[group]);
    run.ended(over());
    assert_eq!(recorder.finish(PATIENCE), 0);
    let names = names(&spans_kept);
    assert_eq!(names.iter().filter(|n| *n == span::ITEM).count(), 1, "{names:?}");
    assert!(!names.iter().any(|n| n == span::RUN || n == span::BATCH), "{names:?}");
    assert_eq!(names.iter().filter(|n| *n == span::WORKER_RUN).count(), 1, "below the item: {names:?}");
}

#[test]
fn what_is_told_after_the_end_is_counted_and_changes_nothing() {
    let (recorder, spans_kept) = recorder();
    let run = recorder.begin(began());
    assert_eq!(recorder.finish(PATIENCE), 0);
    run.items_ended(&groups(vec![item(0, &[], ItemEnd::Done)]));
    drop(run);
    assert_eq!(recorder.finish(PATIENCE), 1);
    assert_eq!(names(&spans_kept), [span::RUN], "closed, because nothing was told of its end");
}

#[test]
fn the_log_names_the_trace_that_a_failed_item_is_found_in() {
    let (recorder, spans_kept) = recorder();
    let run = recorder.begin(began());
    let failed = item(3, &[], super::failure());
    let named = run.trace_of_failed(failed.id).unwrap();
    run.items_ended(&groups(vec![failed]));
    recorder.finish(PATIENCE);
    let spans = spans_kept.take();
    let item = spans.iter().find(|s| s.name == span::ITEM).unwrap();
    assert_eq!(item.span_context.trace_id().to_bytes(), named.trace_id);
}

/// What is said of 40 batches of 64 items, told as groups or each item for itself: the items that are traced and why, and the batches. Of
/// them, `slow` takes longer than the bound.
fn said_of_batches(bound: Option<Duration>, together: bool, slow: Option<u64>) -> BTreeSet<String> {
    let (recorder, spans_kept) = recorder_of(bound);
    let run = recorder.begin(began());
    let made = Made::with(None);
    for n in 0..40 {
        let number = run.number_batch();
        let batch = Arc::into_inner(made.batch(n, 64, BatchEnd::Done)).expect("it is the only one");
        let batch = Arc::new(BatchTrace { number, ..batch });
        run.batch_ended(Arc::clone(&batch));
        let items =
            (n * 64..(n + 1) * 64).map(|index| began_at(index, if slow == Some(index) { 0 } else { 5_000 }));
        let mut group =
            if together { rows_of(items.collect(), &batch) } else { each_of(items.collect(), &batch) };
        group.written(ms(5_010 + n), &Ok(()));
        run.items_ended(&[group]);
    }
    run.ended(over());
    assert_eq!(recorder.finish(PATIENCE), 0);
    let mut said = BTreeSet::new();
    for span in spans_kept.take() {
        let of = |name| span.attributes.iter().find(|a| a.key.as_str() == name).map(|a| a.value.to_string());
        said.extend(match &*span.name {
            span::ITEM => Some(format!("{:?} {:?}", of(attribute::ITEM), of(attribute::ITEM_KEPT))),
            span::BATCH => Some(format!("batch {:?}", of(attribute::BATCH_ID))),
            _ => None,
        });
    }
    said
}

#[test]
fn items_told_as_a_group_are_traced_as_each_alone_would_be() {
    for (bound, slow, n) in [
        (None, Some(71), 0),
        (Some(ms(1_000)), None, 0),
        (Some(ms(1_000)), Some(71), 1),
        (ALL, None, 40 * 64),
    ] {
        let said = said_of_batches(bound, true, slow);
        assert_eq!(said, said_of_batches(bound, false, slow), "{bound:?}, {slow:?}");
        let kept_as_slow = said.iter().filter(|s| s.contains("slow")).count();
        assert_eq!(kept_as_slow, n, "{said:?}");
    }
}

/// The items that are traced, and why, of a group that is told to a recorder.
fn kept_of(slow: Option<Duration>, mut group: EndedItems) -> BTreeSet<(String, String)> {
    let (recorder, spans_kept) = recorder_of(slow);
    let run = recorder.begin(began());
    group.written(ms(5_010), &Ok(()));
    run.items_ended(&[group]);
    run.ended(over());
    assert_eq!(recorder.finish(PATIENCE), 0);
    let mut kept = BTreeSet::new();
    for span in spans_kept.take().iter().filter(|s| s.name == span::ITEM) {
        let of = |name| span.attributes.iter().find(|a| a.key.as_str() == name).map(|a| a.value.to_string());
        kept.extend(of(attribute::ITEM).zip(of(attribute::ITEM_KEPT)));
    }
    kept
}

#[test]
fn holes_and_rows_that_failed_are_not_of_the_group_and_a_bound_for_slow_items_holds_in_it() {
    let batch = Made::with(None).batch(0, 40, BatchEnd::Done);
    // Every third row is a hole, every fourth item failed after all, and number 25 was 30 ms on its way where the others were 10.
    let tickets = || (0..40).map(|n| began_at(n, if n == 25 { 4_980 } else { 5_000 }));
    let is_hole = |n: u64| n.is_multiple_of(3);
    let is_left = |n: u64| !is_hole(n) && !n.is_multiple_of(4);
    let slot = || tickets().map(|t| (!is_hole(t.id().index)).then(|| Token::whole(t))).collect();
    let failed = || (0..40).filter(|n| !is_hole(*n) && !is_left(*n)).map(|n| n as usize).collect();
    let left = || tickets().filter(|t| is_left(t.id().index)).collect::<Vec<_>>();
    for (slow, n) in [(None, 0), (Some(ms(20)), 1), (ALL, left().len())] {
        let rows = DoneRows::new(slot(), 0..40, failed(), Arc::clone(&batch));
        let kept = kept_of(slow, EndedItems::rows(rows, ms(0)));
        assert_eq!(kept, kept_of(slow, each_of(left(), &batch)));
        assert_eq!(kept.contains(&("25.png".to_owned(), "slow".to_owned())), n > 0, "{kept:?}");
        assert_eq!(kept.len(), n, "{kept:?}");
    }
}
