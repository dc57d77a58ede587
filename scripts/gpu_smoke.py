"""The checks of scripts/gpu-smoke.sh, each a line of its table. A check that fails does not stop the others. Standard library only."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

# The repository, or a kit of scripts/gpu-pack.sh, whose folders have the same names.
ROOT = Path(__file__).resolve().parent.parent
EXAMPLES, PHOTOGRAPHS = ROOT / "examples", ROOT / "target/bench-data"
# The keys of the stage `pixels` for models of digits, and for MobileNet.
DIGIT = 'size = [32, 32]\ncolor = "gray"'
PHOTOGRAPH = 'size = [224, 224]\nfit = "shorter"\nshorter = 224\nmean = [0.485, 0.456, 0.406]\nstd = [0.229, 0.224, 0.225]'
WORKFLOW = """version = 1
[sources.images]
kind = "images"
manifest = "{manifest}"
[models.model]
path = "{model}"
{keys}
[stages.pixels]
kind = "image"
from = "images"
dtype = "{dtype}"
{pixels}
[stages.run]
kind = "infer"
from = "pixels"
model = "model"
batch = {{ max = {batch} }}
[sinks.results]
kind = "jsonl"
from = "run"
"""
# The largest difference of a logit, for logits of up to 10, and in proportion above. TF32 and f16 have 11 bits instead of 24, and rounding grows
# over fifty layers, so nine of ten best classes must agree as well.
PARITY = {"f32": 1e-3, "TF32": 6e-1, "f16": 6e-1}
# Part of the limit that a run over photographs must reach on a GPU. Longer benchmarks reach more.
LEAST_RATIO = 0.9


class LeftOut(Exception):
    """A check that this machine or this kit cannot make."""


def must(good: object, figure: str) -> str:
    if not good:
        raise ValueError(figure)
    return figure


class Smoke:
    """The command, the device and a folder to write to."""

    def __init__(self, asked: argparse.Namespace, work: Path) -> None:
        self.binary, self.device, self.gpu, self.work = asked.binary.resolve(), asked.device, asked.device != "cpu", work
        self.environment = {**os.environ, "NO_COLOR": "1"}
        if asked.libraries.is_dir():
            self.environment |= dict.fromkeys(("ORT_DYLIB_PATH", "ORCHESTRA_CUDA_LIBRARIES"), str(asked.libraries.resolve()))

    def orchestra(self, *arguments: object) -> str:
        """What the command prints. When `chaos` has found a flaw, it prints its report, too."""
        ended = subprocess.run([self.binary, *map(str, arguments)], capture_output=True, text=True, env=self.environment, timeout=300)
        lines = (ended.stdout + ended.stderr).splitlines()
        errors = [line for line in lines if line.startswith(("error", "MISSING"))] or lines[-1:]
        must(ended.returncode == 0 or (arguments[0] == "chaos" and ended.stdout), f"exit code {ended.returncode}: {'; '.join(errors)}")
        return ended.stdout

    def run(self, file: Path, device: str, *more: str) -> tuple[Path, dict]:
        """The output folder and the report of a run."""
        output = self.work / "out"
        self.orchestra("run", file, "--fresh", "--output", output, "--devices", device, *more)
        return output, json.loads((output / "run.json").read_text())

    def measure(self, command: str, file: Path, *more: str) -> dict:
        return json.loads(self.orchestra(command, file, "--json", "--devices", self.device, *more))

    def gpus(self) -> list[dict]:
        return json.loads(self.orchestra("devices", "--json"))["gpus"]

    def workflow(self, name: str, items: int, batch: int = 64, keys: str = "") -> Path:
        """A workflow file for a model and so many pictures; a picture may come several times."""
        is_photograph = name.startswith("mobilenet")
        pictures = sorted((PHOTOGRAPHS / "small").glob("*.jpg") if is_photograph else (EXAMPLES / "digits/images").glob("*.png"))
        model = (PHOTOGRAPHS if is_photograph else ROOT / "models") / f"{name}.onnx"
        if not (model.is_file() and pictures):
            raise LeftOut(f"{model.name} is not here; a kit of scripts/gpu-pack.sh has it")
        manifest, file = self.work / "manifest.csv", self.work / "workflow.toml"
        manifest.write_text("file\n" + "".join(f"{pictures[i % len(pictures)]}\n" for i in range(items)))
        dtype, pixels = "f16" if name.endswith("-f16") else "f32", PHOTOGRAPH if is_photograph else DIGIT
        file.write_text(WORKFLOW.format(manifest=manifest, model=model, keys=keys, dtype=dtype, pixels=pixels, batch=batch))
        return file

    def logits(self, name: str, device: str, keys: str = "") -> list[list[float]]:
        output, _ = self.run(self.workflow(name, 96, batch=16, keys=keys), device)
        records = sorted(map(json.loads, (output / "results.jsonl").open()), key=lambda record: record["index"])
        must(len(records) == 96, f"{len(records)} records for 96 items")
        return [record["result"]["logits"]["data"] for record in records]


def devices(smoke: Smoke) -> str:
    gpus = ", ".join(gpu["name"] for gpu in smoke.gpus()) or "no GPU"
    if smoke.gpu:
        smoke.orchestra("doctor")
    return must(gpus != "no GPU" or not smoke.gpu, gpus)


def digits(smoke: Smoke) -> str:
    output, report = smoke.run(EXAMPLES / "digits/workflow.toml", smoke.device)
    on_gpu = [device["device"] != "cpu" for device in report["devices"] if device["batches"]]
    checked = subprocess.run([sys.executable, EXAMPLES / "digits/check.py", "--output", output], capture_output=True, text=True)
    return must(checked.returncode == 0 and on_gpu == [smoke.gpu], (checked.stdout + checked.stderr).strip())


def parity(smoke: Smoke, name: str, precision: str, keys: str = "") -> str:
    """Whether the device gives the logits of the CPU."""
    if precision == "TF32" and not smoke.gpu:
        raise LeftOut("needs a GPU")
    name += "-f16" if precision == "f16" else ""
    if smoke.gpu and precision != "f16":
        keys += f"\ntf32 = {str(precision == 'TF32').lower()}"
    found, expected = smoke.logits(name, smoke.device, keys), smoke.logits(name, "cpu")
    pairs = [pair for a, b in zip(found, expected) for pair in zip(a, b)]
    most, largest = max(abs(a - b) for a, b in pairs), max(abs(b) for _, b in pairs)
    best = sum(a.index(max(a)) == b.index(max(b)) for a, b in zip(found, expected)) / len(found)
    good = all(math.isfinite(a) for a, _ in pairs) and most <= PARITY[precision] * max(1, largest / 10) and best >= 0.9
    return must(good, f"largest difference {most:.1e} of {largest:.1f}, best class {best:.0%}")


def out_of_memory(smoke: Smoke) -> str:
    """The first layer needs 64 MiB for a batch of 1,024."""
    file = smoke.workflow("digits", 2048, batch=1024, keys='memory_limit = "64MiB"\nworkers = 1')
    report = smoke.run(file, smoke.device)[1]
    done, split = report["items"]["done"], report["batches_by_reason"]["split"]
    return must(done == 2048 and split > 0, f"{done} of 2048 items done, {split} batches from halving")


def kill_storm(smoke: Smoke) -> str:
    storm = ["--seconds=6", "--kill-every=700ms", "--stop-every=3s"] if smoke.gpu else ["--seconds=1", "--kill-every=100ms", "--stop-every=never"]
    before = smoke.gpus()
    report = smoke.measure("chaos", smoke.workflow("digits", 2000, keys="workers = 2"), *storm)
    wrong = {key: report[key] for key in ("lost", "doubled", "stray", "damaged") if report[key]}
    # Other programs take and give back a little meanwhile; a worker that is left would hold more.
    wrong |= {gpu["name"]: "memory is left" for gpu, then in zip(smoke.gpus(), before) if gpu["memory_free"] < then["memory_free"] - (200 << 20)}
    figure = f"{report['kills']} kills, {report['stops']} stops, {report['items']} items, wrong: {wrong or 'nothing'}"
    return must(report["passed"] and report["kills"] and not wrong, figure)


def bench(smoke: Smoke, name: str) -> str:
    file = smoke.workflow(name, 200_000 if smoke.gpu else 1_000)
    report = smoke.measure("bench", file, "--runs=1", f"--seconds={4 if smoke.gpu else 0.2}")
    run, limit, ratio = report["run_items_per_second"], report["limit_items_per_second"], report["ratio"]
    good = not smoke.gpu or name == "digits" or (ratio or 0) >= LEAST_RATIO
    return must(good, f"{run:,.0f} of {limit:,.0f} items/s, ratio {f'{ratio:.2f}' if ratio else 'unknown'}, limited by {report['limited_by']}")


def kernel(smoke: Smoke) -> str:
    """A kernel in CUDA C++ gives the sums of the example's model on the CPU, bit for bit."""
    if not smoke.gpu:
        raise LeftOut("needs a GPU")
    data, sums = smoke.work / "vectors.npz", []
    subprocess.run([sys.executable, EXAMPLES / "vector-add/data.py", "--count", "2000000", "--out", data], check=True, stdout=subprocess.DEVNULL)
    for example, device in (("vector-add", "cpu"), ("vector-add-cuda", smoke.device)):
        output, _ = smoke.run(EXAMPLES / example / "workflow.toml", device, "--set", f'sources.vectors.paths=["{data}"]')
        sums.append((output / "sum/whole.npy").read_bytes())
    return must(sums[0] == sums[1], f"{len(sums[1]):,} bytes of sums")


