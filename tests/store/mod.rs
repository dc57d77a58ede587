//! A bucket `bucket` that the test speaks for: it lists and gives the files of a folder as S3 does, in pages, asks for no signature, fails
//! as it is told, and counts what it was asked for. It judges nothing.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// Stands in what is signed and in what the store answers of it.
pub const SECRET: &str = "a-key-to-everything";

/// How an object is answered for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Gone,
    Denied,
    Never,
    /// Always with 500.
    Broken,
    /// So many times with 503, then with the bytes.
    Busy(usize),
}

/// What is asked for as `fail` and `n_asked` call it, where it is a page of the listing: the number of its first object.
pub fn page_at(first: usize) -> String {
    format!("page {first}")
}

struct State {
    folder: PathBuf,
    port: u16,
    /// Objects that are still given.
    left: AtomicUsize,
    refuses: AtomicBool,
    is_over: AtomicBool,
    failing: Mutex<HashMap<String, Answer>>,
    asked: Mutex<HashMap<String, usize>>,
    /// Objects of a page of the listing.
    page: AtomicUsize,
}

pub struct Store {
    state: Arc<State>,
    address: String,
}

impl Store {
    pub fn start(folder: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State {
            folder: folder.to_owned(),
            port,
            left: AtomicUsize::new(usize::MAX),
            refuses: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            failing: Mutex::default(),
            asked: Mutex::default(),
            page: AtomicUsize::new(1000),
        });
        let served = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if served.is_over.load(Ordering::Relaxed) {
                    break;
                }
                let state = Arc::clone(&served);
                // A client that hangs up early is no surprise.
                thread::spawn(move || drop(stream.and_then(|stream| state.serve(stream))));
            }
        });
        Self { state, address: format!("http://127.0.0.1:{port}") }
    }

    pub fn port(&self) -> u16 {
        self.state.port
    }

    pub fn variables(&self) -> Vec<(&str, &str)> {
        vec![
            ("AWS_ENDPOINT_URL", &self.address),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_ACCESS_KEY_ID", "a-test"),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
        ]
    }

    /// Gives `n` more objects; then it hangs up whatever it is asked for.
    pub fn answer_for(&self, n: usize) {
        self.state.left.store(n, Ordering::Relaxed);
    }

    /// Takes no signature any more.
    pub fn refuse_all(&self) {
        self.state.refuses.store(true, Ordering::Relaxed);
    }

    pub fn fail(&self, key: &str, answer: Answer) {
        self.state.failing.lock().unwrap().insert(key.to_owned(), answer);
    }

    /// How often a key or a page was asked for, whatever the answer; a question for its length alone is one, too.
    pub fn n_asked(&self, key: &str) -> usize {
        self.state.asked.lock().unwrap().get(key).copied().unwrap_or(0)
    }

    /// Lists so many objects at once.
    pub fn list_by(&self, n: usize) {
        self.state.page.store(n, Ordering::Relaxed);
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(("127.0.0.1", self.state.port)));
    }
}

