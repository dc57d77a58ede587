//! Asked for a GPU: it runs there, or it says why not and ends with 69. Never a quiet run on the CPU.

mod common;

use common::{Blocks, Workplace, write_pictures};

fn place() -> Workplace {
    let place = Workplace::with_blocks(&Blocks::default());
    write_pictures(&place.images(), 100);
    place
}

#[test]
fn a_gpu_that_is_asked_for_is_used_or_its_absence_is_an_error() {
    let place = place();
    let ended = place.run(&["--devices", "cuda:0"]);
    match orchestra::machine().gpu_error {
        None => {
            ended.must_exit(0);
            place.holds_exactly(100);
            assert_eq!(place.report()["devices"][0]["device"], "cuda:0");
        }
        Some(why) => {
            ended.must_exit(69).must_say(&["device `cuda:0` is not available", &why]);
            assert!(!place.out().join("results.jsonl").exists(), "something ran");
        }
    }
    place.nothing_is_left();
}

#[test]
fn a_gpu_that_no_machine_has_is_an_error_everywhere() {
    let place = place();
    place.edit("use = [\"cpu\", \"cpu\"]", "use = [\"cuda:99\"]");
    place.run(&[]).must_exit(69).must_say(&["device `cuda:99` is not available"]);
    // What the machine has decides about `run` and `plan`; the file is in order.
    let file = place.workflow();
    let file = file.to_str().unwrap();
    place.start_command(&["plan", file]).wait().must_exit(69);
    place.start_command(&["check", "--offline", file]).wait().must_exit(0);
    assert!(!place.out().join("results.jsonl").exists(), "something ran");
    place.nothing_is_left();
}

#[test]
fn one_gpu_of_several_names_that_is_missing_stops_all_of_them() {
    let place = place();
    place.run(&["--devices", "cpu,cuda:99"]).must_exit(69).must_say(&["device `cuda:99` is not available"]);
    assert!(!place.out().join("results.jsonl").exists(), "something ran");
    place.nothing_is_left();
}
