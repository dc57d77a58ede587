"""What scripts/gpu-check.sh runs: every check of a kit on one device, as one table and one JSON file. Standard library only.

A check that goes wrong is a line of the table, and the others go on. The exit code is 1 if any line says FAIL. On a machine without a GPU
`--device cpu` runs the same lines on the CPU, and the table says so: that proves the check, not the GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from gpu_dry import DryRun, to_carry
from gpu_kit import LINES, NEARLY, Check, Fault, Sampler, last_words, number, processor, smi, workers
from gpu_tasks import commands, kernels, python

MODELS = ("mobilenet-f32", "resnet50-f16", "resnet50-f32", "mobilenet-f16")
# Those of the first set: one model of each size, one of each precision.
FIRST_MODELS = MODELS[:2]
PARITY_ITEMS = 48
# Largest difference of a logit, for logits of up to 10; for larger ones as much more. TF32 and f16 have 11 bits instead of 24, and what each of some
# fifty layers rounds grows on its way, a hundredfold in this MobileNet of random weights; so the best class must agree, too.
PARITY = {"f32": 1e-3, "tf32": 6e-1, "f16": 6e-1}
LEAST_SAME_BEST = 0.9
SMALL_LOGITS = 10.0
LEAST_RATIO = 0.95
# How much longer than the median batch the first of its size may take.
MOST_STALL = 3.0
# How far the plan's figure for a worker may be from what one more worker takes; besides 64 MiB that the driver takes now and then.
MEMORY_SLACK = 0.15


# ## What the machine says of itself


def machine(check: Check) -> None:
    for name, driver, memory in check.smi("name,driver_version,memory.total", of_all=True):
        check.row("machine", "GPU, driver", f"{name}, {driver}, {memory} MiB")
    check.row("machine", "processor", f"{processor()}, {check.cores} cores")
    check.row("machine", "system", f"{platform.system()} {platform.release()}")
    check.row("machine", "orchestra", check.must(["--version"], 20).stdout.strip())
    listed = json.loads(check.must(["devices", "--json"], 60).stdout)
    check.figures["devices"] = listed
    # A slice counts for the GPU that it is cut from, and a scheduler may hide some.
    seen, expected = {gpu.get("part_of") or gpu["uuid"] for gpu in listed["gpus"]}, {uuid for (uuid,) in check.smi("uuid", of_all=True)}
    hides = bool(os.environ.get("CUDA_VISIBLE_DEVICES"))
    good = seen <= expected if hides else seen == expected
    check.row("devices", "GPUs that orchestra sees, of those of nvidia-smi", f"{len(seen)} of {len(expected)}", check.judge(good))
    for gpu in listed["gpus"]:
        check.row("devices", str(gpu.get("name", "?")), str(gpu.get("uuid", "?"))[:34])
    doctor = check.run(["doctor"], 120)
    check.figures["doctor"] = doctor.stdout + doctor.stderr
    good = doctor.returncode == 0 or not check.gpu
    check.row("devices", "doctor", f"exit code {doctor.returncode}", check.judge(good))
    mps = [line.split(maxsplit=2)[2] for line in doctor.stdout.splitlines() if line.split()[1:2] == ["mps"]]
    check.row("devices", "MPS", mps[0] if mps else "no GPU")
    if not good:
        print(doctor.stdout + doctor.stderr)
    choice(check)


def choice(check: Check) -> None:
    """What `auto` takes, with the library of the kit and with one that is built for the CPU only."""
    file = check.workflow("choice", "mobilenet-f32", source=check.listing("small", 1))
    # A link would lead back to the provider.
    library = Path(check.environment["ORT_DYLIB_PATH"])
    cpu_only = check.output / "work" / "cpu-only" / library.name
    cpu_only.parent.mkdir(parents=True, exist_ok=True)
    if not check.is_dry:
        shutil.copyfile(library, cpu_only)
    for what, path, takes_gpu in (("the kit's library", library, check.gpu), ("a library for the CPU only", cpu_only, False)):
        environment = {**check.environment, "ORT_DYLIB_PATH": str(path)}
        plan = check.must(["plan", str(file), "--offline", "--devices", "auto"], 120, environment=environment).stdout
        reason = next((line.strip() for line in plan.splitlines() if "devices:" in line), "no reason")
        good = ("auto takes" in reason) if takes_gpu else ("the CPU, because" in reason)
        check.row("devices", f"auto, with {what}", ("a GPU" if "auto takes" in reason else "the CPU, and says why"), check.judge(good))
        if not good and not check.is_dry:
            print(plan)
    out = check.out_of(file)
    named = check.run(["run", str(file), "--fresh", "--offline", "--output", str(out), "--devices", "cuda:0"], 120, environment)
    good = named.returncode == 69 and not (out / "results.jsonl").exists()
    check.row("devices", "cuda:0, with a library for the CPU only", f"exit code {named.returncode}, nothing read", check.judge(good))


# ## Isolation


def isolation(check: Check) -> None:
    """What each worker sees, read while it runs, and what the parent has not loaded."""
    # So many that all workers are seen.
    items = 4000 if check.gpu else 1000
    # Where it is said what a worker takes, the second one does not wait until the first is measured.
    keys = 'workers = 2\nmemory = "1GiB"' if check.gpu else "workers = 2"
    file = check.workflow("isolation", "mobilenet-f32", source=check.listing("small", items), model_keys=keys)
    seen: dict[int, dict] = {}
    maps, computing, asked = "", set(), 0.0
    on_gpu = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader,nounits", f"--id={check.uuid}"]
    if check.gpu:
        check.note(on_gpu)
    with check.started(["run", str(file), "--fresh", "--offline", "--output", str(check.out_of(file))], "isolation") as run:
        while run.poll() is None and check.left() > 0:
            for pid in workers(run.pid):
                try:
                    environment = dict(e.split("=", 1) for e in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in e)
                    libraries = Path(f"/proc/{pid}/maps").read_text()
                except OSError:
                    continue
                seen[pid] = {
                    "visible": environment.get("CUDA_VISIBLE_DEVICES"), "order": environment.get("CUDA_DEVICE_ORDER"),
                    "onnxruntime": "libonnxruntime" in libraries or seen.get(pid, {}).get("onnxruntime", False),
                    "cuda": "libcuda.so" in libraries or seen.get(pid, {}).get("cuda", False),
                }
            try:
                maps += Path(f"/proc/{run.pid}/maps").read_text()
            except OSError:
                pass
            if check.gpu and time.monotonic() - asked > 0.3:
                computing |= {number(pid) for (pid,) in smi(on_gpu)}
                asked = time.monotonic()
            time.sleep(0.02)
    check.figures["isolation"] = list(seen.values())
    visible = sorted({str(worker["visible"]) for worker in seen.values()})
    one = all(v.startswith(("GPU-", "MIG-")) and "," not in v for v in visible) if check.gpu else visible == [""]
    check.row("isolation", f"{len(seen)} workers see", ", ".join(visible)[:34] or "nothing", check.judge(one and len(seen) >= 2))
    if check.gpu:
        check.row("isolation", "workers have CUDA loaded", str(all(w["cuda"] for w in seen.values())), check.judge(all(w["cuda"] for w in seen.values())))
    # Not `libcuda.so`: the driver's library of management opens it by itself, and starts nothing in it.
    loaded = sorted(set(re.findall(r"/([^/\s]*(?:libonnxruntime|libcudart|libcublas|libcudnn)[^/\s]*)$", maps, re.MULTILINE)))
    check.row("isolation", "the parent has of ONNX Runtime and CUDA loaded", ", ".join(loaded) or "nothing", check.judge(not loaded))
    if check.gpu:
        what = "on the GPU, by the driver's list"
        if computing & seen.keys():
            value = f"{len(computing)} processes, the parent is {'one' if run.pid in computing else 'none'} of them"
            check.row("isolation", what, value, check.judge(run.pid not in computing))
        else:
            check.row("isolation", what, "not seen: the driver calls processes by other numbers here", "-")


# ## Parity


def logits(check: Check, name: str, model: str, device: str, normalize: str, keys: str = "") -> list[list[float]]:
    source = check.listing("photos", PARITY_ITEMS)
    file = check.workflow(
        name, model, source=source, device=device, normalize=normalize, answer="", sink="run", model_keys=keys, batch=16 if device != "cpu" else 8
    )
    out = check.out_of(file)
    check.must(["run", str(file), "--fresh", "--offline", "--output", str(out)], 180)
    records = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    if len(records) != PARITY_ITEMS:
        raise Fault(f"{len(records)} records for {PARITY_ITEMS} items")
    records.sort(key=lambda record: record["index"])
    return [record["result"]["logits"]["data"] for record in records]


def difference(a: list[list[float]], b: list[list[float]]) -> tuple[float, float, float]:
    """Largest absolute difference, that by the largest value, and the share of items with the same best class."""
    pairs = [(x, y) for left, right in zip(a, b) for x, y in zip(left, right)]
    if not all(math.isfinite(v) for pair in pairs for v in pair):
        return math.inf, math.inf, 0.0
    most = max(abs(x - y) for x, y in pairs)
    same = sum(left.index(max(left)) == right.index(max(right)) for left, right in zip(a, b)) / len(a)
    return most, most / max(abs(y) for _, y in pairs), same


def models(check: Check) -> tuple[str, ...]:
    """The models of this set."""
    return {"first": FIRST_MODELS, "rest": MODELS[len(FIRST_MODELS) :], "all": MODELS}[check.set]


def parity(check: Check) -> None:
    for model in models(check):
        if too_late(check, "parity", model, 60):
            continue
        base = model[-3:]
        reference = logits(check, f"parity-{model}-cpu", model, "cpu", "host")
        # Without TF32 ONNX Runtime takes no tensor cores at all, not for f16 either, which no run does that says nothing about it.
        keys = "tf32 = false" if base == "f32" else ""
        cases = [("normalize = device", "device", keys, base)]
        if base == "f32" and check.gpu:
            cases.append(("normalize = device, TF32", "device", "tf32 = true", "tf32"))
        cases.append(("normalize = host", "host", keys, base))
        for index, (label, normalize, keys, kind) in enumerate(cases):
            found = logits(check, f"parity-{model}-{index}", model, check.device, normalize, keys)
            most, relative, same = difference(found, reference)
            largest = max(abs(v) for row in reference for v in row)
            bound = PARITY[kind] * max(1.0, largest / SMALL_LOGITS)
            check.figures.setdefault("parity", []).append({"model": model, "case": label, "abs": most, "rel": relative, "same_best": same})
            check.row(
                "parity", f"{model} on {check.device} against cpu, {label}", f"abs {most:.1e} rel {relative:.1e} best {same:.0%}",
                check.judge(most <= bound and same >= LEAST_SAME_BEST),
            )


# ## Memory


def memory(check: Check) -> None:
    """What workers take, against what the plan says."""
    batch = 32 if check.gpu else 4
    taken = {}
    for count in (1, 2):
        items = 6000 if check.gpu else 60 * count
        file = check.workflow(
            f"memory-{count}", "resnet50-f32", source=check.listing("small", items), batch=batch, model_keys=f"workers = {count}"
        )
        used = check.smi("memory.used") if check.gpu else []
        base = number(used[0][0]) if used else 0.0
        with Sampler(check) as sampler:
            check.must(["run", str(file), "--fresh", "--offline", "--output", str(check.out_of(file))], 120)
        taken[count] = (sampler.most(1) or 0.0) - (base or 0.0)
        check.row("memory", f"resnet50-f32, {count} workers, batches of {batch}, taken at most", f"{taken[count]:.0f} MiB")
    second = taken[2] - taken[1]
    check.row("memory", "a second worker takes, against the first", f"{second:.0f} against {taken[1]:.0f} MiB")
    file = check.workflow("memory-plan", "resnet50-f32", batch=batch)
    planned = json.loads(check.must(["plan", str(file), "--offline", "--json"], 120).stdout)
    known = next((stage["runs"]["workers"][0]["memory"] for stage in planned["stages"] if "workers" in stage["runs"]), None)
    if check.gpu:
        bytes_of_one = (known or {}).get("bytes", 0)
        good = abs(bytes_of_one / 2**20 - second) <= MEMORY_SLACK * second + 64
        check.row("memory", "the plan knows of one worker, against what the second took", f"{bytes_of_one / 2**20:.0f} against {second:.0f} MiB", check.judge(good))
    plan = check.must(["plan", str(file), "--offline"], 120)
    check.figures["memory"] = {"taken_mib": taken, "plan": plan.stdout}
    for line in plan.stdout.splitlines():
        if re.search(r"worker|measured|headroom", line) and len(line.strip()) > 12:
            check.row("memory", "plan: " + line.strip()[:160], "")


# ## Rates


def too_late(check: Check, part: str, what: str, needs: float) -> bool:
    if check.left() >= needs:
        return False
    check.row(part, what, "left out: no time", "-")
    check.left_out.append(f"{part}: {what}")
    check.cut.append(part)
    return True


def rates(check: Check) -> None:
    """Per batch size the bare loop; for some of them the rate through orchestra, side by side with the bare loop of the same command."""
    top, through = (128, (64,) if check.set == "first" else (64, 8)) if check.gpu else (4, (4,))
    seconds = "1" if check.gpu else "0.5"
    # That of the warm-up comes first: after any other one its plan would be gone.
    sizes = [top, *(1 << i for i in range(top.bit_length() - 1))]
    files = {}
    for model in models(check):
        if too_late(check, "rates", model, 75):
            continue
        source = check.listing("small", 200_000 if check.gpu else 2_000)
        file = check.workflow(f"rates-{model}", model, source=source, batch=top)
        files[model] = file
        with Sampler(check) as sampler:
            arguments = ["bench", str(file), f"--batch-sizes={','.join(map(str, sizes))}", "--offline", "--json", "--seconds", seconds]
            report = json.loads(check.must(arguments, 120).stdout)
        for size in report["batch_sizes"]:
            check.row("rates", f"{model}, bare loop, batches of {size['batch']}", f"{size['items_per_second']:.0f} items/s")
        check.figures.setdefault("batch_sizes", {})[model] = report["batch_sizes"]
        first_batches(check, model, report["batch_sizes"])
        check.row("rates", f"{model}, bare loop, utilisation (median)", percent(sampler.median(0)))
    # What matters most comes first: there may not be time for all of it.
    for batch in through:
        for model, file in files.items():
            if not too_late(check, "rates", f"{model}, through orchestra, batches of {batch}", 60):
                one_rate(check, file, model, batch, seconds)
    if check.gpu and not check.judged_rates:
        # Where decoding is slower than each model, nothing was shown about the path to the GPU.
        check.row("rates", "through orchestra against the bare loop, for any model", "never the limit here: take a machine with more cores", "FAIL")


def first_batches(check: Check, model: str, sizes: list[dict]) -> None:
    """What a size costs that is new, and what a change of size costs, against the median. A run pads all to the largest, which is warm."""
    warm = sizes[0]
    stall = warm["first_batch_seconds"] / max(warm["median_batch_seconds"], 1e-9)
    # Sessions on a CPU are not warmed up: nothing is compiled or searched for there.
    verdict = check.judge(stall <= MOST_STALL) if check.gpu else ""
    check.row("rates", f"{model}, first batch of the warm size against the median", f"{stall:.1f} times (batches of {warm['batch']})", verdict)
    for what, key in (("first batch of a size", "first_batch_seconds"), ("a batch behind one of another size", "switched_batch_seconds")):
        most, batch = max((size[key] / max(size["median_batch_seconds"], 1e-9), size["batch"]) for size in sizes)
        check.row("rates", f"{model}, {what} against the median, at most", f"{most:.1f} times (batches of {batch})")
    cheaper = [str(size["batch"]) for size in sizes[1:] if size["switched_batch_seconds"] < warm["median_batch_seconds"]]
    check.row("rates", f"{model}, sizes whose change costs less than to be padded to {warm['batch']}", ", ".join(cheaper) or "none")


def one_rate(check: Check, file: Path, model: str, batch: int, seconds: str) -> None:
    items = ["--items", "200"] if not check.gpu else []
    arguments = ["bench", str(file), "--offline", "--json", "--runs", "1", "--seconds", seconds, *items, "--set", f"stages.run.batch.max={batch}"]
    with Sampler(check) as sampler:
        report = json.loads(check.must(arguments, 150).stdout)
    bare = sum(part["items_per_second"]["median"] for part in report["infer"])
    run, limit = report["run_items_per_second"], report["limit_items_per_second"]
    figures = {"model": model, "batch": batch, "bare": bare, "run": run, "limit": limit, "ratio": run / bare if bare else 0, "pace": report["bottleneck"]}
    check.figures.setdefault("through", []).append({**figures, "utilisation": sampler.median(0), "power": sampler.median(2)})
    # On a CPU decoding shares the cores, so the bare loop is no limit there; the limit is.
    fair = check.gpu and limit < 0.99 * bare
    verdict = "-" if fair else check.judge(not report["too_short"] and figures["ratio"] >= LEAST_RATIO) if check.gpu else ""
    check.judged_rates += verdict not in ("-", "")
    against = "limit" if not check.gpu or fair else "bare"
    check.row(
        "rates", f"{model}, through orchestra, batches of {batch}, by {report['bottleneck']}",
        f"{run:.0f} of {limit if against == 'limit' else bare:.0f} ({against}) = {run / (limit if against == 'limit' else bare):.2f}", verdict,
    )
    check.row("rates", f"{model}, utilisation while that ran (median)", percent(sampler.median(0)))


# ## Ways to keep a GPU busy


def ways(check: Check) -> None:
    """Whether each way to run a model gives the same answers, and its bare rate against that of one worker with one batch at a time."""
    model = "mobilenet-f32"
    top, seconds = (64, "2") if check.gpu else (4, "0.5")
    cases = [("one worker", "workers = 1"), ("two workers", "workers = 2"), ("streams = 2", "workers = 1\nstreams = 2")]
    if check.gpu:
        cases += [("four workers", "workers = 4"), ("two workers, MPS", "workers = 2"), ("four workers, MPS", "workers = 4"), ("blocking_sync", "workers = 1\nblocking_sync = true")]
        cases += [(f"conv_search = {search}", f'workers = 1\nconv_search = "{search}"') for search in ("exhaustive", "fallback")]
        cases += [("cuda_graphs", "workers = 1\ncuda_graphs = true"), ("tensorrt", 'workers = 1\nprovider = "tensorrt"')]
    reference = logits(check, "ways-cpu", model, "cpu", "host")
    bound = PARITY["f32"] * max(1.0, max(abs(v) for row in reference for v in row) / SMALL_LOGITS)
    first = 0.0
    rates, cores = {}, {}
    for index, (label, keys) in enumerate(cases):
        if too_late(check, "ways", label, 30 if check.gpu else 60):
            continue
        keys += "\ntf32 = false"
        try:
            with mps(check) if "MPS" in label else contextlib.nullcontext():
                most, relative, _ = difference(logits(check, f"ways-{index}", model, check.device, "host", keys), reference)
                size = alone(check, check.workflow(f"ways-rate-{index}", model, batch=top, model_keys=keys), top, seconds)
        except Fault as fault:
            # Few machines have TensorRT, and nothing else needs it; a container may have no MPS.
            without = (label == "tensorrt" and "libnvinfer" in str(fault)) or str(fault).startswith(NO_MPS)
            check.left_out += [f"ways: {label}"] if without else []
            check.row("ways", f"{label}: {str(fault)[:160]}", "left out" if without else "", "-" if without else "FAIL")
            continue
        rates[label] = rate = size["items_per_second"]
        cores[label] = rate * size["cpu_seconds_per_item"]
        first = first or rate
        check.figures.setdefault("ways", []).append({"way": label, "abs": most, "rel": relative, "items_per_second": rate})
        check.row(
            "ways", f"{model}, {label}, batches of {top}", f"{rate:.0f} items/s, {rate / first:.2f} of one worker, busy {busy(size)}, {cores[label]:.1f} cores, abs {most:.1e}",
            check.judge(most <= bound),
        )
    decide_workers(check, model, rates)
    one = {label: rate for label, rate in rates.items() if label == "one worker"}
    for label in ("streams = 2", "cuda_graphs", "tensorrt"):
        check.decide("ways", label, {**one, **({label: rates[label]} if label in rates else {})}, "one worker")
    searches = {label: rate for label, rate in rates.items() if label.startswith("conv_search")}
    check.decide("ways", "conv_search", {"heuristic": rates.get("one worker", 0.0), **searches} if searches else {}, "heuristic")
    if "blocking_sync" in rates and one:
        # It is worth having where it costs no rate and frees a part of a core.
        frees = rates["blocking_sync"] * NEARLY >= one["one worker"] and cores["one worker"] - cores["blocking_sync"] > 0.1
        value = f"{cores['one worker']:.1f} cores without, {cores['blocking_sync']:.1f} with it, {rates['blocking_sync'] / one['one worker']:.2f} of the rate"
        check.row("ways", "decides blocking_sync: off", value, "change" if frees else "keep")


WORKERS = {1: "one worker", 2: "two workers", 4: "four workers"}


def decide_workers(check: Check, model: str, rates: dict[str, float]) -> None:
    """The fewest workers that are nearly as fast as any number, beside what the program starts where the file does not say it, with MPS and without."""
    for with_mps in ("", ", MPS"):
        of = {n: rates[label + with_mps] for n, label in WORKERS.items() if label + with_mps in rates}
        if with_mps and of and WORKERS[1] in rates:
            of[1] = rates[WORKERS[1]]
        default = default_workers(check, model, bool(with_mps)) if len(of) >= 2 else None
        if default is None:
            continue
        fewest = min(n for n, rate in of.items() if rate * NEARLY >= max(of.values()))
        check.decisions.append({"what": f"workers per device{with_mps}", "default": default, "best": fewest})
        check.row("ways", f"decides workers per device{with_mps}: up to {default}", f"{fewest} are enough, {of[fewest] / of[1]:.2f} of one", "keep" if fewest == default else "change")


def default_workers(check: Check, model: str, with_mps: bool) -> int | None:
    """How many workers come of a plan that names no number; MPS is known by its pipes alone."""
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        (Path(folder) / "control").touch()
        environment = {**check.environment, **({"CUDA_MPS_PIPE_DIRECTORY": folder} if with_mps else {})}
        arguments = ["plan", str(check.workflow("workers", model)), "--offline", "--json"]
        plan = json.loads(check.must(arguments, 120, environment=environment).stdout)
    placed = next((stage["runs"]["workers"][0] for stage in plan["stages"] if "workers" in stage["runs"]), None)
    return placed and ((placed.get("growth") or {}).get("most") or placed["count"])


NO_MPS = "MPS does not start"


@contextlib.contextmanager
def mps(check: Check) -> Iterator[None]:
    """NVIDIA's Multi-Process Service for as long as this lasts, with pipes of its own; one that runs already stays as it is and is not used."""
    usual = check.environment
    # Names of sockets are short. The daemon may still write its log when it is asked to quit.
    with tempfile.TemporaryDirectory(prefix="mps-", ignore_cleanup_errors=True) as folder:
        own = {**usual, "CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        said = Path(folder) / "said"
        # To a file: the daemon may keep what it was started with, and a pipe would not end before it.
        with said.open("wb") as file:
            to_file = {"stdout": file, "stderr": subprocess.STDOUT, "env": own}
            try:
                try:
                    ended = check.tool(["nvidia-cuda-mps-control", "-d"], timeout=30, stdin=subprocess.DEVNULL, **to_file)
                except (OSError, subprocess.TimeoutExpired) as error:
                    raise Fault(f"{NO_MPS}: {error}") from None
                if ended.returncode != 0:
                    raise Fault(f"{NO_MPS}: {last_words(said.read_text(errors='replace'))}")
                check.environment = own
                yield
            finally:
                check.environment = usual
                with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                    check.tool(["nvidia-cuda-mps-control"], timeout=60, input=b"quit\n", **to_file)


def overlap(check: Check) -> None:
    """Rows of the next batch on their way while this one is computed, and not: the same answers, and the bare rate of each beside that of the session's
    runs alone, in which no row goes to the GPU where the copies overlap, and beside the part of the time in which the device computed."""
    # The driver's account of a GPU is of up to a second.
    model, (top, seconds) = "mobilenet-f32", (64, "3") if check.gpu else (4, "0.5")
    cases = [("copies first", ""), ("overlap", "overlap = true")] if check.gpu else [("copies first", "")]
    reference = logits(check, "overlap-cpu", model, "cpu", "host")
    bound = PARITY["f32"] * max(1.0, max(abs(v) for row in reference for v in row) / SMALL_LOGITS)
    rates: dict[str, dict[str, float]] = {"host": {}, "device": {}}
    for index, (label, keys) in enumerate(cases):
        if too_late(check, "overlap", label, 40):
            continue
        keys += "\nworkers = 1\ntf32 = false"
        most, _, _ = difference(logits(check, f"overlap-{index}", model, check.device, "host", keys), reference)
        for normalize in ("host", "device"):
            file = check.workflow(f"overlap-rate-{index}-{normalize}", model, batch=top, model_keys=keys, normalize=normalize)
            size = alone(check, file, top, seconds)
            runs = size["batch"] / max(size["median_run_seconds"], 1e-9)
            rates[normalize][label] = size["items_per_second"]
            check.figures.setdefault("overlap", []).append({"case": label, "normalize": normalize, "abs": most, "size": size})
            check.row(
                "overlap", f"{model}, normalize = {normalize}, {label}, batches of {size['batch']}",
                f"{size['items_per_second']:.0f} of {runs:.0f} (its runs alone) = {size['items_per_second'] / runs:.2f}, busy {busy(size)}, abs {most:.1e}",
                check.judge(most <= bound),
            )
    for normalize, of in rates.items():
        check.decide("overlap", f"overlap, normalize = {normalize}", of, "copies first")


def jpeg(check: Check) -> None:
    """How many photographs the GPU decodes in a second, by nvJPEG where its library is there, beside what the cores decode and prepare, from the part
    `end to end`."""
    folders = [str(check.kit / "cuda"), *filter(None, os.environ.get("ORCHESTRA_CUDA_LIBRARIES", "").split(":"))]
    command = [sys.executable, str(check.kit / "gpu_jpeg.py"), str(check.kit / "photos"), "64", "2", *folders]
    ended = check.tool(command, capture_output=True, text=True, timeout=60, env=os.environ | ({"CUDA_VISIBLE_DEVICES": check.uuid} if check.uuid else {}))
    said = json.loads(ended.stdout) if ended.stdout.strip() else {"why": last_words(ended.stderr)}
    check.figures["nvjpeg"] = said
    rate = said.get("pictures_per_second")
    wholes = check.figures.get("end_to_end", [])
    decoded = [sum(part["items_per_second"]["median"] for part in whole["report"]["decode"]) for whole in wholes[:1]]
    by_cores = [f"{rate:.0f} items/s by {check.cores} cores" for rate in decoded]
    by_gpu = f"{rate:.0f} items/s" if rate else f"not run: {said['why'][:120]}"
    check.row("jpeg", "photographs by nvJPEG, batches of 64", "; ".join([by_gpu, *by_cores]))
    check.decide("jpeg", "decoding", {"the cores": decoded[0], "nvJPEG": rate} if decoded and rate else {}, "the cores")


def alone(check: Check, file: Path, batch: int, seconds: str) -> dict:
    """The bare loop with batches of one size."""
    arguments = ["bench", str(file), f"--batch-sizes={batch}", "--offline", "--json", "--seconds", seconds]
    return json.loads(check.must(arguments, 240).stdout)["batch_sizes"][-1]


def busy(size: dict) -> str:
    """How busy the device was in the bare loop: kernels on the GPU, by its driver; on the CPU the time of its cores that the worker took."""
    return percent(None if size["device_busy"] is None else 100 * size["device_busy"])


def padded(check: Check, top: int, seconds: str) -> None:
    """Batches that leave as soon as a worker is free, so of any size: padded to one size, and to the next of several."""
    model = "mobilenet-f32"
    file = check.workflow("padded", model, source=check.listing("small", 100_000 if check.gpu else 400), batch=top)
    rates, limits, by = [], [], set()
    for sizes in ([top], [1 << i for i in range(top.bit_length())]):
        arguments = ["bench", str(file), "--offline", "--json", "--runs", "1", "--seconds", seconds, "--set", "stages.run.batch.wait=\"0s\""]
        report = json.loads(check.must([*arguments, "--set", f"stages.run.batch.sizes={sizes}"], 150).stdout)
        rates.append(report["run_items_per_second"])
        limits.append(f"{report['bottleneck']}, limit {report['limit_items_per_second']:.0f}")
        by.add(report["bottleneck"])
    check.figures["padded"] = {"rates": rates, "limits": limits}
    value = f"{rates[0]:.0f} ({limits[0]}), {rates[1]:.0f} ({limits[1]}) items/s"
    check.row("ragged", f"{model}, batches of up to {top} at once: padded to one size, to several", value)
    if by == {"inference"}:
        check.decide("ragged", "batch.sizes", {"one size": rates[0], "several": rates[1]}, "one size")
    else:
        # Both would then be as fast as what they wait for.
        check.row("ragged", "decides batch.sizes: one size", f"undecided: paced by {' and '.join(sorted(by))}", "-")


def ragged(check: Check) -> None:
    """What a convolution costs if its shape changes with every batch, for each way of cuDNN to find kernels: in the bare loop of a reader of lines, one size
    again and again, and in turn with another one. A width that changes costs the same: the plan of a convolution is for all dimensions. A
    workflow has lines of several widths, each with a session of its own whose shape stays: the last line runs three of them on one device."""
    top, seconds = (32, "1") if check.gpu else (4, "0.3")
    stays, changes = {}, {}
    for search in ("heuristic", "exhaustive", "fallback") if check.gpu else ("heuristic",):
        if too_late(check, "ragged", f"conv_search = {search}", 60):
            continue
        keys = f'conv_search = "{search}"\nworkers = 1'
        file = check.workflow(f"ragged-{search}", "reader-f32", batch=top, model_keys=keys, stages=LINES.format(width=192, batch=top))
        arguments = ["bench", str(file), f"--batch-sizes={top - 1},{top}", "--offline", "--json", "--seconds", seconds]
        size = json.loads(check.must(arguments, 120).stdout)["batch_sizes"][-1]
        check.figures.setdefault("ragged", {})[search] = size
        each, usual = size["switched_batch_seconds"], size["median_batch_seconds"]
        stays[search], changes[search] = size["batch"] / usual, size["batch"] / each
        check.row(
            "ragged", f"reader, conv_search = {search}, batches of {top}: one shape, another shape every time",
            f"{stays[search]:.0f}, {changes[search]:.0f} items/s, {1000 * (each - usual):.1f} ms a change",
        )
    check.decide("ragged", "conv_search of shapes that stay", stays, "heuristic")
    if not too_late(check, "ragged", "padded", 120):
        padded(check, top, seconds)
    if too_late(check, "ragged", "three widths", 60):
        return
    stages = "".join(LINES.format(width=width, batch=top) for width in (96, 192, 384))
    file = check.workflow("widths", "reader-f32", source=check.listing("small", 20_000 if check.gpu else 100), batch=top, stages=stages)
    arguments = ["bench", str(file), "--offline", "--json", "--runs", "1", "--seconds", seconds]
    report = json.loads(check.must(arguments, 150).stdout)
    check.figures["widths"] = report
    check.row(
        "ragged", "reader, lines of three widths at once, a session for each",
        f"{report['run_items_per_second']:.0f} of {report['limit_items_per_second']:.0f} (limit) lines of each",
    )
    # A line of each width, one session after the other, beside one session that reads them in turn: 192 is between the others.
    alone_each = [part["items_per_second"]["median"] for part in report["infer"]]
    if changes and all(alone_each):
        rate = len(alone_each) / sum(1 / each for each in alone_each)
        check.decide("ragged", "lines of any width", {"stages of fixed width": rate, "one session for all": max(changes.values())}, "stages of fixed width")


def percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f}%"


