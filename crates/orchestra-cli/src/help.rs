//! The ends of the help texts: examples and exit codes. Text only; what may be written is in `args.rs`.

use crate::exit_code::ExitCode;

const MAIN: &str = "\
Examples:
  orchestra init first              a small workflow to start from, in the new folder `first`
  orchestra check workflow.toml     every error of the file, with line and help
  orchestra plan workflow.toml      what would run where, and why
  orchestra run workflow.toml       run it, or go on with it
  orchestra serve models.toml       answer requests over HTTP and gRPC
  orchestra tasks workflow.toml     its commands: what would run, and what has run
  orchestra retry out               do the failed items of a run again
  orchestra verify out              whether every item ended in exactly one place
  orchestra bench workflow.toml     how fast it can be here, and how fast it is
  orchestra chaos workflow.toml     whether anything is lost when workers die
";

const RUN: &str = "\
Examples:
  orchestra run workflow.toml
  orchestra run workflow.toml --devices cuda:0,cuda:1 --output /data/out
  orchestra run workflow.toml --set stages.classify.batch.max=16 --fresh
  orchestra run workflow.toml --only train

A run goes on where it stopped. The first Ctrl-C finishes what is in flight, asks commands to end
and exits with 130, the second kills workers and commands, the third exits at once.
";

pub fn main() -> String {
    with_exit_codes(MAIN)
}

pub fn run() -> String {
    with_exit_codes(RUN)
}

fn with_exit_codes(text: &str) -> String {
    let code = |(code, meaning): &(ExitCode, &str)| format!("\n  {:<5}{meaning}", code.number());
    format!("{text}\nExit codes:{}", ExitCode::ALL.iter().map(code).collect::<String>())
}

pub const RETRY: &str = "\
Examples:
  orchestra retry out

It is the command that started the run last, in the folder where that was, with --retry-failed. Items that no start has reached are done, too.

Exit codes: those of `orchestra run`";

pub const SERVE: &str = "\
Examples:
  orchestra serve models.toml
  orchestra serve read.toml --http 0.0.0.0:8000 --deadline 2s --token-file token
  orchestra serve models.toml --page               what it does, in a browser
  curl localhost:8000/v2/models/digits

Each [models.NAME] answers under its name, and the graph from a source of kind `request` to sinks of kind `reply` under that of the file.
SIGTERM and Ctrl-C answer what there is and end; SIGHUP reads the files again, and no request fails for it.

Exit codes: 0 ended by a signal, 69 a device, ONNX Runtime or a model is not available, 75 an address is taken, 78 the file is wrong";

pub const TASKS: &str = "\
Examples:
  orchestra tasks workflow.toml
  orchestra tasks workflow.toml --only train --json
  orchestra tasks workflow.toml --watch              follow `orchestra run workflow.toml`

States: new; running; done; changed (its command, an input or an output is not what it was); broken off (its run was
killed); else the class of its last end: code, signal, timeout, out_of_memory, device_lost, not_started, missing, stopped.

Exit codes: 0 listed, 2 there is no such task, 69 a device is not available, 75 what ran cannot be read, 78 the file is wrong";

pub const VERIFY: &str = "\
Examples:
  orchestra verify out
  orchestra verify out --json

Exit codes: 0 every item ended in exactly one place, 2 the folder holds no finished run, 70 something is lost, doubled, stray or damaged";

pub const REPORT: &str = "\
Examples:
  orchestra report out
  orchestra report out -o monday.html
  orchestra report before after          what differs between two runs
  orchestra report before after --json
  orchestra report out --perfetto trace.json.gz

The page is one file that asks for nothing from the network: attach it to a ticket, or open it in a browser.

Exit codes: 0 the page was written, 2 the folder holds no run, 75 it could not be written";

pub const PAGE: &str = "\
Examples:
  orchestra page out                     a run that another terminal has started
  orchestra page runs --listen 127.0.0.1:8080

Exit codes: 0 it was ended by Ctrl-C, 2 the folder holds no run, 75 the address is taken";

pub const CHECK_OFFLINE: &str = "Look at the file and what it names only: ask no driver, load no library, look into no file of a source, use no network";

pub const CHECK: &str = "\
Examples:
  orchestra check workflow.toml
  orchestra check workflow.toml --set stages.classify.batch.max=16
  orchestra check workflow.toml --offline --json

Exit codes: 0 no errors, 69 device, runtime or model not available, 75 a store does not answer, 78 the file is wrong";

