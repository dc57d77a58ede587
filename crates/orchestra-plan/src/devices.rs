//! Which devices are in use: `[devices]`, `--devices` and `models.*.devices` against what the machine has. Places no worker.

use orchestra_core::DeviceKind;

use crate::diagnostics::{Diagnostics, Span};
use crate::fields::At;
use crate::host::MachineView;
use crate::nearest::{list, suggestion};
use crate::raw::RawModel;

/// A device that work may be placed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Device {
    pub name: String,
    pub kind: DeviceKind,
    /// The product; empty where unknown.
    pub product: String,
    /// Total and free bytes, where known.
    pub memory: Option<(u64, u64)>,
    /// [`DeviceView::mps`](crate::host::DeviceView::mps)
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

/// Names of devices in the order of the file, resolved.
#[derive(Debug)]
pub(crate) struct Devices<'a> {
    /// `None` when the machine is not looked at (`--offline`): then every name is believed.
    machine: Option<&'a MachineView>,
    /// What stages without `devices` of their own use.
    pub in_use: Vec<Device>,
    /// Whether the user named them.
    named: bool,
    /// Those of them that lack something which models need, and where they are named.
    lacking: Vec<(Device, Span)>,
    /// Why these, for `orchestra plan`.
    pub reason: String,
}

impl<'a> Devices<'a> {
    /// Resolves `[devices]` or, where given, `--devices`. Unknown names are reported; `None` if no device is left.
    pub fn resolve(
        use_: Option<&[At<String>]>,
        machine: Option<&'a MachineView>,
        diags: &mut Diagnostics,
    ) -> Option<Self> {
        let mut devices = Self {
            machine,
            in_use: Vec::new(),
            named: use_.is_some(),
            lacking: Vec::new(),
            reason: String::new(),
        };
        match use_ {
            Some(names) => {
                let mut fine = true;
                for name in names {
                    let Some(device) = devices.named(name, diags) else {
                        fine = false;
                        continue;
                    };
                    if devices.in_use.contains(&device) {
                        fine = false;
                        diags.error(name.span, format!("device `{}` is named twice", device.name));
                    } else {
                        devices.in_use.push(device);
                    }
                }
                if !fine {
                    return None;
                }
                devices.reason = "devices: as named".into();
            }
            None => devices.auto(),
        }
        (!devices.in_use.is_empty()).then_some(devices)
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
    pub fn cores(&self) -> Vec<Device> {
        let cores: Vec<Device> = self.in_use.iter().filter(|device| !device.is_cuda()).cloned().collect();
        if cores.is_empty() { vec![cpu(0)] } else { cores }
    }

    /// These, for a model; `None` where it cannot use one that is named, which is reported once.
    pub fn for_model(&mut self, own: Vec<Device>, diags: &mut Diagnostics) -> Option<Vec<Device>> {
        let Some(at) = self.lacking.iter().position(|(device, _)| own.contains(device)) else {
            return Some(own);
        };
        let (device, span) = self.lacking.remove(at);
        self.not_available(&device.name, span, diags);
        None
    }

    /// Those for code that needs nothing of what models need: GPUs that lack something for models alone will do.
    pub fn for_code(&self) -> Vec<Device> {
        let all = self.for_commands();
        match all.iter().any(Device::is_cuda) && !self.in_use.iter().any(Device::is_cuda) && !self.named {
            true => all.into_iter().filter(Device::is_cuda).collect(),
            false => self.in_use.clone(),
        }
    }

    /// Of these, the GPUs: a kernel runs on nothing else. `None` where there is none, or one that the stage names is none, which is reported.
    pub fn gpus(&self, model: &RawModel, own: Vec<Device>, diags: &mut Diagnostics) -> Option<Vec<Device>> {
        let machine = self.machine?;
        let (gpus, others): (Vec<Device>, Vec<Device>) = own.into_iter().partition(Device::is_cuda);
        let is_named = model.devices.is_some() && !others.is_empty();
        if !gpus.is_empty() && !is_named {
            return Some(gpus);
        }
        let stage = model.name.value.split('/').next().unwrap_or_default();
        let why = match (is_named || self.named, &machine.no_gpu) {
            (false, Some(why)) => why.clone(),
            (false, None) => "none was found".to_owned(),
            (true, _) => format!("in use: {}", list(others.iter().map(|d| d.name.as_str()))),
        };
        diags
            .error(model.name.span, format!("stage `{stage}` launches a CUDA kernel, which runs on GPUs alone"))
            .label(why)
            .help("`orchestra doctor` says what this machine lacks for a GPU; `orchestra devices` lists those that can be named in `devices`")
            .unavailable();
        None
    }

    /// The devices that commands get: those in use, and, where the user has named none, GPUs that lack something for models alone.
    pub fn for_commands(&self) -> Vec<Device> {
        let more = self.machine.filter(|_| !self.named).into_iter().flat_map(|machine| &machine.for_commands);
        self.in_use.iter().cloned().chain(more.map(cuda)).collect()
    }

    /// The devices that a model names itself.
    pub fn of_model(&mut self, names: &[At<String>], diags: &mut Diagnostics) -> Option<Vec<Device>> {
        let mut found = Vec::new();
        for name in names {
            let device = match name.value.as_str() {
                // Here `cpu` is a name like any other, not one more CPU device.
                "cpu" => cpu(0),
                _ => self.named(name, diags)?,
            };
            if self.named && !self.in_use.contains(&device) {
                diags
                    .error(name.span, format!("device `{}` is not among the devices in use", device.name))
                    .help(format!("in use: {}", list(self.in_use.iter().map(|d| d.name.as_str()))));
                return None;
            }
            if found.contains(&device) {
                diags.error(name.span, format!("device `{}` is named twice", device.name));
                return None;
            }
            found.push(device);
        }
        Some(found)
    }

    fn named(&mut self, name: &At<String>, diags: &mut Diagnostics) -> Option<Device> {
        let text = name.value.as_str();
        if text == "cpu" {
            let free = (0..).find(|n| !self.in_use.contains(&cpu(*n)));
            return free.map(cpu);
        }
        if let Some(n) = text.strip_prefix("cpu:") {
            if let Ok(n) = n.parse() {
                return Some(cpu(n));
            }
        } else if text.starts_with("cuda:") || text.starts_with("GPU-") || text.starts_with("MIG-") {
            return self.gpu(name, diags);
        }
        let d = diags.error(name.span, format!("`{text}` names no device"));
        match text {
            "cuda" | "gpu" => d.help("number the GPU: \"cuda:0\"; \"auto\" takes all of them"),
            "auto" => d.help("\"auto\" stands alone: use = \"auto\""),
            _ => d.help(
                "devices are \"cuda:0\", \"cpu\" or the UUID of a GPU (`orchestra devices` lists them)",
            ),
        };
        None
    }

    fn gpu(&mut self, name: &At<String>, diags: &mut Diagnostics) -> Option<Device> {
        let text = name.value.as_str();
        let Some(machine) = self.machine else {
            let kind = DeviceKind::Cuda { uuid: String::new() };
            return Some(Device { name: text.into(), kind, ..cpu(0) });
        };
        let is_meant = |d: &&crate::host::DeviceView| d.name == text || d.uuid == text;
        if let Some(found) = machine.devices.iter().find(is_meant) {
            return Some(cuda(found));
        }
        if let Some(found) = machine.for_commands.iter().find(is_meant) {
            self.lacking.push((cuda(found), name.span));
            return Some(cuda(found));
        }
        self.not_available(text, name.span, diags);
        None
    }

    fn not_available(&self, text: &str, span: Span, diags: &mut Diagnostics) {
        let d = diags.error(span, format!("device `{text}` is not available")).unavailable();
        let Some(machine) = self.machine else { return };
        if let Some(why) = &machine.no_gpu {
            d.label(why.clone());
        }
        if machine.devices.is_empty() {
            d.help("`orchestra doctor` checks the driver and the libraries; use = [\"cpu\"] runs on the CPU");
        } else {
            d.help(suggestion("GPUs here", text, machine.devices.iter().map(|d| d.name.as_str())));
        }
    }
}

/// Names given by `--devices`, each with its place in the option.
pub(crate) fn from_option(names: &[String], diags: &mut Diagnostics) -> Option<Vec<At<String>>> {
    let text = diags.add_text("--devices", &names.join(","));
    let mut start = 0;
    let mut result = Vec::new();
    for name in names {
        result.push(At::new(name.trim().to_owned(), Span::new(text, start..start + name.len())));
        start += name.len() + 1;
    }
    if result.is_empty() {
        diags.error(Span::new(text, 0..0), "`--devices` names no device");
    }
    match &result[..] {
        [one] if one.value == "auto" => None,
        _ => Some(result),
    }
}

fn cuda(view: &crate::host::DeviceView) -> Device {
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
