//! A plan in words, for `orchestra plan`. Decides nothing and prints nothing.

use std::fmt::{self, Write};

use orchestra_core::data::{Column, ColumnType, Schema};
use orchestra_core::tasks::{Demand, Gpus, WHOLE};
use orchestra_core::{ConvSearch, DeviceId, Provider, SessionTuning};

use crate::bytes::format_bytes;
use crate::iteration;
use crate::plan::{
    BatchPlan, ColumnRef, DeviceMemory, DevicePlan, FoldPlan, KnownItems, MaxFailed, Origin, PipelinePlan,
    Plan, Shape, SourcePlan, StagePlan, TasksPlan, WorkerPlan,
};
use crate::worker_placement::plural;

/// What will run where, and why, as text of several lines.
pub fn describe(plan: &Plan) -> String {
    let mut text = String::new();
    write_plan(&mut text, plan).expect("a string takes any text");
    text
}

fn write_plan(out: &mut String, plan: &Plan) -> fmt::Result {
    writeln!(out, "workflow  {} ({})", plan.name, plan.file.display())?;
    writeln!(out, "output    {}", plan.output.display())?;
    if !plan.tasks.is_empty() {
        write_tasks(out, &plan.tasks)?;
        if let Some(late) = &plan.deferred {
            writeln!(out, "\nlater\n  {}", late.in_words())?;
        }
        if plan.pipelines.is_empty() {
            return Ok(());
        }
        writeln!(out)?;
    }
    let loaders = plan.loader_threads;
    let on = plan
        .loader_affinity
        .as_ref()
        .map_or(String::new(), |affinity| format!(" on NUMA node {}", affinity.node));
    writeln!(out, "loaders   {loaders} {}{on}", if loaders == 1 { "process" } else { "processes" })?;
    writeln!(out, "\ndevices")?;
    if plan.devices.is_empty() {
        writeln!(out, "  none: no stage runs a model")?;
    }
    let devices = plan.devices.iter().map(|device| {
        let of_memory = device.memory.map_or(String::new(), |m| {
            let (free, total, headroom) =
                (format_bytes(m.free), format_bytes(m.total), format_bytes(m.headroom));
            format!("{free} free of {total}, {headroom} kept as headroom")
        });
        let affinity = device
            .cpu_affinity
            .as_ref()
            .map_or(String::new(), |affinity| format!(", on NUMA node {}", affinity.node));
        format!("  {:<10}{of_memory}", device.spec.name).trim_end().to_owned() + &affinity
    });
    write_merged(out, plan, devices)?;
    write_memory(out, plan)?;
    plan.pipelines.iter().try_for_each(|pipeline| write_pipeline(out, plan, pipeline))?;
    for sink in plan.sinks.iter().filter(|sink| sink.is_of_failures) {
        writeln!(out, "\nsink {} <- failures of all pipelines: {}", sink.name, sink.place().display())?;
    }
    let slots: usize = plan.batch_stages().map(|(_, i)| i.layout.total_bytes()).sum();
    writeln!(out, "\nmemory of all batch slots: {}", format_bytes(slots as u64))?;
    writeln!(out, "\nwhy")?;
    write_merged(out, plan, plan.reasons.iter().map(|reason| format!("  {reason}")))
}

fn write_pipeline(out: &mut String, plan: &Plan, pipeline: &PipelinePlan) -> fmt::Result {
    let (name, window) = (&pipeline.name, plural(pipeline.window, "item"));
    let before: Vec<&str> = pipeline.after.iter().map(|id| &*plan.pipelines[id.index()].name).collect();
    let after = if before.is_empty() { String::new() } else { format!(", after `{}`", before.join("`, `")) };
    writeln!(out, "\npipeline `{name}`{after}: at most {window} between source and sink")?;
    write_limits(out, plan, pipeline)?;
    for id in &pipeline.sources {
        let source = &plan.sources[id.index()];
        writeln!(out, "  source {}: {}", source.name, items_in_words(source))?;
    }
    for id in &pipeline.stages {
        write_stage(out, plan, id.index())?;
    }
    for id in &pipeline.sinks {
        let sink = &plan.sinks[id.index()];
        let order = if sink.ordered { ", in the order of the source" } else { "" };
        let from = names(plan, &sink.from);
        writeln!(out, "  sink {} <- {from}: {}{order}", sink.name, sink.place_in_words())?;
    }
    Ok(())
}

