"""The dry run of scripts/gpu-check.sh: every command that the check would run, in its order, without running any. It judges nothing.

Answers are made up, such that every part goes on to its end. Paths are written as KIT and OUT, so that lists of two machines can be compared.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from gpu_kit import Check

UUID = "GPU-00000000-0000-0000-0000-000000000000"
BENCH = {
    "decode": [], "infer": [{"items_per_second": {"median": 1.0}}], "run_items_per_second": 1.0, "limit_items_per_second": 1.0, "bottleneck": "inference",
    "limited_by": "inference", "too_short": False, "ratio": 1.0,
}
SIZE = {
    "batch": 1, "items_per_second": 1.0, "first_batch_seconds": 1.0, "median_batch_seconds": 1.0, "median_run_seconds": 1.0, "switched_batch_seconds": 1.0,
    "device_busy": 1.0, "cpu_seconds_per_item": 1.0,
}
CHAOS = {"kills": 1, "stops": 1, "items": 1, "lost": 0, "doubled": 0, "differing": 0, "unknown": 0, "leaks": []}
RECORDS = 48


class DryRun(Check):
    """A check whose commands are noted and not run."""

    is_dry = True

    def row(self, part: str, what: str, value: str, verdict: str = "") -> None:
        if verdict == "FAIL" and "fell over" in what:
            self.rows.append({"part": part, "what": what, "value": value, "verdict": verdict})

    def left(self) -> float:
        return float("inf")

    def run(self, arguments: list[str], timeout: float, environment: dict | None = None) -> subprocess.CompletedProcess:
        self.note(["orchestra", *arguments])
        self.leave_results(arguments)
        return subprocess.CompletedProcess(arguments, self.code_of(arguments, environment), self.answer(arguments), "vadd.cu(1)")

    @contextlib.contextmanager
    def started(self, arguments: list[str], name: str) -> Iterator[SimpleNamespace]:
        self.note(["orchestra", *arguments])
        yield SimpleNamespace(pid=0, poll=lambda: 0)

    def tool(self, command: list[str], **_) -> subprocess.CompletedProcess:
        self.note(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    def code_of(self, arguments: list[str], environment: dict | None) -> int:
        without_gpu = environment is not None and "cpu-only" in environment["ORT_DYLIB_PATH"]
        return 69 if without_gpu and arguments[0] == "run" else 0

    def answer(self, arguments: list[str]) -> str:
        if arguments[0] == "devices":
            return json.dumps({"gpus": [{"uuid": UUID, "name": "a GPU"}] if self.gpu else []})
        if arguments[0] == "plan":
            return json.dumps({"stages": [{"runs": {"workers": [{"count": 1, "memory": None}]}}]}) if "--json" in arguments else "devices: auto takes a GPU, or the CPU, because of nothing"
        if arguments[0] == "bench":
            return json.dumps({"batch_sizes": [SIZE]} if any(a.startswith("--batch-sizes") for a in arguments) else BENCH)
        return json.dumps(CHAOS) if arguments[0] == "chaos" else ""

    def leave_results(self, arguments: list[str]) -> None:
        """What the parts read of a run."""
        if arguments[0] != "run":
            return
        out = Path(arguments[arguments.index("--output") + 1])
        (out / "logs").mkdir(parents=True, exist_ok=True)
        record = {"result": {"logits": {"data": [1.0]}}}
        (out / "results.jsonl").write_text("".join(json.dumps({"index": i, **record}) + "\n" for i in range(RECORDS)))
        (out / "run.json").write_text(json.dumps({"items": {"failed": 0}, "devices": []}))


def to_carry(kit: Path) -> list[str]:
    """What has to reach the machine with the GPU: the parts beside a kit, or the kit itself; one line each, as comments."""
    for folder, names in ((kit.parent / "parts", "*"), (kit, "**/*")):
        if (folder / "SHA256SUMS").is_file():
            files = sorted(path for path in folder.glob(names) if path.is_file())
            sizes = {path: path.stat().st_size / 2**20 for path in files}
            lines = [f"# carry {path.relative_to(folder.parent)}, {size:.1f} MiB" for path, size in sizes.items() if names == "*" or size >= 1]
            return [*lines, f"# carry {len(files)} files of {folder.name}, at most {max(sizes.values()):.1f} MiB each, {sum(sizes.values()):.1f} MiB in all"]
    return ["# carry the parts of a kit; scripts/gpu-pack.sh makes them, and none lie here"]


def plain(command: list[str], kit: Path, output: Path) -> str:
    """A command as both a dry run and a real one write it."""
    text = shlex.join(str(word) for word in command).replace(str(output), "OUT").replace(str(kit), "KIT")
    return re.sub(r"\S*/python3?[\d.]*(?= )", "python3", text)
