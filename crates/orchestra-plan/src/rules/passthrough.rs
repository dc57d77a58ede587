//! Where each stage runs and what travels with a row: the stage whose rows reach it, the joins of rows that come by several ways, the columns
//! that batches and joins carry along for stages behind them, and whether items of a pipeline need counting. Works on ids; knows no kind.

use std::collections::BTreeSet;
use std::ops::Bound;

use orchestra_core::shapes::FanOut;
use orchestra_core::{PipelineId, SinkId, SourceId, StageId};
use serde_json::Value as Json;

use crate::cx::Cx;
use crate::diagnostics::{Reported, Span};
use crate::nearest::list;
use crate::plan::{ColumnRef, FoldPlan, JoinWay, Origin, Plan, Shape, StagePlan};
use crate::workflow::{Link, WorkflowTables};

/// Fills in `home`, `within` and what is carried of all stages and sinks, and `linear` of all pipelines; adds the joins.
pub(crate) fn route(plan: &mut Plan, workflow: &WorkflowTables, cx: &mut Cx<'_>) -> Result<(), Reported> {
    let stages = (0..).map(StageId).zip(&workflow.stages[..workflow.n_stages]);
    let routes = stages
        .map(|(id, node)| route_stage(plan, id, Spans { name: node.name.span, links: &node.links }, cx));
    // What stands behind a stage with an error has one, too.
    routes.fold(Ok(()), Result::and)?;
    let sinks = (0..).map(SinkId).zip(&workflow.sinks);
    let routes =
        sinks.map(|(id, node)| route_sink(plan, id, Spans { name: node.name.span, links: &node.links }, cx));
    routes.fold(Ok(()), Result::and)?;
    for at in 0..plan.pipelines.len() {
        plan.pipelines[at].linear = linear(plan, at);
    }
    Ok(())
}

/// The span of the name of a stage or a sink in the file, and the links to what it reads, with their spans.
#[derive(Clone, Copy)]
struct Spans<'a> {
    name: Span,
    links: &'a [Option<Link>],
}

/// What reads: a stage or a sink.
struct Consumer<'a> {
    /// "stage `x`"
    what: String,
    spans: Spans<'a>,
    pipeline: PipelineId,
    stage: Option<StageId>,
    from: Vec<Origin>,
    reads: Vec<ColumnRef>,
}

fn route_stage(plan: &mut Plan, stage: StageId, spans: Spans<'_>, cx: &mut Cx<'_>) -> Result<(), Reported> {
    let at = stage.index();
    let StagePlan { name, pipeline, from, reads, .. } = &plan.stages[at];
    let reader = Consumer {
        what: format!("stage `{name}`"),
        spans,
        pipeline: *pipeline,
        stage: Some(stage),
        from: from.clone(),
        reads: reads.clone(),
    };
    let home = reach(plan, &reader, cx)?;
    let mut enclosing_splits = enclosing_splits(plan, home, &reader.from);
    let this = &mut plan.stages[at];
    this.home = home;
    match (&this.runs, this.fan()) {
        (Shape::Fold(FoldPlan::Reduce(_)), _) => enclosing_splits.clear(),
        (Shape::Fold(_), _) if enclosing_splits.pop().is_none() => {
            return cx
                .error(spans.name, format!("stage `{}` has no parts to bring together", this.name))
                .help("it reads from a stage behind one that makes several rows of one, such as `crop`")
                .fail();
        }
        (_, FanOut::Parts) => enclosing_splits.push(stage),
        (_, FanOut::One | FanOut::AtMostOne) => {}
    }
    this.enclosing_splits = enclosing_splits;
    Ok(())
}

fn route_sink(plan: &mut Plan, sink: SinkId, spans: Spans<'_>, cx: &mut Cx<'_>) -> Result<(), Reported> {
    let this = &plan.sinks[sink.index()];
    if this.is_of_failures {
        return Ok(());
    }
    let reader = Consumer {
        what: format!("sink `{}`", this.name),
        spans,
        pipeline: this.pipeline,
        stage: None,
        from: this.from.clone(),
        reads: this.reads.clone(),
    };
    let home = reach(plan, &reader, cx)?;
    let this = &mut plan.sinks[sink.index()];
    this.home = Some(home);
    if this.ordered && home.stage().is_some_and(|stage| plan.stages[stage.index()].reduce().is_some()) {
        cx.warning(spans.name, format!("`ordered` of sink `{}` has no effect", this.name))
            .help("what is reduced is written in the order of its keys, or of the items");
        this.ordered = false;
    }
    Ok(())
}

