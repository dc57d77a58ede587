//! `orchestra report` writes a real run as a page: its account agrees with `run.json`, and no file but a page is replaced.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use crate::common::random::{let_pass, random};
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
        "each once, and no file is damaged",
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
    // Each has a cause of its own here: a picture stands under that of its item.
    for article in page.split("<article class=\"cause\">").skip(1) {
        let article = article.split("</article>").next().unwrap();
        let item = article.split("The first of them: <code>").nth(1).unwrap().split('<').next().unwrap();
        let pictures: Vec<&str> = article.split("alt=\"item ").skip(1).collect();
        assert!(pictures.iter().all(|of| of.starts_with(&format!("{item}\""))), "{item}: {article:.300}");
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
    let trace = place.out().with_extension("json.gz");
    let trace = trace.to_str().unwrap();
    report(&["--perfetto", results.to_str().unwrap()]).must_exit(2).must_say(&["is no trace"]);
    report(&[out.to_str().unwrap(), "--perfetto", trace]).must_exit(2).must_say(&["one output folder"]);
    report(&["--perfetto", trace]).must_exit(0);
    assert!(fs::read_to_string(&results).unwrap().starts_with('{'));
    let mut read = String::new();
    flate2::read::GzDecoder::new(fs::File::open(trace).unwrap()).read_to_string(&mut read).unwrap();
    let read: serde_json::Value = serde_json::from_str(&read).unwrap();
    let events = read["traceEvents"].as_array().unwrap();
    let failed: u64 = events.iter().filter_map(|event| event["args"]["failed"].as_u64()).sum();
    assert!(events.iter().any(|event| event["name"] == "start 1") && failed > 0, "{failed}");
}

#[test]
fn a_run_that_was_killed_five_times_shows_six_starts_and_an_exact_account() {
    const ITEMS: u64 = 300;
    let place = Workplace::with_gate(ITEMS);
    let history = place.out().join(".orchestra/history.jsonl");
    let n_starts = || {
        let text = fs::read_to_string(&history).unwrap_or_default();
        text.lines().filter(|line| line.contains("\"what\":\"start\"")).count()
    };
    let mut random = random();
    for killed in 0..5 {
        // It cannot end, and does something before it is killed.
        place.close_gate_after(20);
        let mut run = place.start(&[]);
        run.must_reach("its start is noted", || n_starts() > killed);
        let_pass(random.u64(0..900));
        run.kill_in(&place);
    }
    place.open_gate();
    place.run(&["--report"]).must_exit(0);
    let page = fs::read_to_string(place.out().join("report.html")).unwrap();
    for said in
        ["in 6 starts", "All 300 items are done.", "each once, and no file is damaged", "start 6 of 6"]
    {
        assert!(page.contains(said), "{said}");
    }
    assert_eq!(page.matches("the one before was killed").count(), 2 * 5, "a mark and a line for each");
    place.holds_exactly(ITEMS);
}

/// An answer of a live page, up to its end or to the line that `is_last` names.
pub fn asked(address: &str, host: &str, path: &str, is_last: impl Fn(&str) -> bool) -> String {
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