/// What is said of one device after the other, where all say the same only once: `cuda:0 to cuda:7: 4 workers`.
fn write_merged(out: &mut String, plan: &Plan, said: impl Iterator<Item = String>) -> fmt::Result {
    let mut said = said.peekable();
    while let Some(first) = said.next() {
        let Some((before, name, after)) = around_device(&first, plan) else {
            writeln!(out, "{first}")?;
            continue;
        };
        let is_same = |next: &String| {
            around_device(next, plan).is_some_and(|(b, other, a)| (b, a) == (before, after) && other != name)
        };
        let last = std::iter::from_fn(|| said.next_if(is_same)).last();
        match last.as_deref().and_then(|last| around_device(last, plan)) {
            Some((_, last, _)) => writeln!(out, "{before}{name} to {last}{after}")?,
            None => writeln!(out, "{first}")?,
        }
    }
    Ok(())
}

/// The first device that is named in a text, and what stands around it.
fn around_device<'t>(text: &'t str, plan: &Plan) -> Option<(&'t str, &'t str, &'t str)> {
    let names = plan.devices.iter().map(|device| &*device.spec.name);
    let places = names.filter_map(|name| text.find(name).map(|at| (at, name.len())));
    let (at, length) = places.min_by_key(|(at, length)| (*at, std::cmp::Reverse(*length)))?;
    Some((&text[..at], &text[at..at + length], &text[at + length..]))
}

/// How many items a source has, as far as that is known, and what each is: "1,000,000 items, each one number (`x`, f32)".
pub fn items_in_words(source: &SourcePlan) -> String {
    let items = |n: u64| format!("{} {}", with_commas(n), if n == 1 { "item" } else { "items" });
    let each = row_in_words(&source.gives);
    match source.n_items {
        Some(KnownItems::All(n)) => format!("{}, each {each}", items(n)),
        Some(KnownItems::OfFirst(n)) => format!("{} in its first file, each {each}", items(n)),
        None if source.request.is_some() => format!("requests, each {each}"),
        None if source.reduced.is_some() => format!("the rows of stage `{}`, each {each}", source.name),
        None if let Some(script) = &source.lister => {
            format!("the rows of `{}`, each {each}", script.script.display())
        }
        None => format!("each {each}"),
    }
}

fn row_in_words(row: &Schema) -> String {
    let ty = |column: &Column| match column.ty.tensor() {
        Some(tensor) if tensor.row.is_empty() => tensor.dtype.to_string(),
        Some(tensor) => {
            let sides: Vec<String> =
                tensor.row.iter().map(|dim| dim.fixed().map_or("?".to_owned(), |n| n.to_string())).collect();
            format!("{}[{}]", tensor.dtype, sides.join(", "))
        }
        None => column.ty.to_string(),
    };
    let columns: Vec<&Column> = row.whole().collect();
    match &columns[..] {
        [one] if one.ty.tensor().is_some_and(|tensor| tensor.row.is_empty()) => {
            format!("one number (`{}`, {})", one.name, ty(one))
        }
        [one] if one.ty.tensor().is_none() => format!("a {} (`{}`)", ty(one), one.name),
        columns => columns.iter().map(|c| format!("`{}` {}", c.name, ty(c))).collect::<Vec<_>>().join(", "),
    }
}

fn with_commas(n: u64) -> String {
    let digits = n.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    groups.map(|group| String::from_utf8_lossy(group).into_owned()).collect::<Vec<_>>().join(",")
}

/// What `[pipelines.NAME]` says.
fn write_limits(out: &mut String, plan: &Plan, pipeline: &PipelinePlan) -> fmt::Result {
    let (own, of_file) = (&pipeline.limits, &plan.limits);
    let mut said = Vec::new();
    match own.max_failed {
        Some(MaxFailed::Items(n)) => said.push(format!("stopped beyond {n} failed")),
        Some(MaxFailed::Share(share)) => said.push(format!("stopped beyond {}% failed", share * 100.0)),
        None => {}
    }
    match own.first_failed {
        n if n == of_file.first_failed => {}
        0 => said.push("not stopped where the first items fail".to_owned()),
        n => said.push(format!("stopped where the first {n} fail")),
    }
    for (key, own, of_file) in [
        ("item_timeout", own.item_timeout, of_file.item_timeout),
        ("batch_timeout", own.batch_timeout, of_file.batch_timeout),
        ("load_timeout", own.load_timeout, of_file.load_timeout),
    ] {
        if own != of_file {
            said.push(format!("{key} {}", humantime::format_duration(own)));
        }
    }
    if said.is_empty() { Ok(()) } else { writeln!(out, "  limits: {}", said.join(", ")) }
}

