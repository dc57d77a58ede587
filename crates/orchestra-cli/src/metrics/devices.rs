//! What devices, workers and this process take, as metrics. The runtime looks at devices and workers once a second; a driver that hangs makes
//! these numbers old, and nothing wait.

use std::collections::BTreeSet;

use orchestra_launch::telemetry::metrics::Reading;
use orchestra_launch::telemetry::metrics::names;
use orchestra_launch::{DeviceId, Gpu, Meter, WorkerId};
use orchestra_machine::processes::{process, process_memory};

pub fn read(meter: &Meter, reading: &mut Reading) {
    let plan = meter.plan();
    // The last look may be from before their end.
    let live: BTreeSet<WorkerId> = meter.stats().workers.all().iter().map(|worker| worker.worker).collect();
    let mut workers = meter.devices().workers();
    workers.retain(|worker| live.contains(&worker.worker));
    for (id, device) in (0..).map(DeviceId).zip(&plan.devices) {
        if let Some(cpu_seconds) = meter.devices().usage(id).worker_cpu_seconds {
            let here = workers.iter().filter(|worker| worker.device == id);
            let memory: u64 = here.map(|worker| worker.resident_bytes).sum();
            reading.add(&names::WORKER_MEMORY, &[&device.spec.name], memory);
            reading.add(&names::WORKER_CPU, &[&device.spec.name], cpu_seconds);
        }
        if let Some(gpu) = meter.devices().latest(id) {
            add(reading, &device.spec.name, &gpu);
        }
    }
    own(reading);
}

fn add(reading: &mut Reading, device: &str, gpu: &Gpu) {
    reading.add(&names::DEVICE_MEMORY, &[device, "free"], gpu.memory_free);
    reading.add(&names::DEVICE_MEMORY, &[device, "used"], gpu.memory_used());
    if let Some(percent) = gpu.utilization {
        reading.add(&names::DEVICE_UTILIZATION, &[device], f64::from(percent) / 100.0);
    }
    if let Some(milliwatts) = gpu.power_mw {
        reading.add(&names::DEVICE_POWER, &[device], f64::from(milliwatts) / 1000.0);
    }
    if let Some(degrees) = gpu.temperature_c {
        reading.add(&names::DEVICE_TEMPERATURE, &[device], u64::from(degrees));
    }
}

fn own(reading: &mut Reading) {
    let me = std::process::id();
    if let Some(memory) = process_memory(me) {
        reading.add(&names::PROCESS_MEMORY, &["resident"], memory.resident);
        reading.add(&names::PROCESS_MEMORY, &["private"], memory.private);
    }
    if let Some(process) = process(me) {
        reading.add(&names::PROCESS_CPU, &[], process.cpu_time.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use orchestra_launch::telemetry::metrics::MetricValue;

    use super::*;

    #[test]
    fn a_gpu_has_the_metrics_that_its_driver_tells() {
        let gpu = Gpu {
            memory_total: 100,
            memory_free: 30,
            utilization: Some(25),
            power_mw: Some(70_500),
            ..Gpu::default()
        };
        let mut reading = Reading::new();
        add(&mut reading, "cuda:0", &gpu);
        let found: Vec<_> = reading
            .families()
            .flat_map(|(i, points)| points.iter().map(move |p| (i.name, p.labels.join(" "), p.value.clone())))
            .collect();
        assert_eq!(
            found,
            [
                ("orchestra.device.utilization", "cuda:0".to_owned(), MetricValue::Number(0.25)),
                ("orchestra.device.memory", "cuda:0 free".to_owned(), MetricValue::Number(30.0)),
                ("orchestra.device.memory", "cuda:0 used".to_owned(), MetricValue::Number(70.0)),
                ("orchestra.device.power", "cuda:0".to_owned(), MetricValue::Number(70.5)),
            ]
        );
    }

    #[test]
    fn this_process_has_memory_and_time() {
        let mut reading = Reading::new();
        own(&mut reading);
        let names: Vec<_> = reading.families().map(|(i, points)| (i.name, points.len())).collect();
        assert_eq!(names, [(names::PROCESS_MEMORY.name, 2), (names::PROCESS_CPU.name, 1)]);
    }
}
