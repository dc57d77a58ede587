//! `orchestra devices`: what this machine has. Changes nothing.

use orchestra_plan::format_bytes;

use crate::Failed;
use crate::args::DevicesArgs;
use crate::exit_code::ExitCode;
use crate::stdout;

/// Lists the devices.
pub fn devices(args: &DevicesArgs) -> Result<ExitCode, Failed> {
    let machine = orchestra::machine();
    if args.json {
        let json = serde_json::to_string_pretty(&machine).map_err(|e| Failed::new(ExitCode::Bug, e))?;
        return stdout::print(&format!("{json}\n"));
    }
    let model = orchestra_machine::cpu_model().unwrap_or_else(|| "unknown model".to_owned());
    let mut text = format!(
        "cpu     {model}, {} cores, {} of {} memory free\n",
        machine.cores,
        format_bytes(machine.memory_available),
        format_bytes(machine.memory_total)
    );
    for (i, gpu) in machine.gpus.iter().enumerate() {
        let extra =
            [gpu.utilization.map(|u| format!("{u} % busy")), gpu.temperature_c.map(|t| format!("{t} °C"))];
        let extra: String = extra.into_iter().flatten().map(|e| format!(", {e}")).collect();
        text += &format!(
            "cuda:{i}  {} ({}), {} of {} memory free{extra}\n",
            gpu.name,
            gpu.uuid,
            format_bytes(gpu.memory_free),
            format_bytes(gpu.memory_total)
        );
    }
    if let Some(why) = &machine.gpu_error {
        text += &format!("GPUs    {why}\n");
    }
    stdout::print(&text)
}
