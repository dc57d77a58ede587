//! Which devices are in use: `[devices]`, `--devices` and `models.*.devices` against what the machine has. Places no worker.

use orchestra_core::{Code, DeviceKind};

use crate::cx::Cx;
use crate::diagnostics::{Reported, Span};
use crate::fields::Spanned;
use crate::host::{DeviceView, MachineView};
use crate::keys::DeviceNames;
use crate::nearest::{list, suggestion};
use crate::plan::BatchPlan;
use crate::workflow::ModelNode;

/// A device that work may be placed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Device {
    pub name: String,
    pub kind: DeviceKind,
    /// The product; empty where unknown.
    pub product: String,
    /// Total and free bytes, where known.
    pub memory: Option<(u64, u64)>,
    /// [`DeviceView::mps`]
    pub mps: bool,
    /// The NUMA node that it is plugged into, where known.
    pub node: Option<u32>,
}

impl Device {
    pub fn is_cuda(&self) -> bool {
        matches!(self.kind, DeviceKind::Cuda { .. })
    }

    pub fn uuid(&self) -> Option<&str> {
        match &self.kind {
            DeviceKind::Cuda { uuid } => Some(uuid),
            DeviceKind::Cpu => None,
        }
    }
}

/// Some worker of a stage runs on a GPU.
pub(crate) fn is_on_cuda(batch: &BatchPlan, devices: &[Device]) -> bool {
    batch.workers.iter().any(|worker| devices[worker.device.index()].is_cuda())
}

/// Names of devices in the order of the file, resolved.
#[derive(Debug)]
pub(crate) struct Devices<'a> {
    /// `None` when the machine is not looked at (`--offline`): then every name is believed.
    pub machine: Option<&'a MachineView>,
    /// What stages without `devices` of their own use.
    pub in_use: Vec<Device>,
    /// Whether the user named them.
    pub are_named: bool,
    /// Those of them that lack something which models need, and where they are named.
    lacking: Vec<(Device, Span)>,
    /// Why these, for `orchestra plan`.
    pub reason: String,
}

impl<'a> Devices<'a> {
    /// Resolves `[devices]` or, where given, `--devices`. Unknown names are reported.
    pub fn resolve(
        use_: Option<&[Spanned<String>]>,
        machine: Option<&'a MachineView>,
        cx: &mut Cx<'_>,
    ) -> Result<Self, Reported> {
        let mut devices = Self {
            machine,
            in_use: Vec::new(),
            are_named: use_.is_some(),
            lacking: Vec::new(),
            reason: String::new(),
        };
        let Some(names) = use_ else {
            devices.auto();
            return Ok(devices);
        };
        devices.reason = "devices: as named".into();
        let mut fine = if names.is_empty() { Err(Reported) } else { Ok(()) };
        for name in names {
            match devices.named(name, cx) {
                Ok(device) if devices.in_use.contains(&device) => {
                    let message = format!("device `{}` is named twice", device.name);
                    fine = cx.error(name.span, message).fail();
                }
                Ok(device) => devices.in_use.push(device),
                Err(reported) => fine = Err(reported),
            }
        }
        fine.map(|()| devices)
    }

    fn auto(&mut self) {
        let Some(machine) = self.machine else {
            // What it stands for is not known, so it keeps its name.
            self.reason = "devices: auto, and the machine was not looked at".into();
            self.in_use = vec![Device { name: "auto".into(), ..cpu(0) }];
            return;
        };
        self.in_use = machine.devices.iter().map(cuda).collect();
        if self.in_use.is_empty() {
            let why = machine.no_gpu.clone().unwrap_or_else(|| "none was found".into());
            self.reason = format!("devices: the CPU, because no GPU can be used: {why}");
            self.in_use.push(cpu(0));
        } else {
            self.reason = match machine.devices.len() {
                1 => "devices: auto takes the only GPU".into(),
                n => format!("devices: auto takes all {n} GPUs"),
            };
        }
    }

    /// Those in use for work that runs on no GPU: the cores, whatever is in use.
    fn cores(&self) -> Vec<Device> {
        let cores: Vec<Device> = self.in_use.iter().filter(|device| !device.is_cuda()).cloned().collect();
        if cores.is_empty() { vec![cpu(0)] } else { cores }
    }

