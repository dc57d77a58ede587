"""Reads all estimates, and writes the step whose estimates vary least."""

import glob
import json
import os
import statistics
import sys

folder, out = sys.argv[1:]
by_step = {}
for path in glob.glob(os.path.join(glob.escape(folder), "*", "output", "pi.json")):
    with open(path) as file:
        result = json.load(file)
    by_step.setdefault(result["step"], []).append(result["pi"])
spread = {step: statistics.stdev(values) for step, values in by_step.items()}
best = min(spread, key=spread.get)
with open(out, "w") as file:
    json.dump({"step": best, "spread": spread[best], "estimates": sum(map(len, by_step.values()))}, file)
print(f"step {best} varies least: {spread[best]:.4f}")
