"""What commands, kernels and stages in Python do on a device: the parts `commands`, `kernels` and `python` of scripts/gpu-check.sh."""

from __future__ import annotations

import array
import contextlib
import json
import operator
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from gpu_kit import Check, Fault, last_words

MIB = 2**20
# What a command holds of the GPU, and how much more its context may take.
HELD, CONTEXT = 512 * MIB, 1536 * MIB
# The namespace of process ids in which the driver numbers processes (`PROC_PID_INIT_INO`).
DRIVERS_IDS = "pid:[4026531836]"
# The items of the examples that add two arrays, and the elements of each.
ITEMS, ROW = 4, 1_000_000
# MiB that a GPU has left: enough for the context of a worker and some rows of 12 MB, and less than so many rows need.
LEFT = 896
SHORT = ("--set", "stages.add.batch.max=80", "--set", "stages.add.workers=1", "--set", "devices.headroom=0")


def commands(check: Check) -> None:
    """Which devices commands see; that models and commands hand one over by their priorities; and, on a GPU, what is found out about a command there."""
    seen(check)
    handed_over(check)
    if check.gpu:
        found_out(check)


def seen(check: Check) -> None:
    """A command that asks for a device sees that one alone, by its UUID; two that ask for half of it see the same."""
    of = {"whole": 1, "half": 0.5} if check.gpu else {"whole": '"none"', "half": '"none"'}
    tables = [
        f'[tasks.{name}]\ncommand = "printenv CUDA_VISIBLE_DEVICES > {{output}}/seen || true"\ndevice = {device}\nmatrix = {{ n = [1, 2] }}\n'
        for name, device in of.items()
    ]
    out, _ = run_tasks(check, "commands", tables, code=0)
    seen = [path.read_text().strip() for path in sorted(out.glob("tasks/*/*/output/seen"))]
    wanted = check.uuid if check.gpu else ""
    good = len(seen) == 4 and all(one == wanted or (wanted and one.startswith("MIG-")) for one in seen)
    check.row("commands", f"{len(seen)} commands see", ", ".join(sorted(set(seen)))[:60] or "no GPU", check.judge(good))


def run_tasks(check: Check, name: str, tables: list[str], code: int, before: str = "") -> tuple[Path, dict[str, dict]]:
    """The output folder of a run of these tables, and what its report says of each task."""
    folder = check.output / "work"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.toml"
    file.write_text((before or f'version = 1\n[devices]\nuse = ["{check.device}"]\n') + "".join(tables))
    out = check.out_of(file)
    ended = check.run(["run", str(file), "--fresh", "--offline", "--output", str(out)], 90)
    if ended.returncode != code and not check.is_dry:
        raise Fault(f"{name}: exit code {ended.returncode}, expected {code}: {last_words(ended.stderr)}")
    return out, {task["task"]: task for task in json.loads((out / "run.json").read_text()).get("tasks", [])}


def handed_over(check: Check) -> None:
    """A command above the models has the device before any item is done, one below them after the last."""
    items = 64
    models = check.workflow("handed-over", "mobilenet-f32", source=check.listing("small", items), batch=16 if check.gpu else 4).read_text()
    results = check.output / "work" / "handed-over.out" / "results.jsonl"
    tables = [
        f'[tasks.above]\ncommand = "test ! -s {results}"\npriority = 20\n',
        f'[tasks.below]\ncommand = "test $(wc -l < {results}) = {items}"\npriority = 1\n',
    ]
    _, tasks = run_tasks(check, "handed-over", tables, 0, models)
    ends = ", ".join(f"{name} {tasks.get(name, {}).get('end')}" for name in ("above", "below"))
    check.row("commands", "one before the models, one behind them, by priority", ends, check.judge(ends == "above done, below done"))