    /// Those that a model or a program may run on.
    pub fn of_model(&mut self, model: &ModelNode, cx: &mut Cx<'_>) -> Result<Vec<Device>, Reported> {
        let code = model.code();
        let own = match &model.asked.devices {
            Some(DeviceNames(names)) => self.named_by_model(names, cx)?,
            None if model.known.as_ref().is_some_and(|known| known.on_cores) => self.cores(),
            None if code.is_some() => self.for_code(),
            None => self.in_use.clone(),
        };
        match code {
            Some(Code::Kernel(_)) => self.gpus(model, own, cx),
            Some(_) => Ok(own),
            None => self.for_model(own, cx),
        }
    }

    /// These, for a model; one that it cannot use is reported once.
    fn for_model(&mut self, own: Vec<Device>, cx: &mut Cx<'_>) -> Result<Vec<Device>, Reported> {
        let Some(at) = self.lacking.iter().position(|(device, _)| own.contains(device)) else {
            return Ok(own);
        };
        let (device, span) = self.lacking.remove(at);
        self.not_available(&device.name, span, cx)
    }

    /// Those for code that needs nothing of what models need: GPUs that lack something for models alone will do.
    fn for_code(&self) -> Vec<Device> {
        let all = self.for_commands();
        match all.iter().any(Device::is_cuda) && !self.in_use.iter().any(Device::is_cuda) && !self.are_named {
            true => all.into_iter().filter(Device::is_cuda).collect(),
            false => self.in_use.clone(),
        }
    }

    /// Of these, the GPUs: a kernel runs on nothing else.
    fn gpus(&self, model: &ModelNode, own: Vec<Device>, cx: &mut Cx<'_>) -> Result<Vec<Device>, Reported> {
        let Some(machine) = self.machine else { return Ok(own) };
        let (gpus, others): (Vec<Device>, Vec<Device>) = own.into_iter().partition(Device::is_cuda);
        let is_named = model.asked.devices.is_some() && !others.is_empty();
        if !gpus.is_empty() && !is_named {
            return Ok(gpus);
        }
        let stage = model.program.as_ref().map_or("", |program| &program.stage);
        let why = match (is_named || self.are_named, &machine.no_gpu) {
            (false, Some(why)) => why.clone(),
            (false, None) => "none was found".to_owned(),
            (true, _) => format!("in use: {}", list(others.iter().map(|d| d.name.as_str()))),
        };
        let message = format!("stage `{stage}` launches a CUDA kernel, which runs on GPUs alone");
        cx.error(model.name.span, message)
            .label(why)
            .help("`orchestra doctor` says what this machine lacks for a GPU; `orchestra devices` lists those that can be named in `devices`")
            .unavailable()
            .fail()
    }

    /// The devices that commands get: those in use, and, where the user has named none, GPUs that lack something for models alone.
    pub fn for_commands(&self) -> Vec<Device> {
        let more =
            self.machine.filter(|_| !self.are_named).into_iter().flat_map(|machine| &machine.for_commands);
        self.in_use.iter().cloned().chain(more.map(cuda)).collect()
    }

    fn named_by_model(
        &mut self,
        names: &[Spanned<String>],
        cx: &mut Cx<'_>,
    ) -> Result<Vec<Device>, Reported> {
        let mut found = Vec::new();
        for name in names {
            let device = match name.value.as_str() {
                // Here `cpu` is a name like any other, not one more CPU device.
                "cpu" => cpu(0),
                _ => self.named(name, cx)?,
            };
            if self.are_named && !self.in_use.contains(&device) {
                let help = format!("in use: {}", list(self.in_use.iter().map(|d| d.name.as_str())));
                let message = format!("device `{}` is not among the devices in use", device.name);
                return cx.error(name.span, message).help(help).fail();
            }
            if found.contains(&device) {
                return cx.error(name.span, format!("device `{}` is named twice", device.name)).fail();
            }
            found.push(device);
        }
        Ok(found)
    }

