//! The command on a terminal, and where its output is not read. The terminal is a pty and a small model of a screen; how a state
//! looks is tested where it is rendered.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use crate::common::{Ended, ORCHESTRA, Workplace, until};
use orchestra_testkit::GATE;
use orchestra_testkit::images::write_bad_pictures;
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

const ROWS: u16 = 24;

/// What a terminal would show: rows of text, and where the cursor is. Knows what the progress uses, and no more.
#[derive(Debug, Default)]
struct Shown {
    rows: Vec<Vec<char>>,
    row: usize,
    column: usize,
    columns: usize,
    order: Option<String>,
}

impl Shown {
    fn take(&mut self, text: &str) {
        for c in text.chars() {
            match (self.order.take(), c) {
                (Some(order), c) if order.is_empty() && c == '[' => self.order = Some("[".into()),
                (Some(order), c) if c.is_ascii_alphabetic() => self.obey(&order[1..], c),
                (Some(order), c) => self.order = Some(format!("{order}{c}")),
                (None, '\x1b') => self.order = Some(String::new()),
                (None, '\r') => self.column = 0,
                (None, '\n') => self.row += 1,
                (None, c) => self.put(c),
            }
        }
    }

    fn put(&mut self, c: char) {
        // A full row goes on in the next one, but only once there is more to write.
        if self.column == self.columns {
            (self.row, self.column) = (self.row + 1, 0);
        }
        let column = self.column;
        let row = self.line();
        match row.get_mut(column) {
            Some(cell) => *cell = c,
            None => row.push(c),
        }
        self.column += 1;
    }

    /// The cursor's row, filled up to the cursor.
    fn line(&mut self) -> &mut Vec<char> {
        while self.rows.len() <= self.row {
            self.rows.push(Vec::new());
        }
        let row = &mut self.rows[self.row];
        if row.len() < self.column {
            row.resize(self.column, ' ');
        }
        row
    }

    fn obey(&mut self, number: &str, order: char) {
        match order {
            'A' => self.row = self.row.saturating_sub(number.parse().unwrap_or(1)),
            'K' => self.cut(),
            'J' => {
                self.cut();
                self.rows.truncate(self.row + 1);
            }
            'm' => {}
            other => panic!("an order that the model does not know: {number}{other}"),
        }
    }

    fn cut(&mut self) {
        let column = self.column;
        self.line().truncate(column);
    }

    fn text(&self) -> String {
        self.rows.iter().map(|row| row.iter().collect::<String>().trim_end().to_owned() + "\n").collect()
    }
}

/// A command whose standard error is a terminal.
struct OnTerminal {
    child: Child,
    keyboard: File,
    /// All that came, and what is shown of it.
    seen: Arc<Mutex<(String, Shown)>>,
    reader: JoinHandle<()>,
}

fn on_terminal(place: &Workplace, columns: u16, arguments: &[&str]) -> OnTerminal {
    start_on_terminal(place, columns, "run", arguments)
}