/// A line for each table, and what its tasks run on.
fn write_tasks(out: &mut String, plan: &TasksPlan) -> fmt::Result {
    writeln!(out, "\ntasks")?;
    let mut rest = &plan.tasks[..];
    while let Some(first) = rest.first() {
        let (of_table, others) =
            rest.split_at(rest.iter().take_while(|task| task.name == first.name).count());
        let Demand { gpus, cpu, .. } = first.demand;
        let thousandths = |n: u32| f64::from(n) / f64::from(WHOLE);
        let on = match gpus {
            Gpus::None | Gpus::Instead if cpu == WHOLE => "a slot of the CPU".to_owned(),
            Gpus::None | Gpus::Instead => format!("{} slots of the CPU", thousandths(cpu)),
            Gpus::Share(share) => format!("{} of a GPU", thousandths(share)),
            Gpus::Count(1) => "a GPU".to_owned(),
            Gpus::Count(count) => format!("{count} GPUs"),
            Gpus::This(gpu) => plan.gpus[gpu].name.clone(),
        };
        let each = if of_table.len() > 1 { " each" } else { "" };
        writeln!(out, "  {}: {}, {on}{each}", first.name, plural(of_table.len(), "command"))?;
        rest = others;
    }
    for gpu in &plan.gpus {
        match gpu.memory {
            Some(memory) => write!(out, "  {:<10}{} for commands", gpu.name, format_bytes(memory))?,
            None => write!(out, "  {:<10}for commands; its memory is not known", gpu.name)?,
        }
        match gpu.of_models {
            0 => writeln!(out)?,
            bytes => writeln!(out, ", {} of it taken while models are there", format_bytes(bytes))?,
        }
    }
    writeln!(out, "  {} of the CPU", plural(plan.cpu_slots, "slot"))
}

/// The sum for each GPU whose memory is known: what there is, what each model takes of it, and what is left.
fn write_memory(out: &mut String, plan: &Plan) -> fmt::Result {
    let gpus = (0..).map(DeviceId).zip(&plan.devices).filter_map(|(id, d)| Some((id, d, d.memory?)));
    let sums: Vec<String> = gpus.map(|(id, device, memory)| sum_of(plan, id, device, &memory)).collect();
    if !sums.is_empty() {
        writeln!(out, "\nmemory of the GPUs")?;
    }
    write_merged(out, plan, sums.into_iter())
}

fn sum_of(plan: &Plan, id: DeviceId, device: &DevicePlan, memory: &DeviceMemory) -> String {
    let room = memory.free.saturating_sub(memory.headroom).saturating_sub(memory.of_shares);
    let of_shares = match memory.of_shares {
        0 => String::new(),
        bytes => format!(" - {} for commands", format_bytes(bytes)),
    };
    let mut lines = vec![format!(
        "  {:<10}{} free - {} headroom{of_shares} = {} for workers",
        device.spec.name,
        format_bytes(memory.free),
        format_bytes(memory.headroom),
        format_bytes(room)
    )];
    let mut left = Some(room);
    for (stage, batch) in plan.batch_stages() {
        for worker in batch.workers.iter().filter(|w| w.device == id) {
            let of_each = worker.memory.map(|m| (m, m.saturating_mul(worker.count as u64)));
            let (stage, who) = (&plan.stages[stage.index()].name, plural(worker.count, "worker"));
            lines.push(match of_each {
                Some((m, sum)) => {
                    let (each, sum) = (format_bytes(m), format_bytes(sum));
                    format!("            {stage}: {who} x {each} (declared) = {sum}")
                }
                None => format!(
                    "            {stage}: {who}; what one takes is measured in the run, unless `memory` of the model says it"
                ),
            });
            left = left.zip(of_each).map(|(left, (_, sum))| left.saturating_sub(sum));
        }
    }
    lines.extend(left.map(|left| format!("            {} left beyond the headroom", format_bytes(left))));
    lines.join("\n")
}

fn write_stage(out: &mut String, plan: &Plan, index: usize) -> fmt::Result {
    let stage = &plan.stages[index];
    match &stage.runs {
        Shape::Batch(batch) => write_batch(out, plan, stage, batch),
        Shape::Map(_) | Shape::Fold(_) => {
            let from = names(plan, &stage.from);
            for (n, line) in stage.about.lines().enumerate() {
                match n {
                    0 => writeln!(out, "  {} {} <- {from}: {line}", stage.kind, stage.name)?,
                    _ => writeln!(out, "    {line}")?,
                }
            }
            let Shape::Fold(FoldPlan::Join { ways }) = &stage.runs else { return Ok(()) };
            let carried: Vec<ColumnRef> = ways.iter().flat_map(|way| way.reads.clone()).collect();
            write_carried(out, plan, &carried)
        }
    }
}