impl Consumer<'_> {
    /// Where it names one of these.
    fn span_of(&self, of: &[Origin]) -> Span {
        let named = self.spans.links.iter().flatten().find(|link| of.contains(&link.target));
        named.map_or(self.spans.name, |link| link.span)
    }
}

/// Finds the rows that reach a reader, and has all that it reads carried there.
fn reach(plan: &mut Plan, reader: &Consumer<'_>, cx: &mut Cx<'_>) -> Result<Origin, Reported> {
    reduced_is_read_alone(plan, reader, cx)?;
    let ways = ways(plan, &reader.from);
    for way in &ways {
        one_fan_at_a_time(plan, reader, way, cx)?;
    }
    let home = match &ways[..] {
        [way] => way.home,
        ways => join(plan, reader, ways, cx)?,
    };
    for read in &reader.reads {
        carry(plan, reader, home, *read, cx)?;
    }
    Ok(home)
}

/// What is reduced is there when the items are gone, so no other rows go to the same sink.
fn reduced_is_read_alone(plan: &Plan, reader: &Consumer<'_>, cx: &mut Cx<'_>) -> Result<(), Reported> {
    let is_reduced =
        |origin: &Origin| origin.stage().is_some_and(|stage| plan.stages[stage.index()].reduce().is_some());
    let Some(&reduced) = reader.from.iter().find(|from| is_reduced(from)) else { return Ok(()) };
    if let (None, [_]) = (reader.stage, &reader.from[..]) {
        return Ok(());
    }
    let (what, name) = (&reader.what, plan.name_of(reduced));
    cx.error(reader.span_of(&[reduced]), format!("{what} cannot read from `{name}`"))
        .help("its rows belong to no item: give it a sink of its own")
        .fail()
}

/// Inputs that are read of one row.
struct InputWay {
    home: Origin,
    /// The home itself, or maps in its chain.
    from: Vec<Origin>,
}

/// The ways by which inputs come, each once: what can be carried along to a later row is read there.
fn ways(plan: &Plan, from: &[Origin]) -> Vec<InputWay> {
    let mut ways: Vec<InputWay> = Vec::new();
    for &from in from {
        let home = plan.home_of(from);
        match ways.iter_mut().find(|way| way.home == home) {
            Some(way) => way.from.push(from),
            None => ways.push(InputWay { home, from: vec![from] }),
        }
    }
    let homes: Vec<Origin> = ways.iter().map(|way| way.home).collect();
    for way in &mut ways {
        let is_carried =
            |from: &Origin, home: Origin| home != way.home && carriers(plan, home, *from).is_some();
        way.from.retain(|from| !homes.iter().any(|home| is_carried(from, *home)));
    }
    ways.retain(|way| !way.from.is_empty());
    ways
}

/// What has to carry along a column of `from` so that it is there with the rows of `home`: batches, and joins with the way that has it.
/// `None` where it gets lost on every way.
fn carriers(plan: &Plan, home: Origin, from: Origin) -> Option<Vec<(StageId, usize)>> {
    let mut all = Vec::new();
    find_carriers(plan, home, from, &mut all, &mut BTreeSet::new()).then_some(all)
}

/// As [`carriers`], added to `all`; `lost` are homes from which no way leads on.
fn find_carriers(
    plan: &Plan,
    home: Origin,
    from: Origin,
    all: &mut Vec<(StageId, usize)>,
    lost: &mut BTreeSet<Origin>,
) -> bool {
    let (mut at, made_at, before) = (home, plan.home_of(from), all.len());
    while at != made_at && !lost.contains(&at) {
        let Some(stage) = at.stage().filter(|_| plan.ancestors(at).contains(&from)) else { break };
        match &plan.stages[stage.index()].runs {
            Shape::Batch(_) => all.push((stage, 0)),
            Shape::Fold(FoldPlan::Join { ways }) => {
                for (n_way, way) in (0..).zip(ways) {
                    let n = all.len();
                    all.push((stage, n_way));
                    let has_it = way.from.iter().any(|of| plan.ancestors(*of).contains(&from));
                    if has_it && find_carriers(plan, way.home, from, all, lost) {
                        return true;
                    }
                    all.truncate(n);
                }
                break;
            }
            // A row that is made of many has none of their columns.
            Shape::Fold(FoldPlan::Parts(_) | FoldPlan::Reduce(_)) | Shape::Map(_) => break,
        }
        at = plan.stages[stage.index()].home;
    }
    if at != made_at {
        lost.insert(home);
        all.truncate(before);
    }
    at == made_at
}