def found_out(check: Check) -> None:
    """What a command takes of a GPU is learned, and one that is on a GPU without a lease is killed. Without a GPU that is tested by tests/tasks_gpus.rs."""
    # A list of commands that is made on another machine holds these, whatever its processes are called.
    if not check.shows_all and os.readlink("/proc/self/ns/pid") != DRIVERS_IDS:
        check.row("commands", "memory of one, and one on a GPU without a lease", "not seen: the driver calls processes by other numbers here", "-")
        return
    hold = f"{sys.executable} {check.kit}/gpu_hold.py"
    tables = [
        f'[tasks.learned]\ncommand = "{hold} {HELD // MIB} 4"\ndevice = 0.5\n',
        f'[tasks.stray]\ncommand = "CUDA_VISIBLE_DEVICES={check.uuid} {hold} 256 60"\ndevice = "none"\n',
    ]
    _, tasks = run_tasks(check, "found-out", tables, 65)
    learned, end = tasks.get("learned", {}).get("gpu_memory", 0), tasks.get("stray", {}).get("end")
    check.row("commands", f"memory learned of one that holds {HELD // MIB} MiB", f"{learned / MIB:.0f} MiB", check.judge(HELD <= learned <= HELD + CONTEXT))
    check.row("commands", "one on a GPU without a lease", f"{end}", check.judge(end == "wrong_device"))


def floats(npy: bytes) -> array.array:
    """The numbers of an array of float32."""
    begin = 10 + int.from_bytes(npy[8:10], "little")
    numbers = array.array("f")
    numbers.frombytes(npy[begin:])
    return numbers


def vectors(data: Path) -> tuple[array.array, array.array]:
    """The two arrays of the examples that add them."""
    with zipfile.ZipFile(data) as archive:
        return floats(archive.read("a.npy")), floats(archive.read("b.npy"))


def sums(check: Check, what: str, data: Path, out: Path, without: range = range(0)) -> None:
    """Whether the sums of a run, which has not those of some elements, have the bits of the processor."""
    if check.is_dry:
        return
    # Two floats are added exactly in a double, up to one rounding, and then rounded to a float: the same bits as in float.
    expected = array.array("f", map(operator.add, *vectors(data)))
    del expected[without.start : without.stop]
    found = floats((out / "sum" / "whole.npy").read_bytes())
    good = found.tobytes() == expected.tobytes()
    check.row("kernels", f"{what}: {len(found)} sums, the bits of the processor", str(good), check.judge(good))


def kernels(check: Check) -> None:
    """Code of the user on the GPU: the example with a kernel gives the bits of a sum by the processor, a kernel that does not compile is named with its line, the
    example with CuPy or PyCUDA gives what numpy gives, and a kernel that traps or lacks memory costs no more than it must. On the CPU the twins of the first and
    the third run."""
    folder = check.output / "work" / "kernels"
    shutil.rmtree(folder, ignore_errors=True)
    if not check.is_dry:
        shutil.copytree(check.kit / "examples", folder / "examples")
        (folder / "models").mkdir()
        shutil.copyfile(check.kit / "models" / "vector-add.onnx", folder / "models" / "vector-add.onnx")
    data = folder / "examples" / "vector-add" / "vectors.npz"
    check.tool([sys.executable, str(data.with_name("data.py")), "--count", str(ITEMS * ROW), "--out", str(data)], check=True, timeout=120)
    name = "vector-add-cuda" if check.gpu else "vector-add"
    file = folder / "examples" / name / "workflow.toml"
    sums(check, name, data, done(check, file))
    kernel = file.with_name("vadd.cu")
    text = kernel.read_text() if check.gpu and not check.is_dry else ""
    if check.gpu:
        does_not_compile(check, file, kernel, text)
    queue(check, folder)
    if check.gpu:
        traps(check, file, kernel, text, data)
        lacks_memory(check, file, kernel, text, data)


def example(check: Check, file: Path, *more: str) -> tuple[subprocess.CompletedProcess, Path]:
    """A run of an example, and its output folder."""
    out = file.parents[2] / f"{file.parent.name}.out"
    arguments = ["run", str(file), "--fresh", "--offline", "--output", str(out), "--devices", check.device, *more]
    return check.run(arguments, 120), out


def done(check: Check, file: Path, *more: str) -> Path:
    """The output folder of an example that must end well."""
    ended, out = example(check, file, *more)
    if ended.returncode != 0:
        raise Fault(f"{file.parent.name}: exit code {ended.returncode}: {last_words(ended.stderr)}")
    return out