def end_to_end(check: Check) -> None:
    """From JPEG files of about 500x375 to answers."""
    cases = (("mobilenet-f32", "device"), ("resnet50-f16", "device"), ("mobilenet-f32", "host"))
    for model, normalize in {"first": cases[:1], "rest": cases[1:], "all": cases}[check.set]:
        label = f"{model}, photographs, normalize = {normalize}"
        if too_late(check, "end to end", label, 50):
            continue
        model = model if check.gpu else model[:-3] + "f32"
        # So many that what is on its way at the end counts for little.
        source = check.listing("photos", 150_000 if check.gpu else 600)
        file = check.workflow(f"whole-{model}-{normalize}", model, source=source, normalize=normalize, batch=64 if check.gpu else 4)
        items = ["--items", "120"] if not check.gpu else []
        arguments = ["bench", str(file), "--offline", "--json", "--runs", "1", "--seconds", "4" if check.gpu else "1.5", *items]
        report = json.loads(check.must(arguments, 150).stdout)
        check.figures.setdefault("end_to_end", []).append({"what": label, "report": report})
        ratio = report["ratio"]
        shown = "too short for a ratio" if ratio is None else f"{ratio:.2f}"
        check.row(
            "end to end", f"{label}: by {report['bottleneck']}, limited by {report['limited_by']}",
            f"{report['run_items_per_second']:.0f} of {report['limit_items_per_second']:.0f} = {shown}",
            check.judge(ratio is not None and ratio >= LEAST_RATIO) if check.gpu else "",
        )


