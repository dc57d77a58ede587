//! The counters of the runtime as metrics. Reads them when they are asked for, and counts nothing itself.

use std::time::Duration;

use orchestra_launch::plan::BatchPlan;
use orchestra_launch::telemetry::metrics::names;
use orchestra_launch::telemetry::metrics::{Buckets, Reading};
use orchestra_launch::{
    EndClass, ExitKind, FailureKind, HistogramReading, LeaveReason, Meter, PipelineId, StageId, TaskStanding,
};

pub fn read(meter: &Meter, reading: &mut Reading) {
    RunReading { meter, reading }.read();
}

struct RunReading<'a> {
    meter: &'a Meter,
    reading: &'a mut Reading,
}

impl RunReading<'_> {
    fn read(mut self) {
        let plan = self.meter.plan();
        self.reading.add(&names::RUN_INFO, &[&plan.name], 1_u64);
        self.reading.add(&names::RUN_START, &[], self.meter.started().as_secs_f64());
        self.loaders();
        for pipeline in 0..plan.pipelines.len() {
            self.pipeline(pipeline);
        }
        for (id, stage) in (0..).map(StageId).zip(&plan.stages) {
            self.stage(id);
            if let Some(batch) = stage.batch() {
                self.batches(id, batch);
            }
        }
        for device in 0..plan.devices.len() {
            self.device(device);
        }
        if !plan.tasks.is_empty() {
            self.tasks();
        }
    }

    fn tasks(&mut self) {
        let (plan, board) = (&self.meter.plan().tasks, self.meter.tasks());
        let tasks = board.reports(plan, Duration::ZERO);
        for standing in TaskStanding::ALL {
            let n = tasks.iter().filter(|task| task.state == standing).count() as u64;
            self.reading.add(&names::TASKS, &[standing.as_str()], n);
        }
        for class in EndClass::ALL {
            self.reading.add(&names::TASK_ATTEMPTS, &[class.as_str()], board.ends(class));
        }
        let running = plan.tasks.iter().zip(&tasks).filter(|(_, task)| task.state == TaskStanding::Running);
        for (plan, task) in running {
            for (metric, values) in &task.metrics {
                let labels = [&plan.name[..], &task.slot.to_string(), metric];
                self.reading.add(&names::TASK_METRIC, &labels, values.last);
            }
        }
    }

    fn loaders(&mut self) {
        let stats = self.meter.stats();
        for (state, time) in [
            ("loading", stats.loading.time()),
            ("waiting_for_row", stats.waiting_for_row.time()),
            ("waiting_for_sinks", stats.waiting_for_sinks.time()),
        ] {
            self.reading.add(&names::LOADER_TIME, &[state], time.as_secs_f64());
        }
    }

    fn pipeline(&mut self, index: usize) {
        let stats = &self.meter.stats().pipelines[index];
        let labels = [self.meter.plan().pipelines[index].name.as_str()];
        let extent = self.meter.stats().extent_of(PipelineId(index as u16));
        for (instrument, value) in [
            (&names::ITEMS, extent.listed()),
            (&names::ITEMS_LISTING, u64::from(extent.known().is_none())),
            (&names::ITEMS_RESUMED, stats.resumed.get()),
            (&names::ITEMS_STARTED, stats.handed.get()),
            (&names::ITEMS_DONE, stats.done.get()),
            (&names::ITEMS_IN_FLIGHT, stats.in_flight()),
            (&names::READ_BYTES, stats.bytes_read.get()),
        ] {
            self.reading.add(instrument, &labels, value);
        }
    }

    fn stage(&mut self, id: StageId) {
        let plan = self.meter.plan();
        let (plan, stats) = (&plan.stages[id.index()], self.meter.stats().stage(id));
        let pipeline = self.meter.plan().pipelines[plan.pipeline.index()].name.as_str();
        let labels = [pipeline, &plan.name];
        self.reading.add(&names::STAGE_IN, &labels, stats.entered.get());
        self.reading.add(&names::STAGE_OUT, &labels, stats.left.get());
        self.reading.add(&names::STAGE_BUSY, &labels, stats.busy.time().as_secs_f64());
        for kind in FailureKind::ALL {
            let labels = [pipeline, &plan.name, kind.as_str()];
            self.reading.add(&names::ITEMS_FAILED, &labels, stats.failures(kind).get());
        }
    }

    fn batches(&mut self, id: StageId, batch: &BatchPlan) {
        let plan = self.meter.plan();
        let (stage, stats) = (&plan.stages[id.index()], self.meter.stats().stage(id));
        let pipeline = plan.pipelines[stage.pipeline.index()].name.as_str();
        let model = plan.models[batch.model.index()].name.as_str();
        for reason in LeaveReason::ALL {
            let labels = [pipeline, &stage.name, model, reason.as_str()];
            self.reading.add(&names::BATCHES, &labels, stats.reason(reason).get());
        }
        let labels = [pipeline, &stage.name, model];
        if let Some(sizes) = &stats.batch_size {
            self.reading.add(&names::BATCH_SIZE, &labels, items(&sizes.read()));
        }
        if let Some(times) = &stats.queue_time {
            self.reading.add(&names::BATCH_QUEUE_TIME, &labels, seconds(&times.read()));
        }
        for (device, on) in plan.devices.iter().zip(&stats.on).filter(|(_, on)| on.is_planned) {
            let labels = [pipeline, &stage.name, model, &device.spec.name];
            self.reading.add(&names::BATCH_RUN_TIME, &labels, seconds(&on.run_time.read()));
            self.reading.add(&names::BATCH_CEILING, &labels, on.ceiling.get());
        }
        let in_use = stats.slots_in_use.get();
        let free = (batch.layout.slots as u64).saturating_sub(in_use);
        for (state, n) in [("in_use", in_use), ("free", free)] {
            self.reading.add(&names::SLOTS, &[pipeline, &stage.name, state], n);
        }
    }

    fn device(&mut self, index: usize) {
        let (plan, stats) = (self.meter.plan(), &self.meter.stats().devices[index]);
        let device = plan.devices[index].spec.name.as_str();
        for (state, n) in
            [("starting", stats.starting()), ("serving", stats.ready.get()), ("ending", stats.ending.get())]
        {
            self.reading.add(&names::WORKERS, &[device, state], n);
        }
        self.reading.add(&names::WORKERS_PLANNED, &[device, "serving"], stats.workers());
        for (instrument, value) in [
            (&names::WORKER_STARTS, &stats.starts),
            (&names::WORKER_RESTARTS, &stats.restarts),
            (&names::DEVICE_BATCHES, &stats.batches),
            (&names::DEVICE_ITEMS, &stats.rows),
        ] {
            self.reading.add(instrument, &[device], value.get());
        }
        self.reading.add(&names::DEVICE_BUSY, &[device], stats.busy.time().as_secs_f64());
        for kind in ExitKind::ALL {
            self.reading.add(&names::WORKER_EXITS, &[device, kind.as_str()], stats.exits(kind).get());
        }
    }
}

fn items(reading: &HistogramReading) -> Buckets {
    buckets(reading, 1.0)
}

fn seconds(reading: &HistogramReading) -> Buckets {
    buckets(reading, Duration::from_secs(1).as_nanos() as f64)
}

fn buckets(reading: &HistogramReading, unit: f64) -> Buckets {
    Buckets {
        bounds: reading.bounds.iter().map(|bound| *bound as f64 / unit).collect(),
        counts: reading.counts.clone(),
        sum: reading.sum as f64 / unit,
    }
}
