//! The page `docs/reference/columns.md`: which kinds read and give which types of columns. Each cell is what the planner says of a workflow of that kind and a
//! column of that type, so the page is what the planner accepts.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use orchestra_core::data::{Column, ColumnType, Schema, fixed_tensor};
use orchestra_core::kernel::Compiler;
use orchestra_core::shapes::{Fetch, FetchRun};
use orchestra_core::{DType, Program, SandboxRules};
use orchestra_plan::{
    AskProgram, Json, LookInto, LookRequest, Plan, PlanOptions, RealHost, SourceConnected, SourceContext,
    SourceKind, machine_from_toml, plan,
};
use orchestra_store::{FileKinds as _, ListError};

/// Kinds with tables that are tried for each: of several, what any takes or gives.
const TRIED: &str = include_str!("tried.txt");
/// Without a row: `size` reads how large rows of pictures are, and the others are a program's.
const LEFT_OUT: [&str; 3] = ["stage size", "sink reply", "source request"];

/// The columns of the tables, and the types that are tried for each. A cell has the note of the first that is taken.
fn types() -> Vec<(&'static str, Vec<(&'static str, ColumnType)>)> {
    let tensor = |dtype, row: &[usize]| ColumnType::Tensor(fixed_tensor("x", dtype, row));
    let column = |name: &str, ty| Column { name: name.to_owned(), ty };
    let plain = Schema(vec![column("text", ColumnType::Text)]);
    let boxes =
        Schema(vec![column("box", tensor(DType::F32, &[4])), column("score", tensor(DType::F32, &[]))]);
    let shapes: [&[usize]; 8] = [&[64], &[1], &[4], &[2, 4], &[10, 10], &[1, 32, 32], &[3, 8, 8], &[8, 8, 3]];
    let of = |dtype| shapes.iter().map(move |row| ("yes", tensor(dtype, row)));
    let png = ColumnType::Bytes("png".into());
    vec![
        ("picture", vec![("yes", ColumnType::Picture)]),
        ("bytes", vec![("yes", ColumnType::Bytes(String::new())), ("of pictures", png)]),
        ("text", vec![("yes", ColumnType::Text)]),
        ("number", [DType::F64, DType::F32, DType::I64].map(|dtype| ("yes", tensor(dtype, &[]))).to_vec()),
        ("tensor", of(DType::F32).chain(of(DType::U8)).collect()),
        ("labels", vec![("yes", ColumnType::Labels)]),
        ("list", vec![("yes", ColumnType::List(plain)), ("with `box`", ColumnType::List(boxes))]),
        ("missing", vec![("yes", ColumnType::Optional(Box::new(tensor(DType::F64, &[]))))]),
    ]
}

fn words(ty: &ColumnType) -> Vec<&'static str> {
    vec![match ty {
        ColumnType::Picture => "picture",
        ColumnType::Bytes(_) => "bytes",
        ColumnType::Text => "text",
        ColumnType::Labels => "labels",
        ColumnType::List(_) => "list",
        ColumnType::Placement => return Vec::new(),
        ColumnType::Optional(of) => return [words(of), vec!["missing"]].concat(),
        _ if ty.tensor().is_some_and(|tensor| tensor.row.is_empty()) => "number",
        _ => "tensor",
    }]
}

/// A source with the columns `x`, of the type that is tried, `picture`, and `rows`, a list with an `x`.
#[derive(Debug)]
struct Trial(ColumnType);

impl Fetch for Trial {
    fn start(&self) -> Box<dyn FetchRun> {
        unreachable!("a plan reads no item")
    }
}

impl SourceKind for Trial {
    fn name(&self) -> &'static str {
        "trial"
    }

    fn about(&self) -> &'static str {
        "A column of some type."
    }

    fn has_files(&self) -> bool {
        false
    }

    fn connect(&self, _: &mut SourceContext<'_, '_>) -> Option<SourceConnected> {
        let column = |name: &str, ty| Column { name: name.to_owned(), ty };
        let x = column("x", self.0.clone());
        let rows = ColumnType::List(Schema(vec![x.clone()]));
        Some(SourceConnected {
            gives: Schema(vec![x, column("picture", ColumnType::Picture), column("rows", rows)]),
            fetch: Arc::new(Self(self.0.clone())),
            expand: None,
            names_repeat: false,
            settings: Json::Null,
            decoders: None,
        })
    }
}

/// Answers for a script and its Python, and looks into files in this process.
#[derive(Debug)]
struct World;

impl AskProgram for World {
    fn ask(&self, program: &Program, _: &SandboxRules) -> Result<Vec<u8>, String> {
        let asks_python = program.command.iter().any(|word| word.contains("sys.executable"));
        Ok(match asks_python {
            true => br#"{"executable": "/usr/bin/python3", "read": []}"#.to_vec(),
            false => include_bytes!("files/stage.json").to_vec(),
        })
    }
}

impl LookInto for World {
    fn look(&self, request: &LookRequest<'_>) -> Result<Vec<u8>, ListError> {
        orchestra_kinds::builtin().describe(request.question, request.file)
    }
}