# ## Faults


def taken_now(check: Check) -> float | None:
    rows = check.smi("memory.used") if check.gpu else []
    return number(rows[0][0]) if rows else None


def kill_storm(check: Check) -> None:
    # So many that a fast program is struck, too: a storm without a kill proves nothing.
    items, every, stop = ("200000", "1s", "4s") if check.gpu else ("2000", "200ms", "2s")
    source = check.listing("small", int(items))
    file = check.workflow("storm", "mobilenet-f32", source=source, batch=32 if check.gpu else 4, model_keys="workers = 2")
    arguments = ["chaos", str(file), "--offline", "--json", "--items", items, "--kill-every", every, "--stop-every", stop]
    before = taken_now(check)
    ended = check.run(arguments, 150)
    if not ended.stdout.strip():
        raise Fault(f"exit code {ended.returncode}: {last_words(ended.stderr)}")
    report = json.loads(ended.stdout)
    check.figures["chaos"] = report
    struck = report["kills"] > 0 and ended.returncode == 0
    check.row("faults", f"kill storm: {report['kills']} kills, {report['stops']} stops over {report['items']} items", f"exit code {ended.returncode}", check.judge(struck))
    wrong = {key: report[key] for key in ("lost", "doubled", "differing", "unknown")}
    check.row("faults", "lost, doubled, differing, unknown", ", ".join(str(v) for v in wrong.values()), check.judge(not any(wrong.values())))
    check.row("faults", "processes or memory left behind", str(len(report["leaks"])), check.judge(not report["leaks"]))
    after = taken_now(check)
    if before is not None and after is not None:
        # Others on the GPU may have taken or given back a little meanwhile; a worker with a model takes far more.
        check.row("faults", "memory of the GPU taken before and after", f"{before:.0f} and {after:.0f} MiB", check.judge(after - before < 200))
    for key, what in (("load", "start of a worker, from Load to ready"), ("kill_recovery", "recovery after a kill"), ("stop_recovery", "recovery after a stop")):
        if report.get(key):
            check.row("times", f"{what}, median and largest", f"{report[key]['p50']:.2f} s, {report[key]['max']:.2f} s")