    fn named(&mut self, name: &Spanned<String>, cx: &mut Cx<'_>) -> Result<Device, Reported> {
        let text = name.value.as_str();
        if text == "cpu" {
            return (0..).map(cpu).find(|cpu| !self.in_use.contains(cpu)).ok_or(Reported);
        }
        if let Some(n) = text.strip_prefix("cpu:") {
            if let Ok(n) = n.parse() {
                return Ok(cpu(n));
            }
        } else if text.starts_with("cuda:") || text.starts_with("GPU-") || text.starts_with("MIG-") {
            return self.gpu(name, cx);
        }
        let d = cx.error(name.span, format!("`{text}` names no device"));
        d.help(match text {
            "cuda" | "gpu" => "number the GPU: \"cuda:0\"; \"auto\" takes all of them",
            "auto" => "\"auto\" stands alone: use = \"auto\"",
            _ => "devices are \"cuda:0\", \"cpu\" or the UUID of a GPU (`orchestra devices` lists them)",
        });
        d.fail()
    }

    fn gpu(&mut self, name: &Spanned<String>, cx: &mut Cx<'_>) -> Result<Device, Reported> {
        let text = name.value.as_str();
        let Some(machine) = self.machine else {
            let kind = DeviceKind::Cuda { uuid: String::new() };
            return Ok(Device { name: text.into(), kind, ..cpu(0) });
        };
        let is_meant = |d: &&DeviceView| d.name == text || d.uuid == text;
        if let Some(found) = machine.devices.iter().find(is_meant) {
            return Ok(cuda(found));
        }
        if let Some(found) = machine.for_commands.iter().find(is_meant) {
            self.lacking.push((cuda(found), name.span));
            return Ok(cuda(found));
        }
        self.not_available(text, name.span, cx)
    }

    fn not_available<T>(&self, text: &str, span: Span, cx: &mut Cx<'_>) -> Result<T, Reported> {
        let d = cx.error(span, format!("device `{text}` is not available")).unavailable();
        let Some(machine) = self.machine else { return d.fail() };
        if let Some(why) = &machine.no_gpu {
            d.label(why.clone());
        }
        d.help(match machine.devices.is_empty() {
            true => "`orchestra doctor` checks the driver and the libraries; use = [\"cpu\"] runs on the CPU"
                .to_owned(),
            false => suggestion("GPUs here", text, machine.devices.iter().map(|d| d.name.as_str())),
        });
        d.fail()
    }
}

/// Reports what a model asks for and needs a GPU, where it is to run on other `devices`, too. Whether the file `named` them decides whose fault it
/// is: the file's or the machine's.
pub(crate) fn check_tuning(model: &ModelNode, devices: &[Device], named: bool, cx: &mut Cx<'_>) {
    // Without a look at the machine, `auto` may be anything.
    let Some(other) = devices.iter().find(|device| !device.is_cuda() && device.name != "auto") else {
        return;
    };
    for key in &model.tuning.gpu_keys {
        let (name, other) = (&model.name.value, &other.name);
        let d =
            cx.error(key.span, format!("model `{name}`: `{}` needs a GPU, and `{other}` is none", key.value));
        if named || model.asked.devices.is_some() {
            d.help("set `devices` of the model to GPUs, or leave the key out");
        } else {
            d.help("there is no GPU here (`orchestra doctor` says why); leave the key out to run on the CPU")
                .unavailable();
        }
    }
}

/// Names given by `--devices`, each with its place in the option.
pub(crate) fn from_option(names: &[String], cx: &mut Cx<'_>) -> Option<Vec<Spanned<String>>> {
    let text = cx.diags.add_option("devices", &names.join(","));
    let mut start = 0;
    let mut result = Vec::new();
    for name in names {
        result.push(Spanned::new(name.trim().to_owned(), Span::new(text, start..start + name.len())));
        start += name.len() + 1;
    }
    if result.is_empty() {
        let option = cx.diags.option("devices");
        cx.error(Span::new(text, 0..0), format!("`{option}` names no device"));
    }
    match &result[..] {
        [one] if one.value == "auto" => None,
        _ => Some(result),
    }
}

fn cuda(view: &DeviceView) -> Device {
    Device {
        name: view.name.clone(),
        kind: DeviceKind::Cuda { uuid: view.uuid.clone() },
        product: view.model.clone(),
        memory: Some((view.total, view.free)),
        mps: view.mps,
        node: view.node,
    }
}

fn cpu(n: usize) -> Device {
    let name = if n == 0 { "cpu".into() } else { format!("cpu:{n}") };
    Device { name, kind: DeviceKind::Cpu, product: String::new(), memory: None, mps: false, node: None }
}