impl State {
    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?);
        let mut request = String::new();
        lines.read_line(&mut request)?;
        loop {
            let mut line = String::new();
            if lines.read_line(&mut line)? <= 2 {
                break;
            }
        }
        let target = request.split(' ').nth(1).unwrap_or_default().to_owned();
        let is_head = request.starts_with("HEAD ");
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        // Some clients escape more than they must.
        let path = path.replace("%2E", ".").replace("%2D", "-");
        let key = path.strip_prefix("/bucket").unwrap_or_default().trim_start_matches('/');
        if self.refuses.load(Ordering::Relaxed) {
            let body = format!("<Code>SignatureDoesNotMatch</Code><StringToSign>{SECRET}</StringToSign>");
            return answer(stream, "403 Forbidden", error(&body).as_bytes(), is_head);
        }
        let first = query.contains("list-type=2").then(|| first_of(query));
        let what = match first {
            Some(None) => return answer(stream, "400 Bad Request", error(NO_TOKEN).as_bytes(), is_head),
            Some(Some(first)) => page_at(first),
            None => key.to_owned(),
        };
        *self.asked.lock().unwrap().entry(what.clone()).or_default() += 1;
        match self.answer_to(&what) {
            Some(Answer::Never) => loop {
                thread::park();
            },
            Some(Answer::Denied) => {
                let body = error(&format!("<Code>AccessDenied</Code><Message>{SECRET}</Message>"));
                return answer(stream, "403 Forbidden", body.as_bytes(), is_head);
            }
            Some(Answer::Broken) => {
                let body = error("<Code>InternalError</Code>");
                return answer(stream, "500 Internal Server Error", body.as_bytes(), is_head);
            }
            Some(Answer::Gone) => {
                return answer(stream, "404 Not Found", error("<Code>NoSuchKey</Code>").as_bytes(), is_head);
            }
            Some(Answer::Busy(_)) => {
                let body = error("<Code>SlowDown</Code>");
                return answer(stream, "503 Slow Down", body.as_bytes(), is_head);
            }
            None => {}
        }
        if let Some(first) = first.flatten() {
            return answer(stream, "200 OK", self.listing(first).as_bytes(), is_head);
        }
        let Ok(bytes) = fs::read(self.folder.join(key)) else {
            return answer(stream, "404 Not Found", error("<Code>NoSuchKey</Code>").as_bytes(), is_head);
        };
        let less = |left: usize| left.checked_sub(1);
        match is_head || self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
            true => answer(stream, "200 OK", &bytes, is_head),
            false => Ok(()),
        }
    }

    /// How this one is failed, if it is.
    fn answer_to(&self, what: &str) -> Option<Answer> {
        let mut failing = self.failing.lock().unwrap();
        match failing.get_mut(what) {
            Some(Answer::Busy(0)) => None,
            Some(Answer::Busy(left)) => {
                *left -= 1;
                Some(Answer::Busy(*left))
            }
            other => other.copied(),
        }
    }

    /// The page of the listing that begins with this object.
    fn listing(&self, first: usize) -> String {
        let files =
            fs::read_dir(&self.folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut keys: Vec<String> = files.collect();
        keys.sort();
        let of = |key: &String| {
            format!(
                "<Contents><Key>{key}</Key><Size>1</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
                 <ETag>\"x\"</ETag></Contents>"
            )
        };
        let next = first + self.page.load(Ordering::Relaxed);
        let contents: String = keys.iter().take(next).skip(first).map(of).collect();
        let more = match next < keys.len() {
            true => format!(
                "<IsTruncated>true</IsTruncated><NextContinuationToken>{}</NextContinuationToken>",
                token(next)
            ),
            false => "<IsTruncated>false</IsTruncated>".to_owned(),
        };
        format!("<ListBucketResult><Name>bucket</Name>{more}{contents}</ListBucketResult>")
    }
}

/// What a client has to send back as it is. Tokens of stores have such characters in them.
fn token(first: usize) -> String {
    format!("{first}+/==")
}

const NO_TOKEN: &str =
    "<Code>InvalidArgument</Code><Message>The continuation token provided is incorrect</Message>";

/// The first object of the page that is asked for; `None`: the token is none that was given.
fn first_of(query: &str) -> Option<usize> {
    let Some(sent) = query.split('&').find_map(|part| part.strip_prefix("continuation-token=")) else {
        return Some(0);
    };
    let sent = sent.replace("%2B", "+").replace("%2F", "/").replace("%3D", "=");
    let first = sent.split('+').next()?.parse().ok()?;
    (sent == token(first)).then_some(first)
}

fn error(body: &str) -> String {
    format!("<?xml version=\"1.0\"?><Error>{body}</Error>")
}

fn answer(mut stream: TcpStream, status: &str, body: &[u8], is_head: bool) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nETag: \"x\"\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    if is_head { Ok(()) } else { stream.write_all(body) }
}