/// The splits that a row of `home` is a part of once it has been through the maps `from`, outermost first.
fn enclosing_splits(plan: &Plan, home: Origin, from: &[Origin]) -> Vec<StageId> {
    let here = from.iter().filter(|from| plan.home_of(**from) == home).chain([&home]);
    let splits =
        here.filter_map(|from| from.stage()).map(|stage| &plan.stages[stage.index()].enclosing_splits);
    splits.max_by_key(|splits| splits.len()).cloned().unwrap_or_default()
}

/// The sources whose items come by a way.
fn sources(plan: &Plan, way: &InputWay) -> BTreeSet<Origin> {
    let mut all = plan.ancestors(way.from[0]);
    all.retain(|origin| origin.stage().is_none());
    all
}

/// The pipeline whose end makes the items of a source, if one does.
fn made_by(plan: &Plan, from: Origin) -> Option<&str> {
    let Origin::Source(source) = from else { return None };
    let stage = plan.sources[source.index()].reduced?;
    let before = plan.stages[stage.index()].pipeline;
    Some(&plan.pipelines[before.index()].name)
}

/// Reports two ways of other items, or of other parts.
fn do_not_belong_together<T>(
    plan: &Plan,
    reader: &Consumer<'_>,
    first: &InputWay,
    other: &InputWay,
    cx: &mut Cx<'_>,
) -> Result<T, Reported> {
    let names = |origins: &[Origin]| list(origins.iter().map(|from| plan.name_of(*from)));
    let before = |way: &InputWay| sources(plan, way).into_iter().find_map(|from| made_by(plan, from));
    let of = |way: &InputWay| match enclosing_splits(plan, way.home, &way.from).last() {
        Some(split) => format!("parts that `{}` makes", plan.stages[split.index()].name),
        None => match before(way) {
            Some(before) => format!("made when all items of `{before}` have ended"),
            None => format!("items of {}", names(&sources(plan, way).into_iter().collect::<Vec<_>>())),
        },
    };
    let (a, b) = (names(&first.from), names(&other.from));
    let is_made = before(first).or(before(other)).is_some();
    let help = match (is_made, sources(plan, first) == sources(plan, other)) {
        (true, _) => {
            "a second pass is a file of its own, run by a task: command = [\"orchestra\", \"run\", \"second.toml\"], after = [\"sinks.NAME\"]"
        }
        (false, true) => "what is read together is made of the same items, or of the same parts",
        (false, false) => {
            "what is read together is made of the same items, or of the same parts; a task joins two tables by a key: command = \"join --header -t, a.csv b.csv > {output}/rows.csv\""
        }
    };
    cx.error(reader.span_of(&other.from), format!("the inputs of {} do not belong together", reader.what))
        .label(format!("rows of {a} are {}, and rows of {b} are {}", of(first), of(other)))
        .help(help)
        .fail()
}

/// The stage that waits for the rows of one token by all of these ways; one that does so already, or a new one.
fn join(
    plan: &mut Plan,
    reader: &Consumer<'_>,
    ways: &[InputWay],
    cx: &mut Cx<'_>,
) -> Result<Origin, Reported> {
    let [first, rest @ ..] = ways else { return Err(Reported) };
    let apart = |way: &&InputWay| {
        sources(plan, way) != sources(plan, first)
            || enclosing_splits(plan, way.home, &way.from) != enclosing_splits(plan, first.home, &first.from)
    };
    if let Some(other) = rest.iter().find(apart) {
        return do_not_belong_together(plan, reader, first, other, cx);
    }
    let is_same = |stage: &StagePlan| match &stage.runs {
        Shape::Fold(FoldPlan::Join { ways: known }) => {
            known.len() == ways.len()
                && known.iter().zip(ways).all(|(known, way)| known.home == way.home && known.from == way.from)
        }
        _ => false,
    };
    if let Some(known) = plan.stages.iter().position(is_same) {
        return Ok(Origin::Stage(StageId(known as u16))); // it has an id
    }
    let Ok(id) = u16::try_from(plan.stages.len()).map(StageId) else {
        return cx.error(reader.spans.name, "the workflow has too many stages").fail();
    };
    let from: Vec<Origin> = ways.iter().flat_map(|way| way.from.iter().copied()).collect();
    let name = from.iter().map(|from| plan.name_of(*from)).collect::<Vec<_>>().join("+");
    let joined = |way: &InputWay| JoinWay { home: way.home, from: way.from.clone(), reads: Vec::new() };
    plan.stages.push(StagePlan {
        name,
        pipeline: reader.pipeline,
        kind: "join".to_owned(),
        enclosing_splits: enclosing_splits(plan, first.home, &first.from),
        from,
        reads: Vec::new(),
        gives: Default::default(),
        home: first.home,
        settings: Json::Null,
        details: Vec::new(),
        about: "waits for the rows of all of them".to_owned(),
        runs: Shape::Fold(FoldPlan::Join { ways: ways.iter().map(joined).collect() }),
    });
    let stages = &mut plan.pipelines[reader.pipeline.index()].stages;
    let before = stages.iter().position(|stage| Some(*stage) == reader.stage).unwrap_or(stages.len());
    stages.insert(before, id);
    Ok(Origin::Stage(id))
}

