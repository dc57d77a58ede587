"""Checks a run: 100 estimates, each once, and never two commands on one slot at the same time.

    python check.py [--output DIR]      # exit code 0: all is well, 1: it is not, 2: usage
"""

import argparse
import glob
import json
import os

here = os.path.dirname(os.path.abspath(__file__))
parser = argparse.ArgumentParser(description="Check a finished run of this example.")
parser.add_argument("--output", default=os.path.join(here, "out"), help="the run's output folder (default: out/ beside this script)")
out = parser.parse_args().output
with open(os.path.join(out, "run.json")) as file:
    tasks = json.load(file)["tasks"]
assert len(tasks) == 101 and all(task["state"] == "done" for task in tasks), "not all tasks are done"

results = []
for path in glob.glob(os.path.join(glob.escape(out), "tasks", "estimate", "*", "output", "pi.json")):
    with open(path) as file:
        results.append(json.load(file))
assert len({(r["step"], r["seed"]) for r in results}) == len(results) == 100

slots = {}
for result in results:
    slots.setdefault(result["slot"], []).append((result["began"], result["ended"]))
assert set(slots) <= {"0", "1", "2", "3"}, "there is a fifth slot"
for times in slots.values():
    times.sort()
    assert all(before[1] <= after[0] for before, after in zip(times, times[1:])), "two commands had one slot"

with open(os.path.join(out, "tasks", "best", "output", "best.json")) as file:
    best = json.load(file)
print(f"100 estimates on {len(slots)} slots, never two on one; the best step is {best['step']}")