def out_of_memory(check: Check) -> None:
    """Less memory than a whole batch needs: the run has to find out what fits, and lose nothing."""
    items, batch = (2000, 256) if check.gpu else (128, 64)
    keys = 'memory_limit = "1500MiB"\nworkers = 1' if check.gpu else "workers = 1\nthreads = 2"
    file = check.workflow("memory-out", "resnet50-f32", source=check.listing("small", items), batch=batch, model_keys=keys)
    out = check.out_of(file)
    arguments = ["run", str(file), "--fresh", "--offline", "--output", str(out)]
    if check.gpu or check.is_dry:
        ended = check.run(arguments, 150)
    else:
        check.note(["orchestra", *arguments])
        # Address space takes the part of device memory: the worker's own allocator then fails in the same place.
        limited = subprocess.run(
            ["bash", "-c", 'ulimit -v 900000; exec "$@"', "bash", str(check.orchestra), *arguments],
            env=check.environment, capture_output=True, text=True, timeout=max(20, min(150, check.left() + 20)),
        )
        ended = limited
    if ended.returncode not in (0, 65):
        raise Fault(f"exit code {ended.returncode}: {last_words(ended.stderr)}")
    done = sum(1 for _ in (out / "results.jsonl").open())
    report = json.loads((out / "run.json").read_text())
    logs = "".join(path.read_text() for path in (out / "logs").glob("*.log"))
    halved = len(re.findall(r"batch taken apart", logs))
    check.figures["out_of_memory"] = {"report": report, "halved": halved}
    check.row("faults", f"out of memory: {items} items, batches of {batch}", f"{done} done, {report['items']['failed']} failed", check.judge(done == items))
    check.row("faults", "out of memory: batches halved, restarts", f"{halved}, {sum(d['restarts'] for d in report['devices'])}", check.judge(halved > 0))