/// Has every batch and join between a column and what reads it carry the column along.
fn carry(
    plan: &mut Plan,
    reader: &Consumer<'_>,
    home: Origin,
    read: ColumnRef,
    cx: &mut Cx<'_>,
) -> Result<(), Reported> {
    let Some(carriers) = carriers(plan, home, read.from) else {
        let (what, giver) = (&reader.what, plan.name_of(read.from));
        let message = format!("{what} cannot read from `{giver}`");
        let span = reader.span_of(&[read.from]);
        return cx
            .error(span, message)
            .label("no row of it leads here")
            .help("a stage that brings parts together makes one row of many, which has the columns that it gives and no others")
            .fail();
    };
    for (carrier, way) in carriers {
        let columns = match &mut plan.stages[carrier.index()].runs {
            Shape::Batch(batch) => &mut batch.passthrough_columns,
            Shape::Fold(FoldPlan::Join { ways }) => &mut ways[way].reads,
            Shape::Fold(FoldPlan::Parts(_) | FoldPlan::Reduce(_)) | Shape::Map(_) => continue,
        };
        if !columns.contains(&read) {
            columns.push(read);
        }
    }
    Ok(())
}

/// The maps of one way run one inside of the other: two of them cannot both split a row, unless one reads what the other gives. Two that
/// drop rows can, in any order.
fn one_fan_at_a_time(
    plan: &Plan,
    reader: &Consumer<'_>,
    way: &InputWay,
    cx: &mut Cx<'_>,
) -> Result<(), Reported> {
    let fan = |origin: &Origin| origin.stage().map_or(FanOut::One, |stage| plan.stages[stage.index()].fan());
    let before = way.from.iter().flat_map(|from| plan.ancestors(*from));
    let fans: BTreeSet<Origin> =
        before.filter(|o| plan.home_of(*o) == way.home && fan(o) != FanOut::One).collect();
    for one in &fans {
        for other in fans.range((Bound::Excluded(*one), Bound::Unbounded)) {
            // First what costs nothing: a chain of filters has as many pairs as its length squared.
            if (fan(one), fan(other)) == (FanOut::AtMostOne, FanOut::AtMostOne)
                || plan.ancestors(*one).contains(other)
                || plan.ancestors(*other).contains(one)
            {
                continue;
            }
            let (one, other) = (plan.name_of(*one), plan.name_of(*other));
            let message = format!(
                "{} reads rows of both `{one}` and `{other}`, which do not belong together",
                reader.what
            );
            return cx
                .error(reader.spans.name, message)
                .help("have one of them read what the other gives")
                .fail();
        }
    }
    Ok(())
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
                let passthrough_columns =
                    stage.batch().is_some_and(|batch| !batch.passthrough_columns.is_empty());
                if stage.fan() != FanOut::One
                    || matches!(stage.runs, Shape::Fold(_))
                    || passthrough_columns
                    || left == 0
                {
                    return None;
                }
                left -= 1;
                at = Origin::Stage(reader);
            }
            _ => break,
        }
    }
    let last = &plan.sinks[sink.index()];
    let is_block = !last.ordered && !last.replies && last.files.is_none();
    (left == 0 && last.from == [at] && is_block).then_some(*sink)
}
