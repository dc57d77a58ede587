"""The kit of a GPU check, the device, the table, and what the machine says of itself while something runs. It checks nothing."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

# Rates of two runs of the same differ by as much.
NEARLY = 1.05
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]

WORKFLOW = """version = 1
name = "{name}"
[sources.images]
kind = "images"
{source}
[models.model]
path = "{model}"
{model_keys}
{stages}
[devices]
use = ["{device}"]
headroom = "{headroom}"
"""
STAGES = """[stages.pixels]
kind = "image"
from = "images"
size = [224, 224]
fit = "shorter"
shorter = 224
mean = {mean}
std = {deviation}
dtype = "{dtype}"
normalize = "{normalize}"
[stages.run]
kind = "infer"
from = "pixels"
model = "model"
batch = {{ max = {batch} }}
{answer}
[sinks.results]
kind = "jsonl"
from = "{sink}"
path = "results.jsonl"
"""
# Lines of text of one width.
LINES = """[stages.pixels-{width}]
kind = "image"
from = "images"
size = [32, {width}]
mean = 0.5
std = 0.5
[stages.run-{width}]
kind = "infer"
from = "pixels-{width}"
model = "model"
batch = {{ max = {batch} }}
[stages.text-{width}]
kind = "ctc"
from = "run-{width}"
scores = "softmax"
[sinks.texts-{width}]
kind = "jsonl"
from = "text-{width}"
"""
ANSWER = '[stages.answer]\nkind = "classify"\nfrom = "run"\ntop_k = 3'


class Fault(Exception):
    """A check that could not be made, or that failed, in words."""


def library_of(kit: Path, for_gpu: bool = True) -> Path | None:
    """ONNX Runtime: that of the kit, else that of a Python environment which has the CUDA provider, as far as it is for a GPU."""
    found = sorted((kit / "lib").glob("libonnxruntime.so.*"))
    if not found:
        folders = [Path(entry) / "onnxruntime" / "capi" for entry in sys.path if entry]
        has_provider = [folder for folder in folders if not for_gpu or (folder / "libonnxruntime_providers_cuda.so").is_file()]
        found = [library for folder in has_provider for library in sorted(folder.glob("libonnxruntime.so.*"))[-1:]][:1]
    return found[-1] if found else None


class Check:
    """The kit, the device, and the table as far as it has come."""

    # Whether commands are noted and not run.
    is_dry = False
    # Whether a dry run lists what only packages of another machine can do.
    shows_all = False

    def __init__(self, asked: argparse.Namespace) -> None:
        self.kit = asked.kit.resolve()
        self.device = asked.device
        self.gpu = asked.device != "cpu"
        self.set = asked.set
        self.output = asked.output.resolve()
        self.deadline = time.monotonic() + asked.seconds
        self.orchestra = self.kit / "orchestra"
        self.rows: list[dict] = []
        # All commands that were run, in their order.
        self.commands: list[str] = []
        self.figures: dict = {}
        # What there was no time for.
        self.left_out: list[str] = []
        # The parts of these.
        self.cut: list[str] = []
        # What the figures say of the program's defaults.
        self.decisions: list[dict] = []
        # Rates through orchestra that could be held against the bare loop.
        self.judged_rates = 0
        self.cores = len(os.sched_getaffinity(0))
        library = library_of(self.kit, self.gpu)
        if self.is_dry:
            library = library or self.kit / "lib" / "libonnxruntime.so.1"
        elif not self.orchestra.is_file() or not (self.kit / "models").is_dir():
            raise SystemExit(f"gpu-check: `{self.kit}` is no kit of scripts/gpu-pack.sh: it needs `orchestra`, `lib/`, `models/`, `photos/`, `small/`")
        elif library is None:
            raise SystemExit("gpu-check: this kit has no ONNX Runtime, and no Python environment here has one for GPUs: pip install onnxruntime-gpu, and start this by the Python of it (PYTHON=..)")
        self.environment = {**os.environ, "ORT_DYLIB_PATH": str(library), "NO_COLOR": "1"}
        self.environment.setdefault("ORCHESTRA_CACHE", str(self.output / "cache"))
        if (self.kit / "cuda").is_dir():
            self.environment.setdefault("ORCHESTRA_CUDA_LIBRARIES", str(self.kit / "cuda"))
        self.uuid: str | None = None
        if self.gpu:
            self.uuid = self.uuid_of_device()

    def uuid_of_device(self) -> str | None:
        """The whole GPU that nvidia-smi knows the device by. Its numbers are others than ours where CUDA_VISIBLE_DEVICES hides a GPU."""
        if self.device.startswith("GPU-"):
            return self.device
        gpus = json.loads(self.must(["devices", "--json"], 60).stdout)["gpus"]
        named = {f"cuda:{index}": gpu for index, gpu in enumerate(gpus)} | {gpu["uuid"]: gpu for gpu in gpus}
        gpu = named.get(self.device)
        return (gpu.get("part_of") or gpu["uuid"]) if gpu else None

    # ## The table

    def row(self, part: str, what: str, value: str, verdict: str = "") -> None:
        self.rows.append({"part": part, "what": what, "value": value, "verdict": verdict})
        print(f"  {part:10} {what:58} {value:>34} {verdict}", flush=True)

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def judge(self, good: bool) -> str:
        return "ok" if good else "FAIL"

    def decide(self, part: str, what: str, rates: dict[str, float], default: str) -> None:
        """Whether the default of the program stays: the fastest of these ways is named, and one that is nearly as fast is no reason for a change."""
        if default not in rates or len(rates) < 2:
            return
        best = max(rates, key=rates.__getitem__)
        gain = rates[best] / max(rates[default], 1e-9)
        stays = gain <= NEARLY
        self.decisions.append({"what": what, "default": default, "best": best, "gain": gain, "stays": stays})
        self.row(part, f"decides {what}: {default}", f"fastest is {best}, {gain:.2f} times the default", "keep" if stays else "change")

    # ## Running the command

    def note(self, command: list[str]) -> None:
        """Keeps a command as the dry run writes it."""
        import gpu_dry

        text = gpu_dry.plain(command, self.kit, self.output)
        self.commands.append(text.replace(self.uuid, "UUID") if self.uuid else text)

    def smi(self, fields: str, of_all: bool = False) -> list[list[str]]:
        """What nvidia-smi says of the device, or of all GPUs."""
        command = smi_command(fields, None if of_all else self.uuid)
        self.note(command)
        return [] if self.is_dry else smi(command)

    def tool(self, command: list[str], **options) -> subprocess.CompletedProcess:
        """Runs something else than orchestra."""
        self.note(command)
        return subprocess.run(command, **options)

    def run(self, arguments: list[str], timeout: float, environment: dict | None = None) -> subprocess.CompletedProcess:
        """Ends with its time, and takes its workers along."""
        self.note(["orchestra", *arguments])
        command = [str(self.orchestra), *arguments]
        started = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment or self.environment, start_new_session=True
        )
        try:
            out, err = started.communicate(timeout=max(5.0, min(timeout, self.left() + 20)))
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            started.communicate()
            raise Fault(f"`{' '.join(arguments[:2])}` took longer than {timeout:.0f} s") from None
        return subprocess.CompletedProcess(command, started.returncode, out, err)

    @contextlib.contextmanager
    def started(self, arguments: list[str], name: str) -> Iterator[subprocess.Popen]:
        """A command that goes on while something else is done. What it says goes to a file, so that no pipe of it can fill up; at the end it is
        gone, and its workers too."""
        self.note(["orchestra", *arguments])
        said = self.output / "work" / f"{name}.stderr"
        said.parent.mkdir(parents=True, exist_ok=True)
        with said.open("wb") as file:
            process = subprocess.Popen(
                [str(self.orchestra), *arguments], stdout=subprocess.DEVNULL, stderr=file, env=self.environment, start_new_session=True
            )
        try:
            yield process
            process.wait(max(1.0, self.left() + 20))
        except subprocess.TimeoutExpired:
            raise Fault(f"`{' '.join(arguments[:2])}` did not end in time") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.returncode != 0:
            raise Fault(f"exit code {process.returncode}: {last_words(said.read_text(errors='replace'))}")

    def must(self, arguments: list[str], timeout: float, codes: tuple[int, ...] = (0,), environment: dict | None = None) -> subprocess.CompletedProcess:
        ended = self.run(arguments, timeout, environment)
        if ended.returncode not in codes:
            raise Fault(f"exit code {ended.returncode}: {last_words(ended.stderr)}")
        return ended

    def workflow(self, name: str, model: str, **settings) -> Path:
        """A workflow file for a model of the kit."""
        folder = self.output / "work"
        folder.mkdir(parents=True, exist_ok=True)
        values = {
            "name": name, "model": self.kit / "models" / f"{model}.onnx", "model_keys": "", "batch": 32, "normalize": "device", "answer": ANSWER,
            "sink": "answer", "device": self.device, "headroom": "1GiB", "mean": MEAN, "deviation": DEVIATION, "dtype": model[-3:],
            "source": f'paths = ["{self.kit}/small"]', **settings,
        }
        values.setdefault("stages", STAGES.format(**values))
        path = folder / f"{name}.toml"
        path.write_text(WORKFLOW.format(**values))
        return path

    def listing(self, folder: str, items: int) -> str:
        """A list that names the pictures of a folder again and again."""
        pictures = sorted((self.kit / folder).iterdir()) if not self.is_dry else [self.kit / folder / "picture.jpg"]
        path = self.output / "work" / f"{folder}-{items}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text("file\n" + "".join(f"{pictures[i % len(pictures)]}\n" for i in range(items)))
        return f'manifest = "{path}"'

    def out_of(self, workflow: Path) -> Path:
        return self.output / "work" / f"{workflow.stem}.out"


def last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-400:] or "it said nothing"


# ## What the machine says of itself


class Sampler:
    """Utilisation and memory of the device while something runs: nvidia-smi on a GPU, /proc on the CPU."""

    def __init__(self, check: Check) -> None:
        self.gpu, self.samples, self.stopped = check.gpu, [], threading.Event()
        self.command = smi_command("utilization.gpu,memory.used,power.draw,clocks.sm", check.uuid)
        if self.gpu:
            # Once for all the times that it is run.
            check.note(self.command)
        self.is_dry = check.is_dry
        self.thread = threading.Thread(target=self.follow, daemon=True)

    def __enter__(self) -> "Sampler":
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.stopped.set()
        self.thread.join(10)

    def follow(self) -> None:
        if self.is_dry:
            return
        before = cpu_times()
        while not self.stopped.wait(0.25):
            if self.gpu:
                values = smi(self.command)
                if values:
                    self.samples.append([number(value) for value in values[0]])
            else:
                now = cpu_times()
                busy, all_of_it = now[0] - before[0], now[1] - before[1]
                self.samples.append([100 * busy / max(all_of_it, 1), rss_of_workers() / 2**20, None, None])
                before = now

    def median(self, column: int) -> float | None:
        """Over the samples in which anything was done."""
        values = [s[column] for s in self.samples if s[column] is not None and (s[0] or 0) > 0]
        return statistics.median(values) if values else None

    def most(self, column: int) -> float | None:
        values = [s[column] for s in self.samples if s[column] is not None]
        return max(values, default=None)


def smi_command(fields: str, uuid: str | None) -> list[str]:
    """Asks about one GPU, or about all. Numbers of nvidia-smi and ours may differ, so a GPU is named by its UUID."""
    return ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", *([f"--id={uuid}"] if uuid else [])]


def smi(command: list[str]) -> list[list[str]]:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [[cell.strip() for cell in line.split(",")] for line in ended.stdout.splitlines()] if ended.returncode == 0 else []


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def cpu_times() -> tuple[int, int]:
    values = [int(v) for v in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(values) - values[3] - values[4], sum(values)


def workers(parent: int | None = None) -> list[int]:
    """Processes that run models, of this parent or of any; loaders are none."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
                # The name in brackets may hold anything; behind it come the state and the parent.
                of = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            is_worker = arguments[0].endswith(b"orchestra") and arguments[1:2] == [b"worker"] and b"loader" not in arguments
            if parent in (None, of) and is_worker:
                found.append(int(entry.name))
    return found


def rss_of_workers() -> int:
    total = 0
    for pid in workers():
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        total += sum(int(m) for m in re.findall(r"^RssAnon:\s+(\d+)", status, re.M)) * 1024
    return total


def processor() -> str:
    names = re.findall(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    return names[0] if names else platform.machine()