/// What a stage or a sink reads from.
fn names(plan: &Plan, from: &[Origin]) -> String {
    from.iter().map(|from| plan.name_of(*from)).collect::<Vec<_>>().join(", ")
}

fn write_carried(out: &mut String, plan: &Plan, columns: &[ColumnRef]) -> fmt::Result {
    if columns.is_empty() {
        return Ok(());
    }
    let carried = columns.iter().map(|read| {
        let column = &plan.column(*read).name;
        format!("`{}.{column}`", plan.name_of(read.from))
    });
    writeln!(out, "    carries along: {}", carried.collect::<Vec<_>>().join(", "))
}

fn write_batch(out: &mut String, plan: &Plan, stage: &StagePlan, batch: &BatchPlan) -> fmt::Result {
    let model = &plan.models[batch.model.index()];
    let show = |column: &Column| {
        let Some(tensor) = column.ty.tensor() else { return format!("{} {}", column.name, column.ty) };
        let of = if matches!(column.ty, ColumnType::Largest { .. }) { "the largest of " } else { "" };
        format!("{of}{} {tensor}", tensor.name)
    };
    let outputs: Vec<String> = stage.gives.whole().map(show).collect();
    writeln!(
        out,
        "  {} {} <- {}: model {}, gives {}",
        stage.kind,
        stage.name,
        names(plan, &stage.from),
        model.name,
        outputs.join(", ")
    )?;
    if let Some(iteration) = &batch.iteration {
        writeln!(out, "    loop: {}", iteration::described(iteration, batch))?;
    }
    if batch.drops {
        writeln!(out, "    may drop rows")?;
    }
    let values: Vec<String> = batch.values.iter().map(|c| format!("`{}` {}", c.name, c.ty)).collect();
    if !values.is_empty() {
        writeln!(out, "    beside its slots: {}", values.join(", "))?;
    }
    write_carried(out, plan, &batch.passthrough_columns[batch.values.len()..])?;
    let rows = match batch.fixed_batch {
        Some(n) => format!("always {n} (smaller ones are padded)"),
        None => match batch.grows_from {
            Some(first) => format!("up to {first}, where they are quick up to {}", batch.max_batch),
            None => format!("up to {}", batch.max_batch),
        },
    };
    let wait = humantime::format_duration(batch.wait);
    writeln!(out, "    batch: {rows}, the oldest item waits at most {wait}")?;
    if let Some(size) = batch.padded_to {
        writeln!(out, "    smaller batches are padded to {size}")?;
    }
    write_tuning(out, &model.tuning)?;
    write_merged(out, plan, batch.workers.iter().map(|workers| on_device(plan, workers, batch.streams)))?;
    let layout = &batch.layout;
    writeln!(
        out,
        "    slots: {} of {}, {} in all",
        layout.slots,
        plural(layout.slot_rows, "row"),
        format_bytes(layout.total_bytes() as u64)
    )
}

fn on_device(plan: &Plan, workers: &WorkerPlan, streams: usize) -> String {
    let device = &plan.devices[workers.device.index()];
    let streams = match streams {
        1 => String::new(),
        n => format!(", with {n} batches at once in each"),
    };
    let growth = workers.growth.map_or(String::new(), |growth| {
        let when = match device.cores {
            0 => "once it is known that they fit",
            _ => "where it has work and cores are idle",
        };
        format!(" at first, up to {} {when}", growth.most)
    });
    let (count, threads) = (plural(workers.count, "worker"), plural(workers.threads, "thread"));
    format!("    {}: {count} of {threads}{streams}{growth}", device.spec.name)
}

fn write_tuning(out: &mut String, tuning: &SessionTuning) -> fmt::Result {
    if let Provider::TensorRt(tensorrt) = &tuning.provider {
        let precision = if tensorrt.fp16 { " in f16" } else { "" };
        let kept = tensorrt.engines.as_ref().map(|folder| format!("kept in {}", folder.display()));
        let kept = kept.unwrap_or_else(|| "not kept".to_owned());
        writeln!(out, "    provider: TensorRT{precision}, and CUDA for the rest; engines are {kept}")?;
    }
    if tuning.conv_search == ConvSearch::Exhaustive {
        writeln!(out, "    cuDNN searches long for the kernels of each shape that is new")?;
    }
    Ok(())
}