def lacks_memory(check: Check, file: Path, kernel: Path, text: str, data: Path) -> None:
    """Batches for which another process has left no memory run in parts that fit."""
    if not check.is_dry:
        kernel.write_text(text)
    with held(check, LEFT):
        out = done(check, file, *SHORT)
    sums(check, f"{LEFT} MiB left", data, out)
    sizes = re.findall(r"`(\d+)` rows do not fit into the device's memory", logs_of(out))
    check.row("kernels", f"{LEFT} MiB left: so many rows do not fit", ", ".join(dict.fromkeys(sizes)) or "any", check.judge(bool(sizes)))


@contextlib.contextmanager
def held(check: Check, left: int) -> Iterator[None]:
    """Meanwhile another process has all free memory of the GPU but so many MiB."""
    command = [sys.executable, str(check.kit / "gpu_hold.py"), f"-{left}", "300"]
    check.note(command)
    if check.is_dry:
        yield
        return
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": check.uuid or ""}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as holder:
        try:
            if (said := holder.stdout.readline().strip()) != "held":
                raise Fault(f"the memory of the GPU cannot be held: {said}")
            yield
        finally:
            holder.kill()


def does_not_compile(check: Check, file: Path, kernel: Path, text: str) -> None:
    if not check.is_dry:
        kernel.write_text(text.replace("a[i]", "c[i]"))
    ended, _ = example(check, file)
    good = ended.returncode == 69 and "vadd.cu(" in ended.stderr
    check.row("kernels", "a kernel that does not compile", f"exit code {ended.returncode}, file and line", check.judge(good))
    if not good and not check.is_dry:
        print(ended.stderr)


def traps(check: Check, file: Path, kernel: Path, text: str, data: Path) -> None:
    """A kernel that traps at one element: CUDA's errors stick to a process, so workers are replaced until the item of the element stands alone, and fails by name."""
    item = ITEMS // 2
    if not check.is_dry:
        # Of one array alone the value may come twice.
        at = " && ".join(f"{name}[i] == {values[item * ROW + ROW // 2]!r}f" for name, values in zip("ab", vectors(data)))
        add = "sum[i] = a[i] + b[i];"
        kernel.write_text(text.replace(add, f"{{ if ({at}) __trap(); {add} }}"))
    ended, out = example(check, file)
    if ended.returncode != 65 and not check.is_dry:
        raise Fault(f"a kernel that traps: exit code {ended.returncode}, expected 65: {last_words(ended.stderr)}")
    sums(check, "a kernel that traps", data, out, range(item * ROW, (item + 1) * ROW))
    failures = (out / "failures.jsonl").read_text().splitlines() if not check.is_dry else []
    restarts = sum(device["restarts"] for device in json.loads((out / "run.json").read_text())["devices"])
    by_name = len(failures) == 1 and json.loads(failures[0])["index"] == item and all(word in failures[0] for word in ("`vadd` of `vadd.cu`", "CUDA_ERROR_"))
    value = f"{len(failures)} failed, {restarts} workers replaced"
    check.row("kernels", f"a kernel that traps: of {ITEMS} items one fails, by name", value, check.judge(by_name and restarts > 0))
    if failures and not by_name:
        print("\n".join(failures))


def queue(check: Check, folder: Path) -> None:
    """The example with CuPy or PyCUDA, by each that is here."""
    wanted = {"cupy": "cupy", "pycuda": "pycuda.driver"} if check.gpu else {"numpy": "numpy"}
    # A list of commands that is made on another machine holds all of them, whatever is installed there.
    packages = [package for package, module in wanted.items() if check.shows_all or has(module)]
    if not packages:
        check.row("kernels", "pycuda-queue", f"not run: {' or '.join(wanted)} is missing, or numpy", "-")
    file = folder / "examples" / "pycuda-queue" / "workflow.toml"
    code = file.with_name("gpu.py")
    tries = "" if check.is_dry else code.read_text()
    for package in packages:
        if not check.is_dry:
            code.write_text(tries.replace("(pycuda, cupy)", f"({package},)") if check.gpu else tries)
        shutil.rmtree(folder / "pycuda-queue.out", ignore_errors=True)
        # PyCUDA starts `nvcc`.
        confined = ["--set", "stages.calibrated.sandbox=off"] if package == "pycuda" else []
        ended, out = example(check, file, "--set", f"stages.calibrated.python={sys.executable}", *confined)
        checked = check.tool([sys.executable, str(file.with_name("check.py")), "--output", str(out)], capture_output=True, text=True)
        by = set(re.findall(r"calibrates with (\w+)", logs_of(out)))
        good = ended.returncode == 0 and checked.returncode == 0 and by == {package}
        value = (checked.stdout or last_words(checked.stderr + ended.stderr)).strip()
        check.row("kernels", f"pycuda-queue by {package}, and by the log with {', '.join(sorted(by)) or 'nothing'}", value, check.judge(good))


