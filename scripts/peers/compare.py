"""Runs orchestra and a pool of Python processes in turns, checks that their answers agree, and prints how fast each was.

It prepares nothing and decodes nothing itself. Start it with scripts/bench-peers.sh.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

PEERS = Path(__file__).resolve().parent
WORKLOADS = ("digits", "mobilenet", "mobilenet-1080p", "mobilenet-1080p-exact")
CORES = len(os.sched_getaffinity(0))
AGREEMENT = 0.99  # the lowest share of equal best classes at which two programs did the same work
TIMEOUT = 3600  # seconds for one run


class Failure(Exception):
    """A run that gives no number: it failed, or its answers are not the right ones."""


@dataclass(frozen=True)
class Measurement:
    items: int
    work_seconds: float  # as the program says: without starting up
    wall_seconds: float  # of the whole command
    cpu_seconds: float  # user and system, of the program and all processes that it waited for


@dataclass
class Contestant:
    """One program on one workload, with the settings that it runs with."""

    name: str
    settings: dict[str, object] = field(default_factory=dict)
    runs: list[Measurement] = field(default_factory=list)
    agreement: float = 1.0  # the lowest of all runs

    def said(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.settings.items())

    def rate(self) -> float:
        return statistics.median(run.items / run.work_seconds for run in self.runs)


# ## Running one program


def measured(command: list[str]) -> tuple[str, float, float]:
    """Runs it to its end; gives its standard output, wall seconds and processor seconds. Ctrl-C ends it with all its children."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.perf_counter()
        # A group of its own, so that worker processes of a peer can be ended with it.
        child = subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            old = signal.signal(signal.SIGALRM, on_alarm)
            signal.alarm(TIMEOUT)
            _, status, usage = os.wait4(child.pid, 0)
            signal.alarm(0)
            signal.signal(signal.SIGALRM, old)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
        wall = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        for file in (out, err):
            file.seek(0)
        if child.returncode != 0:
            raise Failure(f"`{' '.join(command)}` ended with {child.returncode}:\n{err.read().decode(errors='replace')[-2000:]}")
        return out.read().decode(), wall, usage.ru_utime + usage.ru_stime


def on_alarm(*_) -> None:
    raise Failure(f"a run took longer than {TIMEOUT} seconds")