/// The same for another command than `run`, whose standard output is the terminal, too.
fn start_on_terminal(place: &Workplace, columns: u16, command: &str, arguments: &[&str]) -> OnTerminal {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let size = Winsize { ws_row: ROWS, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    // Not the terminal of this process, which may be the first of its session.
    let no_tty = i32::try_from(OFlags::NOCTTY.bits()).unwrap();
    let slave =
        File::options().read(true).write(true).custom_flags(no_tty).open(name.to_str().unwrap()).unwrap();
    let child = Command::new(ORCHESTRA)
        .arg(command)
        .arg(place.workflow())
        .args(arguments)
        .env("TERM", "xterm-256color")
        .env(GATE, place.path("gate"))
        .env_remove("NO_COLOR")
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(if command == "run" { Stdio::null() } else { slave.try_clone().unwrap().into() })
        .stderr(slave)
        .spawn()
        .unwrap();
    let keyboard = File::from(OwnedFd::try_clone(&master).unwrap());
    let seen = Arc::new(Mutex::new((String::new(), Shown { columns: columns.into(), ..Shown::default() })));
    let theirs = Arc::clone(&seen);
    let mut screen = File::from(master);
    let reader = thread::spawn(move || {
        let (mut buffer, mut came) = ([0; 4096], Vec::new());
        // Reading fails once the last process has closed its end.
        while let Ok(n @ 1..) = screen.read(&mut buffer) {
            came.extend_from_slice(&buffer[..n]);
            // What comes at once may end in the middle of a character.
            let whole = str::from_utf8(&came).map_or_else(|e| e.valid_up_to(), str::len);
            let text = String::from_utf8(came.drain(..whole).collect()).unwrap();
            let mut seen = theirs.lock().unwrap();
            seen.0.push_str(&text);
            seen.1.take(&text);
        }
    });
    OnTerminal { child, keyboard, seen, reader }
}

impl OnTerminal {
    fn shows(&self, part: &str) -> bool {
        self.seen.lock().unwrap().1.text().contains(part)
    }

    /// Its exit code, all that came, and what stands on the terminal at the end.
    fn end(mut self) -> (Option<i32>, String, String) {
        let code = self.child.wait().unwrap().code();
        drop(self.keyboard);
        self.reader.join().unwrap();
        let seen = self.seen.lock().unwrap();
        (code, seen.0.clone(), seen.1.text())
    }
}

#[test]
fn an_interrupted_run_leaves_its_messages_on_the_terminal_and_nothing_of_the_progress() {
    // More than may be read before the signal is heard.
    let place = Workplace::with_gate(4_000);
    for columns in [40, 80, 200] {
        place.close_gate_after(100);
        let mut run = on_terminal(&place, columns, &["--fresh"]);
        until("there is progress", || run.shows("queued") && run.shows("busy"));
        // What a terminal echoes of Ctrl-C; the signal itself would come from the terminal's own session.
        run.keyboard.write_all(b"^C").unwrap();
        until("the echo is there", || run.seen.lock().unwrap().0.contains("^C"));
        kill_process(Pid::from_child(&run.child), Signal::INT).unwrap();
        until("the signal is noticed", || run.shows("warning: stopping"));
        place.open_gate();
        let (code, all, left) = run.end();
        assert_eq!(code, Some(130), "{left}");
        assert!(left.contains("warning: stopping") && left.contains("blocks interrupted: "), "{left}");
        assert!(left.contains("To go on:"), "{left}");
        for gone in ["queued", "busy", "eta", "[=", "[>", "^C"] {
            assert!(!left.contains(gone), "{columns}: `{gone}` is left:\n{left}");
        }
        assert!(!all.contains("\x1b[?25l"), "the cursor was hidden");
    }
}

/// Also one character that UTF-8 writes in two bytes begins a control sequence.
#[test]
fn a_standard_error_that_nobody_reads_holds_up_no_run() {
    let place = Workplace::of(
        "version = 1\n[sources.s]\nkind = \"jsonl\"\npaths = [\"rows.jsonl\"]\ncolumns = { x = \"f64\" }\n[stages.t]\nkind = \"filter\"\nfrom = \"s\"\n\
         keep = \"true\"\n[sinks.o]\nkind = \"jsonl\"\nfrom = \"t\"\n",
    );
    fs::write(place.path("rows.jsonl"), "{\"x\": 1}\n{\"y\": 1}\n".repeat(3000)).unwrap();
    let (pipe, mode) = (place.path("pipe"), rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    // Both ways, or the opening would wait for a writer.
    let _held = fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    place.run_under(&format!("exec 2> {pipe:?}"), &["-vv"]).must_exit(65);
    assert_eq!(place.lines("o.jsonl").len(), 3000);
}

#[test]
fn what_is_printed_of_names_and_words_of_files_steers_no_terminal() {
    let place = Workplace::with_pictures(3);
    let name = "\u{1b}[2J\u{9b}1A\u{202e}b\u{200b}a\u{2028}d.png";
    fs::write(place.images().join(name), "no picture").unwrap();
    let (out, shown) = (place.out(), r"\u{1b}[2J\u{9b}1A\u{202e}b\u{200b}a\u{2028}d.png");
    let quiet = |ended: &Ended| {
        let steers =
            |c: char| (c.is_control() && c != '\n') || ['\u{200b}', '\u{2028}', '\u{202e}'].contains(&c);
        assert!(!ended.stdout.contains(steers) && !ended.stderr.contains(steers), "{ended:?}");
    };
    let ended = place.run(&[]);
    ended.must_exit(65).must_say(&["for example", shown]);
    quiet(&ended);
    fs::write(out.join("failures.jsonl"), "").unwrap();
    let found = place.command(&["verify", out.to_str().unwrap()]);
    quiet(found.must_exit(70));
    found.must_print(&[shown]);
    fs::remove_file(place.images().join(name)).unwrap();
    let refused = place.run(&[]);
    quiet(refused.must_exit(78).must_say(&[shown]));
    let arguments = ["check", "no\u{1b}[2Jfile.toml"];
    quiet(place.command(&arguments).must_say(&[r"no\u{1b}[2Jfile.toml"]));
}

#[test]
fn output_that_is_not_read_is_no_error() {
    let place = Workplace::with_pictures(20);
    write_bad_pictures(&place.images()).unwrap();
    let text = fs::read_to_string(place.workflow()).unwrap();
    fs::write(place.path("wrong.toml"), text.replace("kind = \"jsonl\"", "kind = \"nothing\"")).unwrap();
    let (fine, wrong) = (place.workflow(), place.path("wrong.toml"));
    let (fine, wrong) = (fine.to_str().unwrap(), wrong.to_str().unwrap());
    for (arguments, code) in [
        (&["run", fine, "--json"][..], 65),
        (&["run", fine, "--json"], 65),
        (&["run", fine, "--fresh", "-v"], 65),
        (&["check", wrong], 78),
        (&["check", "missing.toml"], 78),
        (&["plan", fine], 0),
    ] {
        let closed = || {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            writer
        };
        let ended = Command::new(ORCHESTRA)
            .args(arguments)
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(closed())
            .stderr(closed())
            .status()
            .unwrap();
        assert_eq!(ended.code(), Some(code), "{arguments:?}");
    }
}

#[test]
fn the_tasks_of_a_run_are_drawn_in_one_place_until_it_has_ended_and_their_table_stays() {
    let text = "version = 1\n[devices]\nslots = 4\n[tasks.train]\nmatrix = { n = [1, 2] }\nmetrics = [\"loss\"]\n\
        command = \"echo '{\\\"loss\\\": 0.25}'; while ! test -e go; do sleep 0.05; done; exit $(({n} * 3 - 3))\"\n";
    let place = Workplace::of(text);
    let run = on_terminal(&place, 200, &[]);
    until("the run has shown memory", || run.shows("loss 0.2500") && run.shows("iB"));
    let watched = start_on_terminal(&place, 200, "tasks", &["--watch"]);
    let looks = |n: usize| watched.seen.lock().unwrap().0.matches("2 running").count() >= n;
    // While it is drawn anew, a part of it may be missing.
    until("it was drawn again and again, as a whole", || {
        looks(3) && watched.shows("0 of 2 tasks done, 2 running") && watched.shows("loss 0.2500")
    });
    fs::write(place.path("go"), "").unwrap();
    assert_eq!(run.end().0, Some(65));
    let (code, _, left) = watched.end();
    assert_eq!(code, Some(0), "{left}");
    let states = |line: &str| line.split_whitespace().nth(1).map(str::to_owned);
    assert!(left.starts_with("task "), "{left}");
    assert_eq!(left.lines().skip(1).take(2).filter_map(states).collect::<Vec<_>>(), ["done", "code"]);
    assert!(left.contains("the run has ended: 1 of 2 tasks have ended well"), "{left}");
    assert!(!left.contains("running"), "{left}");
}
