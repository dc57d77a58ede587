//! `orchestra serve`: requests over HTTP and gRPC. A client of another make judges the protocol (`oip/suite.py`); here requests are rubbish, workers are
//! killed under load, and signals come.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::collectors::Collector;
use crate::common::{Run, Workplace, python_env, repository, until, write_pictures};
use crate::metrics::promtool_has_nothing_against;
use crate::report::asked;
use crate::spans::Span;
use crate::tracing_otlp::span as span_of;
use orchestra_core::{DType, Dim, TensorSpec, TextInput};
use orchestra_testkit::images::{index_of_blocks, picture};
use orchestra_testkit::models;
use orchestra_testkit::onnx::{Attribute, ModelBuilder};
use orchestra_testkit::size::{scaled, storm};
use orchestra_testkit::striker::{Fault, strike_workers};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Far longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(120);

struct Server {
    run: Run,
    http: String,
    grpc: String,
}

impl Server {
    fn start(place: &Workplace, arguments: &[&str]) -> Self {
        Self::of(place, &place.workflow(), arguments)
    }

    fn of(place: &Workplace, file: &Path, arguments: &[&str]) -> Self {
        let mut all = vec!["serve", file.to_str().unwrap(), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];
        all.extend(arguments);
        let mut run = place.start_command_with(&all, &[]);
        run.must_say("gRPC at ");
        let said = run.said();
        let line = said.lines().find(|line| line.starts_with("serving ")).unwrap();
        let (rest, grpc) = line.split_once(", gRPC at ").unwrap();
        let (_, http) = rest.split_once("http://").unwrap();
        Self { http: http.to_owned(), grpc: grpc.to_owned(), run }
    }

    /// Sends bytes, and gives the status and the body of the answer; 0 where the connection is closed without one.
    fn raw(&self, bytes: &[u8]) -> (u16, Vec<u8>) {
        let mut stream = TcpStream::connect(&self.http).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // A server that has refused what comes need not read it.
        drop(stream.write_all(bytes));
        let mut answer = Vec::new();
        drop(stream.read_to_end(&mut answer));
        let text = String::from_utf8_lossy(&answer);
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let body = answer.windows(4).position(|end| end == b"\r\n\r\n").map_or(answer.len(), |at| at + 4);
        (status, answer[body..].to_vec())
    }

    fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n",
            body.len()
        );
        self.raw(&[head.as_bytes(), body].concat())
    }

    fn get(&self, path: &str) -> (u16, Value) {
        let (status, body) = self.send("GET", path, "", b"");
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, answer) = self.send("POST", path, "", body.to_string().as_bytes());
        (status, serde_json::from_slice(&answer).unwrap_or(Value::Null))
    }

    fn end(self) {
        self.run.signal(Signal::TERM);
        self.run.wait().must_exit(0);
    }
}

/// A model that gives back the index that is drawn in a picture, alone.
fn blocks(place: &Workplace, keys: &str) -> PathBuf {
    let model = models::blocks(&place.path("models"), [1, 32, 32]).unwrap();
    place.write(format!(
        "version = 1\n[models.blocks]\npath = {model:?}\nthreads = 1\n{keys}\n[devices]\nuse = [\"cpu\"]\n"
    ));
    model
}

/// A request for the picture that shows this index.
fn request(index: u64) -> Value {
    let pixels = picture(index, 32, 32).into_raw();
    json!({ "inputs": [{ "name": "pixels", "shape": [1, 1, 32, 32], "datatype": "FP32", "data": pixels }] })
}

/// The index that an answer shows.
fn shown(answer: &Value) -> Option<u64> {
    let data = answer["outputs"][0]["data"].as_array()?;
    index_of_blocks(&data.iter().map(|x| x.as_f64().unwrap() as f32).collect::<Vec<_>>())
}

#[test]
fn the_page_of_a_server_shows_what_it_answers() {
    let place = Workplace::new();
    blocks(&place, "");
    let server = Server::start(&place, &["--page"]);
    let said = server.run.said();
    let page = said.split("page at http://").nth(1).unwrap().split('/').next().unwrap();
    for index in 0..3 {
        let (status, answer) = server.post("/v2/models/blocks/infer", &request(index));
        assert_eq!((status, shown(&answer)), (200, Some(index)));
    }
    // What it says itself comes a few times a second.
    let events = asked(page, page, "/events", |line| line.contains("Of its items, 3 are done, 0 failed."));
    assert!(events.contains("The service goes on") && events.contains("\"latency\""), "{events:.400}");
    let whole = asked(page, page, "/", |_| false);
    assert!(
        whole.contains("Of its items, 3 are done, 0 failed.") && !whole.contains("output folder"),
        "{whole:.400}"
    );
    server.end();
}

