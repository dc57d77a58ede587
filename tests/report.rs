//! `orchestra report` writes a real run as a page: its account agrees with `run.json`, and no file but a page is replaced.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use crate::common::{Blocks, Workplace, write_pictures};
use orchestra_testkit::images::write_bad_pictures;

#[test]
fn a_run_with_failures_is_one_page_that_says_what_failed_and_why() {
    let place = Workplace::with_blocks(&Blocks::default());
    write_pictures(&place.images(), 100);
    write_bad_pictures(&place.images()).unwrap();
    let out = place.out();
    let report = |more: &[&str]| place.command(&[&["report", out.to_str().unwrap()], more].concat());
    report(&[]).must_exit(2).must_say(&["holds no run"]);
    place.run(&["--report"]).must_exit(65).must_say(&["report.html"]);
    report(&[]).must_exit(0).must_say(&["wrote"]);
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    for said in [
        "Of 105 items, 100 are done, 5 failed.",
        "none is lost, doubled or stray",
        "id=\"graph\"",
        "data:image/png;base64,",
    ] {
        assert!(page.contains(said), "{said}");
    }
    for cause in place.report()["failures"].as_array().unwrap() {
        let text =
            cause["error"].as_str().unwrap().replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        assert!(page.contains(&text.replace('"', "&quot;")), "{text}");
    }
    let compared =
        place.command(&["report", out.to_str().unwrap(), out.to_str().unwrap(), "--json"]).exited(0);
    let compared: serde_json::Value = serde_json::from_str(&compared.stdout).unwrap();
    let facts = compared["facts"].as_array().unwrap();
    assert!(
        facts.len() > 20 && facts.iter().all(|fact| fact["changed"] == false),
        "a run is as itself: {facts:?}"
    );
    report(&["--json"]).must_exit(2).must_say(&["second output folder"]);
    place.command(&["verify", out.to_str().unwrap()]).must_exit(0);
    // A page is written anew, and nothing else is replaced.
    report(&[]).must_exit(0);
    let results = out.join("results.jsonl");
    report(&["-o", results.to_str().unwrap()]).must_exit(2).must_say(&["is no page"]);
    assert!(fs::read_to_string(&results).unwrap().starts_with('{'));
}

/// An answer of the page of a run, up to its end or to the line that `is_last` names.
fn asked(address: &str, host: &str, path: &str, is_last: impl Fn(&str) -> bool) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    for line in BufReader::new(stream.take(1 << 24)).lines() {
        let line = line.unwrap_or_default();
        let is_last = is_last(&line);
        answer += &(line + "\n");
        if is_last {
            break;
        }
    }
    answer
}

#[test]
fn a_page_of_a_run_is_served_and_no_other_host_can_read_it() {
    let place = Workplace::with_blocks(&Blocks::default());
    write_pictures(&place.images(), 20);
    place.run(&[]).must_exit(0);
    let mut server = std::process::Command::new(crate::common::ORCHESTRA)
        .args(["page", place.out().to_str().unwrap()])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(server.stderr.take().unwrap()).read_line(&mut said).unwrap();
    let address = said.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
    let page = asked(&address, &address, "/", |_| false);
    assert!(
        page.contains("All 20 items are done.")
            && page.contains("connect-src &#39;self&#39;") | page.contains("connect-src 'self'"),
        "{page:.300}"
    );
    let events = asked(&address, &address, "/events", |line| line.starts_with("data:"));
    assert!(
        events.contains("text/event-stream") && events.contains("All 20 items are done."),
        "{events:.300}"
    );
    assert!(
        asked(&address, "evil.example", "/", |_| false).starts_with("HTTP/1.1 403"),
        "its name leads here"
    );
    rustix::process::kill_process(rustix::process::Pid::from_child(&server), rustix::process::Signal::TERM)
        .unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(0));
}