def startup(check: Check) -> None:
    """One image, alone: what a user waits for."""
    for model in ("mobilenet-f32", "resnet50-f32"):
        file = check.workflow(f"startup-{model}", model, source=check.listing("small", 1), model_keys="workers = 1")
        started = time.monotonic()
        check.must(["run", str(file), "--fresh", "--offline", "--output", str(check.out_of(file))], 120)
        check.row("times", f"{model}: one image, from the command to its end", f"{time.monotonic() - started:.2f} s")


# In the order of their worth.
PARTS = {
    "machine": machine, "isolation": isolation, "parity": parity, "faults": kill_storm, "end_to_end": end_to_end, "rates": rates, "overlap": overlap,
    "commands": commands, "kernels": kernels, "ragged": ragged, "ways": ways, "oom": out_of_memory, "memory": memory, "python": python, "startup": startup, "jpeg": jpeg,
}
# What is proven first, and in how many seconds; the rest is for a second call. Parts in both have other models and cases in each.
FIRST = ("machine", "isolation", "parity", "faults", "end_to_end", "rates", "overlap", "commands", "kernels")
REST = ("parity", "end_to_end", "rates", "ragged", "ways", "oom", "memory", "python", "startup", "jpeg")
SECONDS = {"first": 300, "rest": 540, "all": 840}
# Figures to choose by, and no promise: a check without them is complete.
OPTIONAL = {"ways", "ragged", "jpeg"}


