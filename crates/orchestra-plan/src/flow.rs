//! Where each stage runs and what travels with a row: the stage whose rows reach it, the joins of rows that come by several ways, the columns
//! that batches and joins carry along for stages behind them, and whether items of a pipeline need counting. Works on ids; knows no kind.

use orchestra_core::shapes::Fan;
use orchestra_core::{PipelineId, SinkId, SourceId, StageId};
use serde_json::Value as Json;

use crate::diagnostics::{Diagnostics, Span};
use crate::nearest::list;
use crate::plan::{ColumnRef, FoldPlan, JoinInput, Origin, Plan, Shape, StagePlan};

/// Fills in `home`, `within` and what is carried of all stages and sinks, and `linear` of all pipelines; adds the joins. `stages` and `sinks`
/// are their places in the file. `None` after an error.
pub(crate) fn connect(
    plan: &mut Plan,
    stages: &[Span],
    sinks: &[Span],
    diags: &mut Diagnostics,
) -> Option<()> {
    let mut is_fine = true;
    for (stage, span) in (0..).map(StageId).zip(stages) {
        is_fine &= connect_stage(plan, stage, *span, diags).is_some();
    }
    if !is_fine {
        return None; // What stands behind a stage with an error has one, too.
    }
    for (sink, span) in (0..).map(SinkId).zip(sinks) {
        is_fine &= connect_sink(plan, sink, *span, diags).is_some();
    }
    if !is_fine {
        return None;
    }
    for at in 0..plan.pipelines.len() {
        plan.pipelines[at].linear = linear(plan, at);
    }
    Some(())
}

/// What reads: a stage or a sink.
struct Reader {
    /// "stage `x`"
    what: String,
    span: Span,
    pipeline: PipelineId,
    /// The stage, if it is one.
    stage: Option<StageId>,
    from: Vec<Origin>,
    reads: Vec<ColumnRef>,
}

fn connect_stage(plan: &mut Plan, stage: StageId, span: Span, diags: &mut Diagnostics) -> Option<()> {
    let at = stage.index();
    let StagePlan { name, pipeline, from, reads, .. } = &plan.stages[at];
    let reader = Reader {
        what: format!("stage `{name}`"),
        span,
        pipeline: *pipeline,
        stage: Some(stage),
        from: from.clone(),
        reads: reads.clone(),
    };
    let home = reach(plan, &reader, diags)?;
    let mut within = within(plan, home, &reader.from);
    let this = &mut plan.stages[at];
    this.home = home;
    match (&this.runs, this.fan()) {
        (Shape::Fold(_), _) if within.pop().is_none() => {
            diags
                .error(span, format!("stage `{}` has no parts to bring together", this.name))
                .help("it reads from a stage behind one that makes several rows of one, such as `crop`");
            return None;
        }
        (_, Fan::Parts) => within.push(stage),
        (_, Fan::One | Fan::AtMostOne) => {}
    }
    this.within = within;
    one_fan_at_a_time(plan, &reader, home, diags)
}

fn connect_sink(plan: &mut Plan, sink: SinkId, span: Span, diags: &mut Diagnostics) -> Option<()> {
    let this = &plan.sinks[sink.index()];
    let reader = Reader {
        what: format!("sink `{}`", this.name),
        span,
        pipeline: this.pipeline,
        stage: None,
        from: this.from.clone(),
        reads: this.reads.clone(),
    };
    let home = reach(plan, &reader, diags)?;
    plan.sinks[sink.index()].home = home;
    one_fan_at_a_time(plan, &reader, home, diags)
}

/// Finds the rows that reach a reader, and has all that it reads carried there.
fn reach(plan: &mut Plan, reader: &Reader, diags: &mut Diagnostics) -> Option<Origin> {
    let home = match &ways(plan, &reader.from)[..] {
        [way] => way.home,
        ways => join(plan, reader, ways, diags)?,
    };
    for read in &reader.reads {
        carry(plan, reader, home, *read, diags)?;
    }
    Some(home)
}

/// Inputs that are read of one row.
struct Way {
    /// Whose rows.
    home: Origin,
    /// The home itself, or maps in its chain.
    from: Vec<Origin>,
}