pub const PLAN: &str = "\
Examples:
  orchestra plan workflow.toml
  orchestra plan workflow.toml --devices cpu,cpu --json
  orchestra plan workflow.toml --machine server.toml

The file of --machine describes another machine. GPUs are numbered cuda:0, cuda:1, ... in its order:
  cores = 96
  memory = \"384GiB\"
  [[devices]]
  count = 8
  memory = \"24GiB\"
  mps = true

Exit codes: 0 there is a plan, 69 device, runtime or model not available, 75 a store does not answer, 78 a file is wrong";

pub const GRAPH: &str = "\
Examples:
  orchestra graph workflow.toml
  orchestra graph workflow.toml --output graph.mmd

The picture is Mermaid, which GitHub, GitLab and most editors draw; `mmdc` makes an SVG or a PNG of it.

It looks at the workflow file and what that names, and at no device: the picture is the same
on every machine. `orchestra plan` says what runs where.

Exit codes: 0 drawn, 69 a model is not available, 75 it cannot be written or a store does not answer, 78 the file is wrong";

pub const BENCH: &str = "\
Examples:
  orchestra bench workflow.toml
  orchestra bench workflow.toml --runs 9 --json
  orchestra bench workflow.toml --repeat 100

Loading without a model, each model with its rows ready, and a whole run are measured one after the other, in each
round. The limit is what the first two allow together; the ratio says how close a run comes to it. A run without a steady
state of a second has no ratio: --repeat makes it longer. The file and its output folder stay as they are.

Exit codes: 0 measured, 65 no item is done, 69 device, runtime or model not available,
75 stopped, try again elsewhere, 78 the file is wrong, 130 interrupted";

pub const CHAOS: &str = "\
Examples:
  orchestra chaos workflow.toml
  orchestra chaos workflow.toml --kill-every 100ms --stop-every 1s --items 100000
  orchestra chaos workflow.toml --stop-every never --runs 5 --json

The workflow runs while its workers and loaders are killed and stopped, into a folder that is removed afterwards. Then its
items are counted as `orchestra verify` does it. The file and its output folder stay as they are. A flaw is a bug of ours:
please report it. With --otlp all runs are traced, each with an id of its own.

Exit codes: 0 every item has one end, 2 the command line is wrong, 65 no item is done,
69 device, runtime or model not available, 70 a flaw was found,
75 stopped, try again elsewhere, 78 the file is wrong, 130 interrupted";

pub const DEVICES: &str = "\
Examples:
  orchestra devices
  orchestra devices --json

Exit codes: 0 listed, also where there is no GPU";

pub const DOCTOR: &str = "\
Examples:
  orchestra doctor
  orchestra doctor --json

It fetches, loads and changes nothing.

Exit codes: 0 ready, 69 something is missing";

pub const INSPECT: &str = "\
Examples:
  orchestra inspect detector.onnx
  orchestra inspect detector.onnx > workflow.toml
  orchestra inspect detector.onnx --json

What it prints is a workflow file, with the findings as comments. It runs nothing and loads no weights.
With --json: `model`, `bytes`, `ir_version`, `opset`; `inputs` and `outputs`, each with `name`, `dtype` and `shape` (null for what is
open); `metadata`; `operators` (how often each is used); `recognised` with `purpose` (detector, classifier, unknown), `layout`,
`possible_layouts` and `why`; and `workflow`, null where the model cannot be fed by one source.

Exit codes: 0 printed, 69 the file cannot be read or is no model";

pub const INIT: &str = "\
Examples:
  orchestra init first
  orchestra run first/workflow.toml

It overwrites nothing: if one of its files is there already, it writes none and names it.

Exit codes: 0 written, 2 something is in the way, 75 it cannot be written";

pub const SCHEMA: &str = "\
Examples:
  orchestra schema > workflow.schema.json

Editors that know JSON Schema for TOML (Taplo, Even Better TOML in VS Code) offer keys and kinds with their help, and mark what
is wrong, in files whose first line is `#:schema ./workflow.schema.json`. It has the kinds of this build.

Exit codes: 0 printed";

pub const COMPLETIONS: &str = "\
Examples:
  orchestra completions bash > ~/.local/share/bash-completion/completions/orchestra
  orchestra completions zsh > ~/.zfunc/_orchestra     (a folder of your fpath)
  orchestra completions fish > ~/.config/fish/completions/orchestra.fish

Exit codes: 0 printed";
