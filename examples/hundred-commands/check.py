"""Checks a run: 100 estimates, each once, and never two commands on one slot at the same time."""

import glob
import json
import os
import sys

out = sys.argv[1] if len(sys.argv) > 1 else "out"
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