def read_answers(path: Path) -> dict[str, int]:
    """Item to its best class. A line that is no record, or a second record of an item, is a failure."""
    answers: dict[str, int] = {}
    with open(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                record = json.loads(line)
                item, best = record["item"], record["result"][0]["class"]
            except (ValueError, KeyError, IndexError, TypeError) as error:
                raise Failure(f"line {number} of the results is not a record: {error!r}") from error
            if item in answers:
                raise Failure(f"two records for `{item}`")
            answers[item] = best
    return answers


def run_orchestra(asked, workflow: Path, folder: Path) -> tuple[Measurement, dict[str, int]]:
    command = [str(asked.orchestra), "run", "--fresh", "--quiet", "--output", str(folder), str(workflow)]
    _, wall, cpu = measured(command)
    account = json.loads((folder / "run.json").read_text())
    answers = read_answers(folder / "results.jsonl")
    # Its own seconds hold the start of its workers, which the peers' do not.
    return Measurement(len(answers), account["seconds"], wall, cpu), answers


def run_pool(contestant: Contestant, workflow: Path, folder: Path) -> tuple[Measurement, dict[str, int]]:
    results = folder / "results.jsonl"
    command = [sys.executable, str(PEERS / "pool.py"), "--workflow", str(workflow), "--output", str(results)]
    command += [word for key, value in contestant.settings.items() for word in (f"--{key}", str(value))]
    said, wall, cpu = measured(command)
    account = json.loads(said.splitlines()[-1])
    return Measurement(account["items"], account["seconds"], wall, cpu), read_answers(results)


class Workload:
    def __init__(self, asked, name: str) -> None:
        self.asked = asked
        self.name = name
        self.workflow = asked.data / f"{name}.toml"
        self.truth: dict[str, int] = {}  # orchestra's first answers

    def run(self, contestant: Contestant) -> Measurement:
        """One checked run: nothing lost, nothing doubled, the same answers."""
        with tempfile.TemporaryDirectory(prefix="bench-peers-") as folder:
            if contestant.name == "orchestra":
                measurement, answers = run_orchestra(self.asked, self.workflow, Path(folder))
            else:
                measurement, answers = run_pool(contestant, self.workflow, Path(folder))
        self.truth = self.truth or answers
        if answers.keys() != self.truth.keys():
            n_other = len(answers.keys() ^ self.truth.keys())
            raise Failure(f"{contestant.name} on {self.name}: {n_other} items are in its records or in orchestra's, and not in both")
        same = sum(answers[item] == best for item, best in self.truth.items()) / len(answers)
        if same < AGREEMENT:
            raise Failure(f"{contestant.name} ({contestant.said()}) agrees with orchestra on {same:.2%} of the items only")
        contestant.agreement = min(contestant.agreement, same)
        return measurement


# ## The best settings of the pool

# To start from.
GUESS: dict[str, object] = {"processes": CORES, "threads": 1, "session-threads": 1, "batch": 8, "loader": "pillow"}
# What is tried, one setting after the other.
CHOICES: dict[str, list[object]] = {
    "loader": ["pillow", "opencv-area", "opencv-linear"],
    "threads": [0, 1, 2],
    "batch": [1, 8, 32, 128],
    "processes": sorted(count for count in {1, max(1, CORES // 2), max(1, CORES - 1), CORES} if count > CORES // 4),
    "session-threads": [1, 2],
}


def tune(workload: Workload) -> Contestant:
    """The fastest settings found: each in turn is set to its best value, the others as they are. Wrong answers do not count."""
    tried: dict[str, float] = {}

    def rate(settings: dict[str, object]) -> float:
        one = Contestant("pool", settings)
        if one.said() not in tried:
            try:
                run = workload.run(one)
                tried[one.said()] = run.items / run.work_seconds
                note(f"  tried {one.said()}: {tried[one.said()]:.0f} items/s")
            except Failure as failure:
                tried[one.said()] = 0.0
                note(f"  tried {one.said()}: {failure}")
        return tried[one.said()]

    best = GUESS
    if not workload.asked.quick:
        for key, values in CHOICES.items():
            best = max(({**best, key: value} for value in values), key=rate)
    return Contestant("pool", best)


# ## Reporting


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def spread(values: list[float]) -> str:
    """Median, and the range that it comes from."""
    return f"{statistics.median(values):,.0f} ({min(values):,.0f}..{max(values):,.0f})"


HEAD = ("workload", "program", "items/s", "orchestra is", "whole command", "orchestra is", "CPU ms/item", "same answers")


def rows(workload: str, contestants: list[Contestant]) -> list[tuple[str, ...]]:
    """One row per program. Ratios are medians of the ratios within one round, so that a slow minute hits both sides."""
    ours = contestants[0].runs
    table = []
    for one in contestants:
        pairs = list(zip(one.runs, ours))
        work = statistics.median((mine.items / mine.work_seconds) / (run.items / run.work_seconds) for run, mine in pairs)
        wall = statistics.median(run.wall_seconds / mine.wall_seconds for run, mine in pairs)
        table.append(
            (
                workload,
                one.name,
                spread([run.items / run.work_seconds for run in one.runs]),
                f"{work:.2f}x" if one.name != "orchestra" else "",
                f"{statistics.median(run.wall_seconds for run in one.runs):.2f} s",
                f"{wall:.2f}x" if one.name != "orchestra" else "",
                f"{statistics.median(run.cpu_seconds / run.items for run in one.runs) * 1000:.3f}",
                f"{one.agreement:.1%}",
            )
        )
    return table


def print_table(table: list[tuple[str, ...]]) -> None:
    """As a Markdown table. docs/measurements.md keeps its ratios."""
    widths = [max(len(row[i]) for row in (HEAD, *table)) for i in range(len(HEAD))]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths)) for row in (HEAD, *table)]
    rule = "|".join("-" * (width + 2) for width in widths)
    print(f"| {lines[0]} |\n|{rule}|")
    for line in lines[1:]:
        print(f"| {line} |")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-peers.sh", description="Orchestra and a pool of Python processes side by side.")
    parser.add_argument("--workload", choices=(*WORKLOADS, "all"), default="all")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--orchestra", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    asked.orchestra, asked.data = asked.orchestra.resolve(), asked.data.resolve()
    if asked.runs < 1:
        parser.error("--runs must be 1 or more")
    return asked


def compare(asked, name: str) -> list[Contestant]:
    """All rounds of one workload: A B A B."""
    workload = Workload(asked, name)
    note(f"{name}: warming up")
    workload.run(Contestant("orchestra"))  # reads every file once, and its answers are what the pool is held against
    contestants = [Contestant("orchestra"), tune(workload)]
    for number in range(1, asked.runs + 1):
        for one in contestants:
            one.runs.append(workload.run(one))
        rates = (f"{one.name} {one.runs[-1].items / one.runs[-1].work_seconds:.0f}" for one in contestants)
        note(f"{name}: round {number} of {asked.runs}, items/s: {', '.join(rates)}")
    return contestants


def main() -> int:
    asked = arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends children and removes folders, as Ctrl-C does
    names = WORKLOADS if asked.workload == "all" else (asked.workload,)
    done: dict[str, list[Contestant]] = {}
    try:
        for name in names:
            done[name] = compare(asked, name)
    except Failure as failure:
        note(f"bench-peers: {failure}")
    except KeyboardInterrupt:
        note("bench-peers: interrupted")
        return 130
    if asked.json and done:
        report = {"machine": platform.machine(), "cores": CORES, "python": platform.python_version(), "runs": asked.runs}
        report["workloads"] = {name: [asdict(one) for one in contestants] for name, contestants in done.items()}
        asked.json.write_text(json.dumps(report, indent=2) + "\n")
    if done:
        print_table([row for name, contestants in done.items() for row in rows(name, contestants)])
        for name, contestants in done.items():
            print(f"{name}, pool: {contestants[1].said()}")
    return 0 if len(done) == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