def run_parts(check: Check, parts: tuple[str, ...] | list[str]) -> None:
    for name, part in PARTS.items():
        if name not in parts:
            continue
        try:
            if not too_late(check, name, "the whole part", 15):
                part(check)
        except Fault as fault:
            check.row(name, str(fault), "", "FAIL")
        except Exception:  # A check that falls over is a line, too.
            traceback.print_exc()
            check.row(name, f"the check itself fell over: {last_words(traceback.format_exc())}", "", "FAIL")


def shown(asked: argparse.Namespace, parts: tuple[str, ...] | list[str], shows_all: bool) -> list[str]:
    """The commands of a dry run. `shows_all`: also those of packages that are not installed here."""
    with tempfile.TemporaryDirectory() as folder:
        dry = DryRun(argparse.Namespace(**{**vars(asked), "output": Path(folder) / "out"}))
        dry.shows_all = shows_all
        run_parts(dry, parts)
    if dry.rows:
        raise SystemExit(f"gpu-check: the dry run fell over: {dry.rows}")
    return dry.commands


def main() -> int:
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(prog="gpu-check.sh", description="Prove orchestra on a machine with a GPU.")
    parser.add_argument("--kit", type=Path, default=here, help="the folder that scripts/gpu-pack.sh made (default: where this file lies)")
    parser.add_argument("--device", default="cuda:0", help="cuda:0 (default), another GPU, or cpu")
    parser.add_argument("--output", type=Path, default=Path("gpu-check.out"), help="folder for the JSON file and the runs (default: gpu-check.out)")
    parser.add_argument(
        "--set", choices=list(SECONDS), default="first",
        help="first (default): isolation, parity, commands, a kill storm, end to end and a rate, in five minutes; rest: everything else; all: both",
    )
    parser.add_argument("--seconds", type=float, help=f"what does not fit into so many seconds is left out (default: by set, {SECONDS})")
    parser.add_argument("--only", default="", help=f"comma-separated parts: {', '.join(PARTS)}")
    parser.add_argument("--dry-run", action="store_true", help="print what has to be carried to the machine and every command that would be run, in its order, and run none")
    asked = parser.parse_args()
    only = [part for part in asked.only.split(",") if part]
    if unknown := [part for part in only if part not in PARTS]:
        parser.error(f"unknown part `{unknown[0]}`: {', '.join(PARTS)}")
    if asked.seconds is None:
        asked.seconds = SECONDS[asked.set]
    parts = only or {"first": FIRST, "rest": REST, "all": tuple(PARTS)}[asked.set]
    if asked.dry_run:
        print("\n".join([*to_carry(asked.kit.resolve()), *shown(asked, parts, shows_all=True)]))
        return 0
    try:
        check = Check(asked)
    except Fault as fault:
        raise SystemExit(f"gpu-check: {fault}") from None
    started = time.monotonic()
    where = "" if check.gpu else " (NO GPU: the twin on the CPU, which proves the check and not a GPU)"
    print(f"gpu-check on {check.device}, set {check.set}{where}")
    run_parts(check, parts)
    if not check.left_out:
        # What was shown before is what was done.
        same = shown(asked, parts, shows_all=False) == check.commands
        check.row("check", "commands are those of the dry run", str(len(check.commands)), check.judge(same))
    failed = sum(row["verdict"] == "FAIL" for row in check.rows)
    check.row("check", "seconds in all", f"{time.monotonic() - started:.0f}")
    shutil.rmtree(check.output / "work", ignore_errors=True)
    check.output.mkdir(parents=True, exist_ok=True)
    report = {"device": check.device, "date": time.strftime("%Y-%m-%d"), "rows": check.rows, "commands": check.commands, "decisions": check.decisions, "figures": check.figures}
    (check.output / "gpu-check.json").write_text(json.dumps(report, indent=1))
    (check.output / "gpu-check.md").write_text(markdown(check))
    for row in check.rows:
        # What a CPU is fastest with says nothing of a GPU.
        if check.gpu and row["verdict"] == "change":
            print(f"a default to change, {row['part']}: {row['what']}: {row['value']}")
    print(f"{failed} of {len(check.rows)} lines failed; {check.output}/gpu-check.json, gpu-check.md")
    missing = [what for what in check.left_out if what.split(":")[0] not in OPTIONAL]
    if missing:
        parts = ",".join(dict.fromkeys(what.split(":")[0].replace(" ", "_") for what in missing))
        print(f"INCOMPLETE: {len(missing)} lines were left out for lack of time; run them with --only {parts}, or all with --seconds")
    undecided = [part for part in PARTS if part in OPTIONAL & set(check.cut)]
    if undecided:
        print(f"UNDECIDED: there was no time for all figures that defaults are chosen by; run --only {','.join(undecided)}")
    return 1 if failed or missing else 0


def markdown(check: Check) -> str:
    lines = ["| part | what | value | |", "|---|---|---|---|"]
    for row in check.rows:
        lines.append("| " + " | ".join(str(row[key]).replace("|", "/") for key in ("part", "what", "value", "verdict")) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
