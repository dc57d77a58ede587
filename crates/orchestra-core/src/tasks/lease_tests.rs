//! Memory of GPUs that commands, models and others share.

use proptest::prelude::*;

use super::*;

fn ask(gpus: Gpus, gpu_memory: u64) -> Demand {
    Demand { gpus, gpu_memory, cpu: 0, cores: 0, priority: 10, after_loss: false }
}

fn half(gpu_memory: u64) -> Demand {
    ask(Gpus::Share(500), gpu_memory)
}

fn gpus_of(lease: Option<Lease>) -> Option<Vec<usize>> {
    lease.map(|lease| lease.gpus)
}

#[test]
fn a_share_has_what_models_leave_of_a_gpu_until_they_have_ended() {
    let mut leases = Leases::new(&[10], 1, 1);
    leases.await_models(10, [0]);
    leases.models_take(0, 6);
    assert!(leases.could_take(&half(10)), "once they have ended");
    assert_eq!(leases.take(&half(5)), None);
    leases.hand_over(0);
    assert_eq!(leases.take(&half(5)), None);
    let beside = leases.take(&half(4)).unwrap();
    leases.models_ended(0);
    assert_eq!(gpus_of(leases.take(&half(6))), Some(vec![0]));
    leases.give_back(beside);
}

#[test]
fn a_gpu_that_others_have_filled_is_taken_last_and_waited_for_where_memory_is_asked_for() {
    let mut leases = Leases::new(&[10, 10], 1, 1);
    let alone = ask(Gpus::Count(1), 0);
    leases.saw_free(0, Some(0));
    let first = leases.take(&alone).unwrap();
    assert_eq!(first.gpus, [1], "the one with free memory");
    assert_eq!(leases.take(&alone), None, "the other one may become free");
    assert!(leases.waits_for_others(&alone) && !leases.waits_for_others(&ask(Gpus::This(1), 0)));
    leases.give_back(first);
    leases.saw_free(1, Some(0));
    assert_eq!(gpus_of(leases.clone().take(&alone)), Some(vec![0]), "all are full: it may need little");
    assert_eq!(gpus_of(leases.clone().take(&ask(Gpus::This(1), 0))), Some(vec![1]), "as named");
    let asks = ask(Gpus::Count(1), 3);
    assert_eq!(leases.take(&asks), None);
    assert!(leases.waits_for_others(&asks) && leases.could_take(&asks));
    leases.saw_free(0, Some(3));
    assert_eq!(gpus_of(leases.take(&asks)), Some(vec![0]));
}

#[test]
fn what_was_seen_counts_without_later_leases_and_until_one_is_given_back() {
    let mut leases = Leases::new(&[10], 1, 1);
    leases.saw_free(0, Some(6));
    let first = leases.take(&half(4)).unwrap();
    assert_eq!(leases.take(&half(4)), None, "2 of the 6 are left");
    assert!(leases.waits_for_others(&half(4)));
    leases.give_back(first);
    assert!(leases.take(&half(10)).is_some(), "what it held was taken at the look, perhaps");
}

#[test]
fn of_gpus_with_the_same_share_the_one_with_the_most_memory_comes_first() {
    let mut leases = Leases::new(&[10, 30, 20], 1, 1);
    assert_eq!(gpus_of(leases.take(&ask(Gpus::Count(2), 0))), Some(vec![1, 2]));
    assert_eq!(gpus_of(leases.take(&ask(Gpus::Count(1), 0))), Some(vec![0]));
}