def mps(smoke: Smoke) -> str:
    """NVIDIA's Multi-Process Service, with pipes of its own. A daemon that runs already is not used."""
    if not smoke.gpu or not shutil.which("nvidia-cuda-mps-control"):
        raise LeftOut("needs a GPU and nvidia-cuda-mps-control")
    keys, pipes = "workers = 4\nspare = 0", smoke.work / "mps"
    rate = lambda: smoke.measure("bench", smoke.workflow("digits", 400, keys=keys), "--runs=1")["models"][0]["rows_per_second"]["median"]
    without = rate()
    pipes.mkdir()
    smoke.environment |= dict.fromkeys(("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"), str(pipes))
    # The daemon keeps the streams that it is started with, so a pipe would not end.
    control = partial(subprocess.run, env=smoke.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
    try:
        must(control(["nvidia-cuda-mps-control", "-d"], stdin=subprocess.DEVNULL).returncode == 0, "the daemon does not start")
        return f"4 workers: {without:,.0f} items/s without, {rate():,.0f} with it; {parity(smoke, 'digits', 'f32', keys)}"
    finally:
        control(["nvidia-cuda-mps-control"], input=b"quit\n")


CHECKS = {
    "devices, doctor": devices, "digits example": digits,
    **{f"{name}, {precision}": partial(parity, name=name, precision=precision) for name in ("digits", "page-digits", "mobilenet") for precision in PARITY},
    "out of memory": out_of_memory, "kill storm": kill_storm, "bench digits": partial(bench, name="digits"), "bench mobilenet": partial(bench, name="mobilenet"),
    "CUDA kernel": kernel, "MPS": mps,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="gpu-smoke.sh", description="Checks orchestra on a machine with a GPU.")
    parser.add_argument("--device", default="cuda:0", help="cuda:0 (default), another GPU, or cpu")
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/orchestra", help="the command `orchestra`")
    parser.add_argument("--libraries", type=Path, default=ROOT / "lib", help="the folder of the libraries of onnxruntime-gpu")
    asked = parser.parse_args()
    if not asked.binary.is_file():
        parser.error(f"`{asked.binary}` is missing: cargo build --release --bin orchestra, or name another with --binary")
    failed = 0
    print(f"{'check':18} {'result':8} figure")
    for name, check in CHECKS.items():
        with tempfile.TemporaryDirectory(prefix="gpu-smoke-", ignore_cleanup_errors=True) as work:
            try:
                result, figure = "ok", check(Smoke(asked, Path(work)))
            except LeftOut as why:
                result, figure = "left out", str(why)
            except (ArithmeticError, LookupError, OSError, ValueError, subprocess.SubprocessError) as error:
                result, figure, failed = "FAILED", f"{error}" or repr(error), failed + 1
        print(f"{name:18} {result:8} {figure}")
    print(f"{failed} of {len(CHECKS)} checks failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