STAGE = """
import os
import time
import numpy as np
import orchestra

@orchestra.stage(batch=64, gpu=GPU, inputs={"n": ("int64", [])}, outputs={"y": ("int64", [])})
class Doubled:
    def __init__(self):
        import PACKAGE
        self.package = PACKAGE

    def __call__(self, n):
        time.sleep(0.01)  # So that a run lasts long enough to be struck.
        rows = np.ascontiguousarray(n)
        return {"y": CALL}
"""
CALLS = {
    "torch": "(2 * self.package.from_numpy(rows).to('cuda' if os.environ.get('CUDA_VISIBLE_DEVICES') else 'cpu')).cpu().numpy()",
    "cupy": "self.package.asnumpy(2 * self.package.asarray(rows))",
    "numpy": "2 * rows",
}


def logs_of(out: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in sorted((out / "logs").glob("*.log")))


def has(package: str) -> bool:
    return subprocess.run([sys.executable, "-c", f"import numpy, {package}"], capture_output=True).returncode == 0


def python(check: Check) -> None:
    """A function by each package that is here: its answers, and that kills of its workers lose and double nothing."""
    folder = check.output / "work" / "python"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = ("torch", "cupy") if check.gpu else ("torch", "numpy")
    # A list of commands that is made on another machine holds all of them, whatever is installed there.
    packages = wanted if check.shows_all else [package for package in wanted if has(package)]
    if not packages:
        check.row("python", "a stage", f"not run: {' or '.join(wanted)} is missing, or numpy", "-")
    for package in packages:
        (folder / f"{package}_stage.py").write_text(STAGE.replace("GPU", str(check.gpu)).replace("PACKAGE", package).replace("CALL", CALLS[package]))
        file, n = folder / f"{package}.toml", 20_000
        file.write_text(
            f'version = 1\n[devices]\nuse = ["{check.device}"]\n[sources.x]\nkind = "range"\nstop = {n}\n[stages.y]\nkind = "python"\nfrom = "x"\n'
            f'script = "{package}_stage.py"\npython = "{sys.executable}"\nworkers = 1\n[sinks.results]\nkind = "jsonl"\nfrom = "y"\n'
        )
        out = check.out_of(file)
        check.must(["run", str(file), "--fresh", "--offline", "--output", str(out)], 90)
        records = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
        good = len(records) == n and all(record["result"] == {"y": 2 * record["index"]} for record in records)
        check.row("python", f"a stage by {package}: {len(records)} answers", "those of the processor" if good else "others", check.judge(good))
        if check.gpu:
            locked = sorted(set(re.findall(r"the (?:input |output )?slots are (?:not )?page-locked[^\n\"]*", logs_of(out))))
            check.row("python", f"a stage by {package}: what its log says of the slots", "; ".join(locked) or "nothing")
        every = "2s" if check.gpu else "500ms"
        ended = check.run(["chaos", str(file), "--offline", "--json", "--items", str(n), "--kill-every", every, "--stop-every", "never"], 120)
        if not ended.stdout.strip():
            raise Fault(f"a stage by {package}: exit code {ended.returncode}: {last_words(ended.stderr)}")
        report = json.loads(ended.stdout)
        wrong = ", ".join(str(report[key]) for key in ("lost", "doubled", "differing", "unknown"))
        check.row(
            "python", f"by {package}, {report['kills']} kills: lost, doubled, differing, unknown", wrong,
            check.judge(report["kills"] > 0 and wrong == "0, 0, 0, 0" and ended.returncode == 0),
        )