#[test]
fn a_client_of_another_make_finds_the_protocol_over_http_and_grpc() {
    let Some(python) = python_env("oip") else { return };
    let place = Workplace::new();
    blocks(&place, "");
    let server = Server::start(&place, &[]);
    let suite = Command::new(python)
        .arg(repository().join("tests/oip/suite.py"))
        .args([&server.http, &server.grpc, "blocks", "pixels", "1,32,32", "blocks"])
        .output()
        .unwrap();
    let table = String::from_utf8_lossy(&suite.stdout);
    println!("{table}");
    assert!(suite.status.success(), "{table}{}", String::from_utf8_lossy(&suite.stderr));
    let guide = fs::read_to_string(repository().join("docs/guide/serving.md")).unwrap();
    assert!(guide.contains(&*table), "the guide shows another table");
    server.end();
}

#[test]
fn a_graph_answers_for_the_bytes_of_a_picture_and_for_columns() {
    let place = Workplace::new();
    let model = models::blocks(&place.path("models"), [1, 32, 32]).unwrap();
    place.write(format!(
        "version = 1\n[sources.scans]\nkind = \"request\"\n[models.blocks]\npath = {model:?}\n\
         [stages.pixels]\nkind = \"image\"\nfrom = \"scans\"\nsize = [32, 32]\ncolor = \"gray\"\nscale = 1.0\n\
         [stages.read]\nkind = \"infer\"\nfrom = \"pixels\"\nmodel = \"blocks\"\n\
         [sinks.seen]\nkind = \"reply\"\nfrom = \"read\"\n[devices]\nuse = [\"cpu\"]\n"
    ));
    write_pictures(&place.images(), 2);
    let mut files: Vec<_> = fs::read_dir(place.images()).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let server = Server::start(&place, &[]);
    let (status, metadata) = server.get("/v2/models/workflow");
    let expected = json!([{ "name": "picture", "datatype": "BYTES", "shape": [1] }]);
    assert_eq!((status, &metadata["inputs"]), (200, &expected));
    for (index, file) in (0..).zip(files) {
        let png = fs::read(file).unwrap();
        let input = json!({ "name": "picture", "shape": [1], "datatype": "BYTES", "parameters": { "binary_data_size": png.len() + 4 } });
        let head = json!({ "inputs": [input] }).to_string();
        let length = u32::try_from(png.len()).unwrap().to_le_bytes();
        let body = [head.as_bytes(), &length, &png].concat();
        let header = format!("Inference-Header-Content-Length: {}\r\n", head.len());
        let (status, answer) = server.send("POST", "/v2/models/workflow/infer", &header, &body);
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!(status, 200, "{answer}");
        let by_name = |name: &str| {
            let outputs = answer["outputs"].as_array().unwrap();
            outputs.iter().find(|output| output["name"] == name).unwrap().clone()
        };
        assert_eq!(shown(&json!({ "outputs": [by_name("seen.blocks")] })), Some(index));
        let record: Value = serde_json::from_str(by_name("seen")["data"][0].as_str().unwrap()).unwrap();
        assert_eq!(record["blocks"]["data"], by_name("seen.blocks")["data"]);
    }
    let rubbish = json!({ "inputs": [{ "name": "picture", "shape": [1], "datatype": "BYTES", "data": ["no picture"] }] });
    let (status, answer) = server.post("/v2/models/workflow/infer", &rubbish);
    assert!(
        status == 400 && answer["error"].as_str().unwrap().contains("expected a JPEG"),
        "{status} {answer}"
    );
    server.end();
}