/// The ways by which inputs come, each once: what a later row was made of is read there.
fn ways(plan: &Plan, from: &[Origin]) -> Vec<Way> {
    let mut ways: Vec<Way> = Vec::new();
    for &from in from {
        let home = plan.home_of(from);
        match ways.iter_mut().find(|way| way.home == home) {
            Some(way) => way.from.push(from),
            None => ways.push(Way { home, from: vec![from] }),
        }
    }
    let before: Vec<_> = ways.iter().map(|way| (way.home, plan.ancestors(way.home))).collect();
    for way in &mut ways {
        way.from.retain(|from| before.iter().all(|(home, all)| *home == way.home || !all.contains(from)));
    }
    ways.retain(|way| !way.from.is_empty());
    ways
}

/// The splits that a row of `home` is a part of once it has been through the maps `from`, outermost first.
fn within(plan: &Plan, home: Origin, from: &[Origin]) -> Vec<StageId> {
    let here = from.iter().filter(|from| plan.home_of(**from) == home).chain([&home]);
    let splits = here.filter_map(|from| from.stage()).map(|stage| &plan.stages[stage.index()].within);
    splits.max_by_key(|splits| splits.len()).cloned().unwrap_or_default()
}

/// The stage that waits for the rows of one token by all of these ways; one that does so already, or a new one.
fn join(plan: &mut Plan, reader: &Reader, ways: &[Way], diags: &mut Diagnostics) -> Option<Origin> {
    let sources = |way: &Way| {
        let mut all = plan.ancestors(way.from[0]);
        all.retain(|origin| origin.stage().is_none());
        all
    };
    let names = |origins: &[Origin]| list(origins.iter().map(|from| plan.name_of(*from)));
    let of = |way: &Way| match within(plan, way.home, &way.from).last() {
        Some(split) => format!("parts that `{}` makes", plan.stages[split.index()].name),
        None => format!("items of {}", names(&sources(way).into_iter().collect::<Vec<_>>())),
    };
    let [first, rest @ ..] = ways else { return None };
    let apart = |way: &&Way| {
        sources(way) != sources(first)
            || within(plan, way.home, &way.from) != within(plan, first.home, &first.from)
    };
    if let Some(other) = rest.iter().find(apart) {
        let (a, b) = (names(&first.from), names(&other.from));
        diags
            .error(reader.span, format!("the inputs of {} do not belong together", reader.what))
            .label(format!("rows of {a} are {}, and rows of {b} are {}", of(first), of(other)))
            .help("what is read together is made of the same items, or of the same parts");
        return None;
    }
    let is_same = |stage: &StagePlan| match &stage.runs {
        Shape::Fold(FoldPlan::Inputs { inputs }) => {
            inputs.len() == ways.len()
                && inputs
                    .iter()
                    .zip(ways)
                    .all(|(input, way)| input.home == way.home && input.from == way.from)
        }
        _ => false,
    };
    if let Some(known) = plan.stages.iter().position(is_same) {
        return Some(Origin::Stage(StageId(u16::try_from(known).ok()?)));
    }
    let Ok(id) = u16::try_from(plan.stages.len()).map(StageId) else {
        diags.error(reader.span, "the workflow has too many stages");
        return None;
    };
    let from: Vec<Origin> = ways.iter().flat_map(|way| way.from.iter().copied()).collect();
    let name = from.iter().map(|from| plan.name_of(*from)).collect::<Vec<_>>().join("+");
    let input = |way: &Way| JoinInput { home: way.home, from: way.from.clone(), reads: Vec::new() };
    plan.stages.push(StagePlan {
        name,
        pipeline: reader.pipeline,
        kind: "join".to_owned(),
        within: within(plan, first.home, &first.from),
        from,
        reads: Vec::new(),
        gives: Default::default(),
        home: first.home,
        settings: Json::Null,
        details: Vec::new(),
        about: "waits for the rows of all of them".to_owned(),
        runs: Shape::Fold(FoldPlan::Inputs { inputs: ways.iter().map(input).collect() }),
    });
    let stages = &mut plan.pipelines[reader.pipeline.index()].stages;
    let before = stages.iter().position(|stage| Some(*stage) == reader.stage).unwrap_or(stages.len());
    stages.insert(before, id);
    Some(Origin::Stage(id))
}

