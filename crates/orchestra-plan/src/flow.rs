//! Where each stage runs and what travels with a row: the stage whose rows reach it, the columns that batches and folds carry along for
//! stages behind them, and whether items of a pipeline need counting. Works on ids; knows no kind.

use orchestra_core::shapes::Fan;
use orchestra_core::{SinkId, SourceId, StageId};

use crate::diagnostics::{Diagnostics, Span};
use crate::plan::{ColumnRef, Origin, Plan, Shape};

/// Fills in `home` and `carries` of all stages and `linear` of all pipelines. `spans` are the places of the stages in the file. `None` after
/// an error.
pub(crate) fn connect(plan: &mut Plan, spans: &[Span], diags: &mut Diagnostics) -> Option<()> {
    let mut levels = vec![0_usize; plan.stages.len()];
    let mut is_fine = true;
    for (stage, span) in (0..).map(StageId).zip(spans) {
        is_fine &= connect_one(plan, stage, &mut levels, *span, diags).is_some();
    }
    if !is_fine {
        return None;
    }
    for at in 0..plan.pipelines.len() {
        plan.pipelines[at].linear = linear(plan, at);
    }
    Some(())
}

fn connect_one(
    plan: &mut Plan,
    stage: StageId,
    levels: &mut [usize],
    span: Span,
    diags: &mut Diagnostics,
) -> Option<()> {
    let at = stage.index();
    plan.stages[at].home = home(plan, stage, span, diags)?;
    levels[at] = level(plan, stage, levels, span, diags)?;
    for read in plan.stages[at].reads.clone() {
        carry(plan, stage, read, span, diags)?;
    }
    one_fan_at_a_time(plan, stage, span, diags)
}

/// The source, batch stage or fold whose rows reach the stage: that of its inputs which all others are made for.
fn home(plan: &Plan, stage: StageId, span: Span, diags: &mut Diagnostics) -> Option<Origin> {
    let from = &plan.stages[stage.index()].from;
    let homes: Vec<Origin> = from.iter().map(|f| plan.home_of(*f)).collect();
    let last = homes.iter().copied().find(|home| {
        let before = plan.ancestors(*home);
        from.iter().zip(&homes).all(|(f, h)| h == home || before.contains(f))
    });
    if last.is_none() {
        let name = &plan.stages[stage.index()].name;
        diags.error(span, format!("the inputs of stage `{name}` come from different places")).help(
            "all inputs are made on one way from a source: of one row, or of what that row was made of",
        );
    }
    last
}

/// How many splits lie before the rows that a stage gives, less the folds.
fn level(
    plan: &Plan,
    stage: StageId,
    levels: &[usize],
    span: Span,
    diags: &mut Diagnostics,
) -> Option<usize> {
    let this = &plan.stages[stage.index()];
    let before = this.from.iter().filter_map(|f| f.stage()).map(|s| levels[s.index()]).max().unwrap_or(0);
    match (&this.runs, this.fan()) {
        (Shape::Fold { .. }, _) if before == 0 => {
            diags
                .error(span, format!("stage `{}` has no parts to bring together", this.name))
                .help("it reads from a stage behind one that makes several rows of one, such as `crop`");
            None
        }
        (Shape::Fold { .. }, _) => Some(before - 1),
        (_, Fan::Parts) => Some(before + 1),
        (_, Fan::One | Fan::AtMostOne) => Some(before),
    }
}

/// Has every batch stage between a column and the stage that reads it carry the column along.
fn carry(
    plan: &mut Plan,
    stage: StageId,
    read: ColumnRef,
    span: Span,
    diags: &mut Diagnostics,
) -> Option<()> {
    let made_at = plan.home_of(read.from);
    let mut at = plan.stages[stage.index()].home;
    while at != made_at {
        let carrier = at.stage().filter(|_| plan.ancestors(at).contains(&read.from));
        let carrier = carrier.map(|carrier| (carrier, &plan.stages[carrier.index()]));
        let (carrier, name, folds) = match carrier {
            Some((id, carrier)) => (id, carrier.name.clone(), matches!(carrier.runs, Shape::Fold { .. })),
            None => {
                let (reader, giver) = (&plan.stages[stage.index()].name, plan.name_of(read.from));
                diags.error(
                    span,
                    format!("stage `{reader}` cannot read from `{giver}`: no row of it leads here"),
                );
                return None;
            }
        };
        if folds {
            let (reader, giver) = (&plan.stages[stage.index()].name, plan.name_of(read.from));
            diags
                .error(span, format!("stage `{reader}` cannot read from `{giver}` behind stage `{name}`"))
                .help(format!(
                    "`{name}` makes one row of many, which has the columns that it gives and no others"
                ));
            return None;
        }
        at = plan.stages[carrier.index()].home;
        match &mut plan.stages[carrier.index()].runs {
            Shape::Batch(infer) if !infer.carries.contains(&read) => infer.carries.push(read),
            _ => {}
        }
    }
    Some(())
}

/// Stages that run one inside of the other cannot both split a row, unless one reads what the other gives.
fn one_fan_at_a_time(plan: &Plan, stage: StageId, span: Span, diags: &mut Diagnostics) -> Option<()> {
    let before = plan.ancestors(Origin::Stage(stage));
    let home = plan.stages[stage.index()].home;
    let fans: Vec<Origin> = before
        .iter()
        .copied()
        .filter(|origin| origin.stage().is_some_and(|s| plan.stages[s.index()].fan() != Fan::One))
        .filter(|origin| plan.home_of(*origin) == home)
        .collect();
    for (at, one) in fans.iter().enumerate() {
        for other in &fans[at + 1..] {
            if !plan.ancestors(*one).contains(other) && !plan.ancestors(*other).contains(one) {
                let name = &plan.stages[stage.index()].name;
                let (one, other) = (plan.name_of(*one), plan.name_of(*other));
                diags.error(
                    span,
                    format!("stage `{name}` reads rows of both `{one}` and `{other}`, which do not belong together"),
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
                let carries = stage.batch().is_some_and(|infer| !infer.carries.is_empty());
                if stage.fan() != Fan::One || matches!(stage.runs, Shape::Fold { .. }) || carries || left == 0
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
    (left == 0 && Origin::Stage(last.from) == at && !last.ordered).then_some(*sink)
}