#[test]
fn a_gpu_that_was_lost_is_taken_last_and_after_two_losses_only_where_others_are_too_few() {
    let mut leases = Leases::new(&[10, 10, 30], 1, 1);
    let alone = ask(Gpus::Count(1), 0);
    let wary = Demand { after_loss: true, ..alone };
    let all = |mut leases: Leases, demand: &Demand| -> Vec<usize> {
        std::iter::from_fn(|| leases.take(demand)).flat_map(|lease| lease.gpus).collect()
    };
    leases.lost(&[2]);
    assert_eq!(all(leases.clone(), &alone), [0, 1, 2], "lost once: the last");
    assert_eq!(all(leases.clone(), &wary), [0, 1], "what has lost one waits for others");
    leases.works(&[2]);
    assert_eq!(all(leases.clone(), &wary), [2, 0, 1], "it works again");
    leases.lost(&[2]);
    leases.lost(&[2]);
    assert!(leases.is_left_out(2) && !leases.is_left_out(0));
    assert_eq!(all(leases.clone(), &alone), [0, 1]);
    assert_eq!(all(leases.clone(), &ask(Gpus::This(2), 0)), [2], "as named");
    assert_eq!(all(leases.clone(), &ask(Gpus::Count(3), 0)), [0, 1, 2], "all are asked for");
    assert_eq!(all(leases.clone(), &ask(Gpus::Count(1), 20)), [2], "no other one is large enough");
    leases.await_models(10, [0, 1]);
    assert_eq!(all(leases.clone(), &alone), [2], "the others are not to be had");
    leases.models_ended(0);
    assert_eq!(all(leases.clone(), &alone), [0]);
    leases.models_ended(1);
    for gpu in [0, 0, 1, 1, 1] {
        leases.lost(&[gpu]);
    }
    assert_eq!(all(leases, &wary), [2, 0, 1], "all are left out: the least bad first");
}

#[derive(Debug, Clone)]
enum Event {
    Take(Demand),
    GiveBack(usize),
    /// Others than the run have so many bytes from now on, and the GPUs are looked at.
    Others(usize, u64),
    HandOver,
    ModelsEnd,
}

fn event() -> impl Strategy<Value = Event> {
    let gpus = prop_oneof![
        3 => (1..=WHOLE).prop_map(Gpus::Share),
        1 => (1usize..3).prop_map(Gpus::Count),
        1 => (0usize..2).prop_map(Gpus::This),
    ];
    prop_oneof![
        4 => (gpus, 1u64..12).prop_map(|(gpus, memory)| Event::Take(ask(gpus, memory))),
        3 => any::<usize>().prop_map(Event::GiveBack),
        2 => (0usize..2, 0u64..12).prop_map(|(gpu, bytes)| Event::Others(gpu, bytes)),
        1 => Just(Event::HandOver),
        1 => Just(Event::ModelsEnd),
    ]
}

proptest! {
    /// One ledger: leases and models together never have more of a GPU than there is for them; and a lease that is given has found as much as it asks
    /// for at the last look, or there was none since one was given back.
    #[test]
    fn what_leases_and_models_have_of_a_gpu_is_never_more_than_is_there(
        of_models in prop::collection::vec(0u64..11, 2),
        events in prop::collection::vec(event(), 1..80),
    ) {
        const MOST: u64 = 10;
        let mut leases = Leases::new(&[MOST; 2], 1, 1);
        leases.await_models(10, [0, 1]);
        of_models.iter().enumerate().for_each(|(gpu, bytes)| leases.models_take(gpu, *bytes));
        let mut are_models_there = true;
        let mut given: Vec<Lease> = Vec::new();
        let mut seen: [Option<u64>; 2] = [None; 2];
        for event in events {
            match event {
                Event::Take(demand) => {
                    if let Some(lease) = leases.take(&demand) {
                        for gpu in &lease.gpus {
                            let seen = &mut seen[*gpu];
                            prop_assert!(seen.is_none_or(|free| free >= demand.gpu_memory));
                            *seen = seen.map(|free| free - demand.gpu_memory);
                        }
                        given.push(lease);
                    }
                }
                Event::GiveBack(_) if given.is_empty() => {}
                Event::GiveBack(which) => {
                    let lease = given.swap_remove(which % given.len());
                    lease.gpus.iter().for_each(|gpu| seen[*gpu] = None);
                    leases.give_back(lease);
                }
                Event::Others(gpu, bytes) => {
                    seen[gpu] = Some(MOST.saturating_sub(bytes));
                    leases.saw_free(gpu, seen[gpu]);
                }
                Event::HandOver => (0..2).for_each(|gpu| leases.hand_over(gpu)),
                Event::ModelsEnd => {
                    are_models_there = false;
                    (0..2).for_each(|gpu| leases.models_ended(gpu));
                }
            }
            for (gpu, of_models) in of_models.iter().enumerate() {
                let on = given.iter().filter(|lease| lease.gpus.contains(&gpu));
                let of_leases: u64 = on.map(|lease| lease.demand.gpu_memory).sum();
                let models = if are_models_there { *of_models } else { 0 };
                // Models alone may have been given too much; then no lease is.
                prop_assert!(of_leases == 0 || of_leases + models <= MOST);
            }
        }
    }
}
