//! A model that is replaced where there is no memory for two sets of workers: one worker after the other, and no request fails.

use std::collections::BTreeSet;
use std::future::IntoFuture as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Workplace, audited, bounded, hurried, until};
use crate::orchestra;
use ::orchestra::{Model, Tensor};
use futures::future::{join, join_all};
use orchestra_testkit::faulty::{FAULT, FAULT_ROOM};
use orchestra_testkit::models;

/// Workers of the model, and how many there is room for.
const WORKERS: usize = 2;

/// Writes the model, of this version.
fn write(place: &Workplace, version: &str) -> PathBuf {
    models::identity_with_metadata(&place.models(), &[3], "version", version).unwrap()
}

async fn start(place: &Workplace) -> Model {
    let folder = place.path("room");
    std::fs::create_dir(&folder).unwrap();
    let room = format!("room:{WORKERS}");
    let workers = place.faulty_workers(&[(FAULT, &room), (FAULT_ROOM, folder.to_str().unwrap())]);
    let file = write(place, "1");
    let model =
        orchestra(hurried(workers)).build().await.unwrap().model(file).devices(["cpu"]).workers(WORKERS);
    let model = bounded("the model starts", model.start()).await.unwrap();
    place.watch_flow(model.tree().observer());
    model
}

#[test]
fn a_model_whose_file_changed_says_so_where_its_last_worker_dies_and_is_reloaded() {
    audited(async {
        let place = Workplace::new();
        let file = write(&place, "1");
        let model =
            orchestra(hurried(place.workers_of_ours())).build().await.unwrap().model(&file).devices(["cpu"]);
        let model = bounded("the model starts", model.workers(1).start()).await.unwrap();
        let ask =
            || bounded("it ends", model.infer(Tensor::new([1, 3], vec![0.0_f32; 3]).unwrap()).into_future());
        ask().await.unwrap();
        write(&place, "2");
        until("a worker is killed", || place.kill_a_worker(true)).await;
        let closed = loop {
            // Until the death is known.
            if let Err(error) = ask().await {
                break error.to_string();
            }
        };
        for words in [file.to_str().unwrap(), "changed", "`reload`"] {
            assert!(closed.contains(words), "{closed}");
        }
        bounded("the model is replaced", model.reload()).await.unwrap();
        ask().await.unwrap();
        bounded("the model ends", model.drain()).await;
        assert_eq!(place.workers(), []);
    });
}

fn pids(place: &Workplace) -> BTreeSet<u32> {
    place.workers().iter().map(|worker| worker.pid).collect()
}

#[test]
fn a_model_without_room_for_two_gets_its_workers_one_by_one_and_answers_meanwhile() {
    audited(async {
        let place = Workplace::new();
        let model = start(&place).await;
        let is_over = AtomicBool::new(false);
        let callers = (0..4_u16).map(|caller| {
            let (model, is_over) = (model.clone(), &is_over);
            async move {
                let mut n_answers = 0_u32;
                while !is_over.load(Ordering::Relaxed) {
                    let row = vec![f32::from(caller), n_answers as f32, 0.0];
                    let answer = model.infer(Tensor::new([1, 3], row.clone()).unwrap()).await.unwrap();
                    assert_eq!(answer["y"].as_slice::<f32>().unwrap(), row);
                    n_answers += 1;
                }
                n_answers
            }
        });
        let reloads = async {
            for version in ["2", "3"] {
                write(&place, version);
                let before = pids(&place);
                bounded("the model is replaced", model.reload()).await.unwrap();
                let after = pids(&place);
                assert!(after.len() == WORKERS && after.is_disjoint(&before), "{before:?} {after:?}");
            }
            is_over.store(true, Ordering::Relaxed);
        };
        let (answers, ()) = join(join_all(callers), reloads).await;
        assert!(answers.iter().all(|n_answers| *n_answers > 0), "{answers:?}");
        // Another graph needs a tree of its own, for which there is no room.
        models::identity_with_metadata(&place.models(), &[4], "version", "4").unwrap();
        let refused = bounded("it is refused", model.reload()).await.unwrap_err().to_string();
        assert!(refused.contains("no memory for both"), "{refused}");
        assert!(model.infer(Tensor::new([1, 3], vec![0.0_f32; 3]).unwrap()).await.is_ok());
        bounded("the model ends", model.drain()).await;
        assert_eq!(place.workers(), []);
    });
}