#[test]
fn the_example_gives_what_its_check_py_accepts() {
    let place = Workplace::new();
    let folder = repository().join("examples/serve");
    let server = Server::of(&place, &folder.join("workflow.toml"), &[]);
    let check = Command::new("python3")
        .arg(folder.join("check.py"))
        .args(["--server", &server.http])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    assert!(check.status.success(), "{check:?}");
    assert!(String::from_utf8_lossy(&check.stdout).contains("400 pictures read, 398 right"), "{check:?}");
    let said = server.run.said();
    assert!(!said.contains("nothing uses"), "what is served alone is in use: {said}");
    server.end();
}

#[test]
fn what_is_no_request_is_refused_with_a_reason_and_the_next_one_is_answered() {
    let place = Workplace::new();
    blocks(&place, "");
    let server = Server::start(&place, &[]);
    let path = "/v2/models/blocks/infer";
    let of = |input: Value| json!({ "inputs": [input] });
    let named = |more: Value| {
        let mut input = request(1)["inputs"][0].clone();
        input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        of(input)
    };
    for (what, body, words) in [
        ("no inputs", json!({}), "inputs"),
        ("a wrong type", json!({ "inputs": 7 }), "JSON"),
        ("an unknown input", named(json!({ "name": "x" })), "`x`"),
        ("an unknown datatype", named(json!({ "datatype": "FP8" })), "FP8"),
        ("a negative dimension", named(json!({ "shape": [-1, 1, 32, 32] })), "-1"),
        (
            "dimensions beyond all memory",
            named(json!({ "shape": [4_611_686_018_427_387_904_i64, 4, 2, 2] })),
            "elements",
        ),
        ("too few elements", named(json!({ "data": [1, 2] })), "2 elements"),
        ("no elements", named(json!({ "data": null })), "pixels"),
        ("words for numbers", named(json!({ "data": ["a"] })), "pixels"),
        (
            "binary data that is not there",
            named(json!({ "data": null, "parameters": { "binary_data_size": 4096 } })),
            "binary",
        ),
        ("no rows", named(json!({ "shape": [0, 1, 32, 32], "data": [] })), "row"),
        ("an unknown output", json!({ "inputs": request(1)["inputs"], "outputs": [{ "name": "x" }] }), "`x`"),
    ] {
        let (status, answer) = server.post(path, &body);
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(status == 400 && error.contains(words), "{what}: {status} {answer}");
    }
    let (status, answer) = server.post(
        "/v2/repository/models/blocks/load",
        &json!({ "parameters": { "config": "{\"max_batch_size\": 4}" } }),
    );
    assert!(status == 400 && answer["error"].as_str().unwrap().contains("`config`"), "{status} {answer}");
    let deep = "[".repeat(100_000);
    let nested = format!(r#"{{"inputs":[{{"name":"pixels","shape":[1],"datatype":"FP32","data":{deep}"#);
    let length = "Inference-Header-Content-Length: 99999999999\r\n";
    for (what, (status, _), expected) in [
        ("no JSON", server.send("POST", path, "", b"\xff\xfe\0"), 400),
        ("JSON without an end", server.send("POST", path, "", nested.as_bytes()), 400),
        ("a length beyond the body", server.send("POST", path, length, b"{}"), 400),
        ("another method", server.send("DELETE", path, "", b""), 405),
        ("another path", server.send("POST", "/v2/models/blocks/nothing", "", b"{}"), 404),
        ("another model", server.send("POST", "/v2/models/../infer", "", b"{}"), 404),
        ("no HTTP", server.raw(b"\x16\x03\x01\x02\0\x01\0\x01\xfc"), 400),
        (
            "a body of gigabytes",
            server.raw(
                format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 99999999999\r\n\r\n{{")
                    .as_bytes(),
            ),
            413,
        ),
    ] {
        assert_eq!(status, expected, "{what}");
    }
    let zeros = Command::new("sh").args(["-c", "head -c 300M /dev/zero | gzip -1"]).output().unwrap().stdout;
    let (status, _) = server.send("POST", path, "Content-Encoding: gzip\r\n", &zeros);
    assert_eq!(status, 413, "300 MB in {} bytes", zeros.len());
    // A body that never comes holds nothing up.
    let mut slow = TcpStream::connect(&server.http).unwrap();
    slow.write_all(format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{{").as_bytes())
        .unwrap();
    let (status, answer) = server.post(path, &request(5));
    assert_eq!((status, shown(&answer)), (200, Some(5)));
    drop(slow);
    // All that was refused has failed, by what Prometheus reads.
    let (status, page) = server.send("GET", "/metrics", "", b"");
    let page = String::from_utf8(page).unwrap();
    assert!(
        status == 200 && page.contains("orchestra_serve_requests_total{model=\"blocks\",end=\"done\"} 1\n"),
        "{page}"
    );
    promtool_has_nothing_against(&page);
    server.end();
}

#[test]
fn who_sends_slowly_or_nothing_is_cut_off_and_holds_up_nobody() {
    let place = Workplace::new();
    blocks(&place, "");
    let server = Server::start(&place, &["--set", "serve.read_timeout=\"1s\""]);
    let path = "/v2/models/blocks/infer";
    let idle: Vec<TcpStream> =
        (0..scaled(10_000, 200)).map(|_| TcpStream::connect(&server.http).unwrap()).collect();
    let (status, answer) = server.post(path, &request(5));
    assert_eq!((status, shown(&answer)), (200, Some(5)), "beside {} idle connections", idle.len());
    drop(idle);
    // Each is answered or closed while the client waits: `raw` reads to the end.
    let body = request(6).to_string();
    let post = |headers: &str, body: &str| format!("POST {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n{body}");
    let slow = [
        ("nothing", String::new(), 0),
        ("half a head", "POST /v2/mod".to_owned(), 0),
        ("a head without an end", "GET /v2 HTTP/1.1\r\nHost: x\r\nX: ".to_owned(), 0),
        ("half a body", post("Connection: close\r\nContent-Length: 5000\r\n", "{"), 408),
        ("half a chunk", post("Connection: close\r\nTransfer-Encoding: chunked\r\n", "50\r\n{"), 408),
        ("no last chunk", post("Connection: close\r\nTransfer-Encoding: chunked\r\n", "1\r\n{\r\n"), 408),
    ];
    thread::scope(|scope| {
        let server = &server;
        for (what, bytes, expected) in slow {
            scope.spawn(move || assert_eq!(server.raw(bytes.as_bytes()).0, expected, "{what}"));
        }
    });
    let mut silent = TcpStream::connect(&server.grpc).unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    silent.write_all(b"PRI * HTTP").unwrap();
    // hyper may say goodbye first.
    silent.read_to_end(&mut Vec::new()).unwrap();
    // What is whole is answered, however it is cut.
    let chunks: String = body.as_bytes().chunks(100).fold(String::new(), |chunks, chunk| {
        format!("{chunks}{:x}\r\n{}\r\n", chunk.len(), str::from_utf8(chunk).unwrap())
    });
    let whole = post("Connection: close\r\nTransfer-Encoding: chunked\r\n", &format!("{chunks}0\r\n\r\n"));
    assert_eq!(server.raw(whole.as_bytes()).0, 200);
    let endless = format!("{:x}\r\n{}\r\n", 1 << 20, "1".repeat(1 << 20)).repeat(70);
    let close = "Connection: close\r\n";
    let deep = format!("{{\"parameters\":{}", "[".repeat(100_000));
    for (what, bytes, expected) in [
        ("70 MB in chunks", post("Connection: close\r\nTransfer-Encoding: chunked\r\n", &endless), 413),
        ("no length of a chunk", post("Connection: close\r\nTransfer-Encoding: chunked\r\n", "zz\r\n"), 400),
        (
            "a chunk beyond all numbers",
            post("Connection: close\r\nTransfer-Encoding: chunked\r\n", "fffffffffffffffff\r\n"),
            400,
        ),
        ("a length beyond all numbers", post("Content-Length: 99999999999999999999999\r\n", ""), 400),
        ("a negative length", post("Content-Length: -1\r\n", ""), 400),
        ("two lengths", post("Content-Length: 1\r\nContent-Length: 2\r\n", "{}"), 400),
        ("endless headers", post(&"X: y\r\n".repeat(1000), ""), 431),
        ("deep parameters", post(&format!("{close}Content-Length: {}\r\n", deep.len()), &deep), 400),
    ] {
        assert_eq!(server.raw(bytes.as_bytes()).0, expected, "{what}");
    }
    assert_eq!(server.post(path, &request(7)).0, 200);
    server.end();
}

#[test]
fn the_table_serve_says_where_to_listen_and_what_is_wrong_with_it_is_told_with_its_line() {
    let place = Workplace::new();
    let (file, socket) = (place.workflow(), place.path("http.sock"));
    let with = |table: &str| {
        blocks(&place, "");
        let text = fs::read_to_string(&file).unwrap();
        place.write(format!("{text}[serve]\n{table}"));
        place.start_command_with(&["serve", file.to_str().unwrap(), "--grpc", "127.0.0.1:0"], &[])
    };
    fs::write(place.path("token"), "open sesame").unwrap();
    let table =
        format!("http = \"unix:{}\"\ngrpc = \"127.0.0.1:1\"\ntoken_file = \"token\"\n", socket.display());
    // A socket of a server that was killed is taken over.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let mut run = with(&table);
    run.must_say("gRPC at ");
    for (header, expected) in [("", "401"), ("Authorization: Bearer open sesame\r\n", "200")] {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        let head = format!("GET /v2/models/blocks HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer.split(' ').nth(1), Some(expected), "{answer}");
    }
    with(&table).wait().must_exit(75).must_say(&["cannot listen", "http.sock"]);
    run.signal(Signal::TERM);
    run.wait().must_exit(0);
    assert!(!socket.exists(), "the socket is gone with its server");
    for (table, words) in [
        ("http = \"8000\"\n", "is no address to listen on"),
        ("http = \"unix:here\"\n", "is no address to listen on"),
        ("token_file = \"none\"\n", "cannot be read"),
        ("queue = 0\n", "queue"),
        ("deadline = \"0s\"\n", "longer than nothing"),
        ("read_timeout = 5\n", "read_timeout"),
        ("message = \"many\"\n", "message"),
        ("nonsense = 1\n", "nonsense"),
    ] {
        with(table).wait().must_exit(78).must_say(&["workflow.toml:9", words]);
    }
}

/// The server ends because of its file, whatever listens on this machine.
fn must_refuse(place: &Workplace, words: &[&str]) {
    let file = place.workflow();
    let arguments = ["serve", file.to_str().unwrap(), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];
    let run = place.start_command_with(&arguments, &[]);
    run.wait().must_exit(78).must_say(words);
}

/// What a message says is to be done is done here.
#[test]
fn a_model_of_open_dimensions_is_refused_with_the_way_to_serve_it() {
    let place = Workplace::new();
    let open = |name: &str| TensorSpec {
        name: name.into(),
        dtype: DType::F32,
        row: vec![Dim::Dynamic],
        batch: Dim::Dynamic,
    };
    let model = ModelBuilder::new("any").input(&open("x")).output(&open("y"));
    let model = model.node("Neg", &["x"], &["y"], &[]).write(&place.path("models")).unwrap();
    let of_model = format!("version = 1\n[models.any]\npath = {model:?}\n[devices]\nuse = [\"cpu\"]\n");
    place.write(of_model.clone());
    must_refuse(&place, &["kind = \"request\"", "columns = { x = \"f32[..]\" }"]);
    let graph = |ty: &str| {
        format!(
            "{of_model}[sources.rows]\nkind = \"request\"\ncolumns = {{ x = \"{ty}\" }}\n\
         [stages.negative]\nkind = \"infer\"\nfrom = \"rows\"\nmodel = \"any\"\n[sinks.out]\nkind = \"reply\"\nfrom = \"negative\"\n"
        )
    };
    // A type that requests cannot have is refused with those that they can.
    for (ty, words) in
        [("f32[?]", "each dimension of which is a number"), ("bf16[3]", "a tensor of `f32`, `f16`")]
    {
        place.write(graph(ty));
        must_refuse(&place, &["workflow.toml:8", "is no type", words]);
    }
    place.write(graph("f32[3]"));
    let server = Server::start(&place, &[]);
    let input = json!({ "name": "x", "shape": [3], "datatype": "FP32", "data": [1.0, -2.0, 3.0] });
    let asked = json!({ "inputs": [input], "outputs": [{ "name": "out.y" }] });
    let (status, answer) = server.post("/v2/models/workflow/infer", &asked);
    assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!([-1.0, 2.0, -3.0])), "{answer}");
    server.end();
}

/// What the messages say is done here, too: the model takes f32, with a `Cast` behind its input and one in front of its output.
#[test]
fn a_model_of_bfloat16_is_refused_with_the_way_to_serve_it() {
    const BFLOAT16: Attribute = Attribute::Int(16);
    let place = Workplace::new();
    let spec = |name: &str| TensorSpec {
        name: name.into(),
        dtype: DType::F32,
        row: vec![Dim::Fixed(2)],
        batch: Dim::Dynamic,
    };
    let build = |name: &str| ModelBuilder::new(name).input(&spec("x")).output(&spec("y"));
    let write = |model: ModelBuilder| {
        let model = model.write(&place.path("models")).unwrap();
        place.write(format!("version = 1\n[models.half]\npath = {model:?}\n[devices]\nuse = [\"cpu\"]\n"));
    };
    write(build("input").bfloat16(&["x"]).node("Cast", &["x"], &["y"], &[("to", Attribute::Int(1))]));
    must_refuse(
        &place,
        &["input `x` is of type bfloat16", "with an input of one of these, and a `Cast` behind it"],
    );
    write(build("output").bfloat16(&["y"]).node("Cast", &["x"], &["y"], &[("to", BFLOAT16)]));
    must_refuse(
        &place,
        &["output `y`", "it is bfloat16", "put a `Cast` behind it and export the model again"],
    );
    let model = build("both").node("Cast", &["x"], &["half"], &[("to", BFLOAT16)]);
    write(model.node("Cast", &["half"], &["y"], &[("to", Attribute::Int(1))]));
    let server = Server::start(&place, &[]);
    let of = |datatype: &str| {
        let input = json!({ "name": "x", "shape": [1, 2], "datatype": datatype, "data": [1.0, 1.001] });
        server.post("/v2/models/half/infer", &json!({ "inputs": [input] }))
    };
    let (status, answer) = of("FP32");
    assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!([1.0, 1.0])), "{answer}");
    let (status, answer) = of("BF16");
    assert!(
        status == 400 && answer["error"].as_str().unwrap().contains("`BF16`; this server takes BOOL, "),
        "{answer}"
    );
    server.end();
}

/// As `simple_string` of Triton's examples has them.
#[test]
fn rows_of_several_texts_go_in_and_come_out_in_their_shape() {
    let place = Workplace::new();
    let texts = |name: &str| TextInput { name: name.into(), row: vec![Dim::Fixed(3)], batch: Dim::Dynamic };
    let to = |element| [("to", Attribute::Int(element))];
    let model = ModelBuilder::new("sums").text_input(&texts("a")).text_input(&texts("b"));
    let model = model.text_output(&texts("sum")).node("Cast", &["a"], &["x"], &to(6));
    let model = model.node("Cast", &["b"], &["y"], &to(6)).node("Add", &["x", "y"], &["z"], &[]);
    let model = model.node("Cast", &["z"], &["sum"], &to(8)).write(&place.path("models")).unwrap();
    let of_model = format!("version = 1\n[models.sums]\npath = {model:?}\n[devices]\nuse = [\"cpu\"]\n");
    place.write(of_model.clone());
    let server = Server::start(&place, &[]);
    let metadata = server.get("/v2/models/sums").1;
    assert_eq!(metadata["outputs"], json!([{ "name": "sum", "datatype": "BYTES", "shape": [-1, 3] }]));
    let ask = |shape: &[usize], path: &str, server: &Server| {
        let numbers =
            |from: usize| (from..).take(shape.iter().product()).map(|n| n.to_string()).collect::<Vec<_>>();
        let input = |name: &str, from| json!({ "name": name, "shape": shape, "datatype": "BYTES", "data": numbers(from) });
        server.post(path, &json!({ "inputs": [input("a", 1), input("b", 100)] }))
    };
    let (status, answer) = ask(&[2, 3], "/v2/models/sums/infer", &server);
    let expected = json!({ "name": "sum", "datatype": "BYTES", "shape": [2, 3], "data": ["101", "103", "105", "107", "109", "111"] });
    assert_eq!((status, &answer["outputs"][0]), (200, &expected), "{answer}");
    let (status, answer) = ask(&[3, 2], "/v2/models/sums/infer", &server);
    assert!(status == 400 && answer["error"].as_str().unwrap().contains("text[batch, 3]"), "{answer}");
    server.end();
    place.write(format!(
        "{of_model}[sources.rows]\nkind = \"request\"\ncolumns = {{ a = \"text[3]\", b = \"text[3]\" }}\n\
         [stages.add]\nkind = \"infer\"\nmodel = \"sums\"\ninputs = {{ a = \"rows.a\", b = \"rows.b\" }}\n\
         [sinks.out]\nkind = \"reply\"\nfrom = \"add\"\n"
    ));
    let server = Server::start(&place, &[]);
    let (status, answer) = ask(&[3], "/v2/models/workflow/infer", &server);
    assert_eq!(status, 200, "{answer}");
    let record: Value = serde_json::from_str(answer["outputs"][0]["data"][0].as_str().unwrap()).unwrap();
    assert_eq!(record, json!(["101", "103", "105"]));
    server.end();
}

/// Each name in the panels is one that the page has.
#[test]
fn the_panels_of_the_guide_read_what_the_server_counts() {
    let place = Workplace::new();
    blocks(&place, "");
    let server = Server::start(&place, &[]);
    assert_eq!(server.post("/v2/models/blocks/infer", &request(1)).0, 200);
    let page = String::from_utf8(server.send("GET", "/metrics", "", b"").1).unwrap();
    let panels = fs::read_to_string(repository().join("docs/guide/serving-grafana.json")).unwrap();
    let panels: Value = serde_json::from_str(&panels).unwrap();
    for panel in panels["panels"].as_array().unwrap() {
        let query = panel["targets"][0]["expr"].as_str().unwrap();
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let names = query.split(|c| !is_of_name(c)).filter(|word| word.starts_with("orchestra_"));
        for name in names {
            assert!(page.contains(&format!("\n{name}{{model=\"blocks\"")), "{name}: {page}");
        }
    }
    server.end();
}

#[test]
fn a_token_is_asked_for_but_not_by_the_health_of_the_server() {
    let place = Workplace::new();
    blocks(&place, "");
    fs::write(place.path("token"), "open sesame\n").unwrap();
    let file = place.path("token");
    let server = Server::start(&place, &["--token-file", file.to_str().unwrap()]);
    let path = "/v2/models/blocks";
    assert_eq!(server.get("/v2/health/live").0, 200);
    assert_eq!(server.get("/v2/health/ready").0, 200);
    assert_eq!(server.get(path).0, 401);
    assert_eq!(server.send("GET", path, "Authorization: Bearer open\r\n", b"").0, 401);
    assert_eq!(server.send("GET", path, "Authorization: Bearer open sesame\r\n", b"").0, 200);
    server.end();
}

#[test]
fn requests_get_their_own_answers_while_workers_are_killed_and_files_read_again() {
    let _turn = storm();
    let place = Workplace::new();
    blocks(&place, "workers = 2");
    let server = Server::start(&place, &[]);
    let (clients, each, reloads) = (8, scaled(500, 40), scaled(50, 3));
    let refused = AtomicU64::new(0);
    let killed = strike_workers(server.run.pid(), Duration::from_millis(100), Fault::Kill);
    thread::scope(|scope| {
        let server = &server;
        let refused = &refused;
        let asks = (0..clients).map(|client| {
            scope.spawn(move || {
                for n in 0..each {
                    let index = client * each + n;
                    let (status, answer) = server.post("/v2/models/blocks/infer", &request(index));
                    match status {
                        200 => assert_eq!(shown(&answer), Some(index)),
                        // A worker that dies young again and again is announced.
                        503 => drop(refused.fetch_add(1, Ordering::Relaxed)),
                        status => panic!("{status} {answer}"),
                    }
                }
            })
        });
        let asks: Vec<_> = asks.collect();
        for _ in 0..reloads {
            server.run.signal(Signal::HUP);
        }
        asks.into_iter().for_each(|ask| ask.join().unwrap());
    });
    let killed = killed.stop().len();
    let asked = clients * each;
    println!("{asked} requests, {killed} workers killed, {refused:?} refused for a while");
    assert!(killed > 0 && refused.into_inner() * 2 < asked);
    until("it answers as before", || server.post("/v2/models/blocks/infer", &request(1)).0 == 200);
    server.end();
}

/// Bytes of memory that a process holds, without what it has read of its program file.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
    };
    bytes("RssAnon:") + bytes("RssShmem:")
}

/// Every second request is of a client that does not wait for its answer.
#[test]
fn reloads_under_load_fail_no_request_and_hold_no_memory_nor_do_clients_that_vanish() {
    let _turn = storm();
    let place = Workplace::new();
    blocks(&place, "");
    let server = Server::start(&place, &[]);
    let (is_over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let path = "/v2/models/blocks/infer";
    let ask = |client: u64| {
        for n in (client..).step_by(4).take_while(|_| !is_over.load(Ordering::Relaxed)) {
            let body = request(n % 1000).to_string();
            let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
            TcpStream::connect(&server.http).unwrap().write_all([head, body].concat().as_bytes()).unwrap();
            let (status, answer) = server.post(path, &request(n % 1000));
            assert_eq!((status, shown(&answer)), (200, Some(n % 1000)), "{answer}");
            answered.fetch_add(1, Ordering::Relaxed);
        }
    };
    let load = || server.send("POST", "/v2/repository/models/blocks/load", "", b"").0;
    let (statuses, held) = thread::scope(|scope| {
        let ask = &ask;
        (0..4).for_each(|client| drop(scope.spawn(move || ask(client))));
        let mut statuses: Vec<u16> = (0..scaled(100, 3)).map(|_| load()).collect();
        let before = resident(server.run.pid());
        statuses.extend((0..scaled(900, 3)).map(|_| load()));
        let held = resident(server.run.pid()).saturating_sub(before);
        is_over.store(true, Ordering::Relaxed);
        (statuses, held)
    });
    println!("{} reloads, {answered:?} answers, {held} bytes more are held", statuses.len());
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    // 300 to 500 KB were seen; a leak of 3 KB in each of 900 reloads is more.
    assert!(held < 2 << 20, "{held} bytes more than after the first reloads");
    server.end();
}

#[test]
fn a_request_its_batch_and_its_worker_are_below_the_span_of_the_client() {
    let collector = Collector::http(&[]);
    let place = Workplace::new();
    blocks(&place, "");
    let server = Server::start(&place, &["--otlp", &collector.url()]);
    let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let header = format!("traceparent: 00-{trace}-{span}-01\r\n");
    let body = request(7).to_string();
    assert_eq!(server.send("POST", "/v2/models/blocks/infer", &header, body.as_bytes()).0, 200);
    assert_eq!(server.post("/v2/models/blocks/infer", &request(8)).0, 200);
    server.end();
    let spans: Vec<Span> = collector.spans().iter().map(span_of).collect();
    let items: Vec<&Span> = spans.iter().filter(|span| span.name == "item").collect();
    let [item] = items[..] else { panic!("{items:#?}") };
    assert_eq!((&*item.trace, &*item.parent), (trace, span));
    // Batches are of several requests, so an item refers to its own.
    let has_batch = |of: &&Span| {
        of.name == "batch"
            && spans
                .iter()
                .any(|stage| stage.trace == trace && stage.links.iter().any(|link| link.span == of.id))
    };
    let batch = spans.iter().find(has_batch).unwrap_or_else(|| panic!("{spans:#?}"));
    let infer = spans.iter().find(|span| span.name == "item.infer" && span.parent == item.id);
    for above in [batch, infer.unwrap_or_else(|| panic!("{spans:#?}"))] {
        assert!(spans.iter().any(|span| span.name == "worker.run" && span.parent == above.id), "{spans:#?}");
    }
}

#[test]
fn a_file_without_anything_to_serve_and_an_address_that_is_taken_are_told_at_once() {
    let place = Workplace::of("version = 1\n");
    let serve = |place: &Workplace, http: &str| {
        let file = place.workflow();
        place.start_command_with(
            &["serve", file.to_str().unwrap(), "--http", http, "--grpc", "127.0.0.1:0"],
            &[],
        )
    };
    serve(&place, "127.0.0.1:0").wait().must_exit(78).must_say(&["has nothing to serve", "[models.NAME]"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    blocks(&place, "");
    serve(&place, &address).wait().must_exit(75).must_say(&["cannot listen", &address]);
    blocks(&place, "nonsense = 1");
    serve(&place, "127.0.0.1:0").wait().must_exit(78).must_say(&["nonsense", "workflow.toml:5"]);
    assert!(Path::new(&place.workflow()).exists());
}
