//! Keys that change nothing on this plan: each is a warning with its place in the file, of every command that reads the file, and no more than that.

use std::fs;

use crate::common::Workplace;

#[test]
fn keys_without_an_effect_are_named_with_their_place_by_check_plan_and_run() {
    let place = Workplace::with_pictures(4);
    // What lies in a folder is known only when it is listed: such a key gets no warning there.
    place.edit("paths = [\"images\"]", "paths = [\"images/*.png\"]");
    place.edit("threads = 1", "threads = 1\ntf32 = false");
    place.edit("color = \"gray\"", "color = \"gray\"\n fast = true");
    let workflow = place.workflow();
    let text = fs::read_to_string(&workflow).unwrap();
    let line_of = |key: &str| 1 + text.lines().position(|line| line.trim_start().starts_with(key)).unwrap();
    let warnings = [
        ("model `blocks`: `tf32` has no effect: the model runs on no GPU", "tf32", 1),
        ("`fast` of stage `pixels` has no effect: its source names no JPEG", "fast", 2),
    ];
    for command in ["check", "plan", "run"] {
        let ended = place.command(&[command, workflow.to_str().unwrap()]).exited(0);
        let said = format!("{}{}", ended.stdout, ended.stderr);
        for (message, key, column) in warnings {
            let warning = format!("warning: {message}\n");
            assert_eq!(said.matches(&warning).count(), 1, "`{command}` of `{key}`:\n{said}");
            let (_, behind) = said.split_once(&warning).unwrap();
            let place_in_file = behind.lines().next().unwrap().trim_start();
            assert_eq!(
                place_in_file,
                format!("--> {}:{}:{column}", workflow.display(), line_of(key)),
                "`{command}`"
            );
        }
    }
    place.holds_exactly(4);
    // Over JPEGs it does something.
    place.edit("images/*.png", "images/*.jpg");
    fs::rename(place.images().join("00000000.png"), place.images().join("a.jpg")).unwrap();
    let ended = place.on_file("check", &[]);
    assert!(!format!("{}{}", ended.stdout, ended.stderr).contains("`fast`"), "{}", ended.stderr);
}