/// Has every batch and join between a column and what reads it carry the column along.
fn carry(
    plan: &mut Plan,
    reader: &Reader,
    home: Origin,
    read: ColumnRef,
    diags: &mut Diagnostics,
) -> Option<()> {
    let made_at = plan.home_of(read.from);
    let mut at = home;
    while at != made_at {
        let (what, giver) = (&reader.what, plan.name_of(read.from).to_owned());
        let is_behind = plan.ancestors(at).contains(&read.from);
        let Some(carrier) = at.stage().filter(|_| is_behind) else {
            diags.error(reader.span, format!("{what} cannot read from `{giver}`: no row of it leads here"));
            return None;
        };
        let known = |origin: &Origin| plan.ancestors(*origin).contains(&read.from);
        let way = match &plan.stages[carrier.index()].runs {
            Shape::Fold(FoldPlan::Inputs { inputs }) => {
                inputs.iter().position(|input| input.from.iter().any(known))
            }
            _ => None,
        };
        let stage = &mut plan.stages[carrier.index()];
        let (columns, next) = match (&mut stage.runs, way) {
            (Shape::Batch(batch), _) => (&mut batch.carries, stage.home),
            (Shape::Fold(FoldPlan::Inputs { inputs }), Some(way)) => {
                let JoinInput { home, reads, .. } = &mut inputs[way];
                (reads, *home)
            }
            _ => {
                let name = &stage.name;
                diags
                    .error(reader.span, format!("{what} cannot read from `{giver}` behind stage `{name}`"))
                    .help(format!(
                        "`{name}` makes one row of many, which has the columns that it gives and no others"
                    ));
                return None;
            }
        };
        if !columns.contains(&read) {
            columns.push(read);
        }
        at = next;
    }
    Some(())
}

/// Stages that run one inside of the other cannot both split a row, unless one reads what the other gives.
fn one_fan_at_a_time(plan: &Plan, reader: &Reader, home: Origin, diags: &mut Diagnostics) -> Option<()> {
    let fans = |stage: StageId| plan.stages[stage.index()].fan() != Fan::One;
    let mut fans: Vec<Origin> = reader
        .from
        .iter()
        .flat_map(|from| plan.ancestors(*from))
        .chain(reader.stage.map(Origin::Stage))
        .filter(|origin| origin.stage().is_some_and(fans) && plan.home_of(*origin) == home)
        .collect();
    fans.dedup();
    for (at, one) in fans.iter().enumerate() {
        for other in &fans[at + 1..] {
            if !plan.ancestors(*one).contains(other) && !plan.ancestors(*other).contains(one) {
                let (one, other) = (plan.name_of(*one), plan.name_of(*other));
                diags.error(
                    reader.span,
                    format!(
                        "{} reads rows of both `{one}` and `{other}`, which do not belong together",
                        reader.what
                    ),
                );
                return None;
            }
        }
    }
    Some(())
}

/// The only sink of a pipeline of one source in which every row has one reader, where no order is asked.
fn linear(plan: &Plan, pipeline: usize) -> Option<SinkId> {
    let pipeline = &plan.pipelines[pipeline];
    let ([source], [sink]) = (&pipeline.sources[..], &pipeline.sinks[..]) else { return None };
    let mut at = Origin::Source(SourceId(source.0));
    let mut left = pipeline.stages.len();
    loop {
        let readers: Vec<StageId> =
            pipeline.stages.iter().copied().filter(|s| plan.stages[s.index()].from.contains(&at)).collect();
        match readers[..] {
            [reader] => {
                let stage = &plan.stages[reader.index()];
                let carries = stage.batch().is_some_and(|batch| !batch.carries.is_empty());
                if stage.fan() != Fan::One || matches!(stage.runs, Shape::Fold(_)) || carries || left == 0 {
                    return None;
                }
                left -= 1;
                at = Origin::Stage(reader);
            }
            _ => break,
        }
    }
    let last = &plan.sinks[sink.index()];
    (left == 0 && last.from == [at] && !last.ordered).then_some(*sink)
}