fn planned(tables: &str, trial: &ColumnType) -> Option<Plan> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/feeds/files/flow.toml");
    let machine = include_str!("../../../../configs/machines/8x24gb.toml");
    let kinds = orchestra_kinds::builtin().with_source(Trial(trial.clone()));
    let host = RealHost {
        ask: Some(Arc::new(World)),
        look: Some(Arc::new(World)),
        compilers: Some(|| Ok(vec![Compiler { release: 13, path: "/nvrtc".into() }])),
        ..RealHost::with_machine(kinds, machine_from_toml(machine, "machine.toml").0?)
    };
    plan(&format!("version = 1\n{tables}"), Path::new(folder), &PlanOptions::default(), &host).0
}

/// The workflows that try a kind on `s.x`.
fn workflows(what: &str, kind: &str, table: &str) -> Vec<String> {
    let models = "energy.path = '../../../../../models/energy.onnx'\nroot.path = '../../../../../models/square-root.onnx'\nnumber.path = 'number.onnx'\ntext.path = 'text.onnx'\ntexts.path = 'texts.onnx'";
    let part = if kind == "gather" { "[stages.part]\nkind = 'split'\nfrom = 's.rows'" } else { "" };
    let text = |stage: String, sink: &str| {
        format!(
            "[models]\n{models}\n[sources.s]\nkind = 'trial'\n{part}\n[stages.y]\n{stage}\n[sinks.z]\nkind = '{sink}'\nfrom = 'y'\n"
        )
    };
    match what {
        // One of these sinks takes whatever a stage gives.
        "stage" => ["tar", "parquet"].map(|sink| text(format!("kind = '{kind}'\n{table}"), sink)).to_vec(),
        "sink" => {
            let select = "kind = 'select'\nfrom = 's.x'\ncolumns = { x = 'x' }";
            vec![format!("{}{table}\n", text(select.to_owned(), kind))]
        }
        _ => vec![format!(
            "[sources.s]\nkind = '{kind}'\n{table}\n[stages.y]\nkind = 'reduce'\nfrom = 's'\nop = 'count'\n[sinks.z]\nkind = 'jsonl'\nfrom = 'y'\n"
        )],
    }
}

fn row(what: &str, kind: &str, note: &str, tables: &[&str]) -> String {
    let tried: Vec<String> = tables.iter().flat_map(|table| workflows(what, kind, table)).collect();
    let (mut cells, mut gives, mut reads) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    let n_types = if what == "source" { 1 } else { usize::MAX };
    for (_, of_type) in types().into_iter().take(n_types) {
        let mut cell = "";
        for (why, ty) in of_type.iter().rev() {
            for plan in tried.iter().filter_map(|text| planned(text, ty)) {
                cell = why;
                reads.extend(words(ty));
                let schema = if what == "source" {
                    &plan.sources[0].gives
                } else {
                    &plan.stages.last().unwrap().gives
                };
                gives.extend(schema.0.iter().flat_map(|column| words(&column.ty)));
            }
        }
        cells.push(cell);
    }
    assert!(!gives.is_empty(), "no workflow of {what} `{kind}` is planned");
    let gives = match reads.len() > 4 && reads == gives {
        true => "what it reads".to_owned(),
        false => gives.into_iter().collect::<Vec<_>>().join(", "),
    };
    let cells = cells.join(" | ");
    let named = format!("| [`{kind}`]({what}s.md#kind--{kind}){note}");
    match what {
        "stage" => format!("{named} | {cells} | {gives} |\n"),
        "sink" => format!("{named} | {cells} |\n"),
        _ => format!("{named} | {gives} |\n"),
    }
}

pub fn page() -> String {
    let mut tables: Vec<(&str, Vec<&str>)> = Vec::new();
    for tried in TRIED.split("\n\n") {
        let (head, table) = tried.split_once('\n').unwrap_or((tried.trim(), ""));
        match tables.last_mut().filter(|(last, _)| *last == head) {
            Some((_, of_kind)) => of_kind.push(table),
            None => tables.push((head, vec![table])),
        }
    }
    let names = types().iter().map(|(name, _)| *name).collect::<Vec<_>>();
    let (line, named) = ("|---".repeat(names.len()), names.join(" | "));
    let mut page = include_str!("columns.md.in").to_owned();
    let mut known: BTreeSet<String> = LEFT_OUT.map(str::to_owned).into();
    for (what, head) in [
        ("stage", format!("| Stage | {named} | gives |\n|---{line}|---|\n")),
        ("sink", format!("| Sink | {named} |\n|---{line}|\n")),
        ("source", "| Source | gives |\n|---|---|\n".to_owned()),
    ] {
        let mut table = head;
        for (kind, tables) in
            tables.iter().filter_map(|(head, of)| Some((head.strip_prefix(what)?.strip_prefix(' ')?, of)))
        {
            let (kind, note) = kind.split_at(kind.find(' ').unwrap_or(kind.len()));
            known.insert(format!("{what} {kind}"));
            write!(table, "{}", row(what, kind, note, tables)).unwrap();
        }
        page = page.replace(&format!("{{{what}}}\n"), &table);
    }
    let kinds = orchestra_kinds::builtin();
    let stages = kinds.stages.iter().map(|kind| format!("stage {}", kind.name()));
    let sinks = kinds.sinks.iter().map(|kind| format!("sink {}", kind.name()));
    let all = stages.chain(sinks).chain(kinds.sources.iter().map(|kind| format!("source {}", kind.name())));
    assert_eq!(known, all.collect(), "each kind has a row");
    page
}
