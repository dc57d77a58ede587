"""Checks a run: onnx's own evaluator finds the share of each model that its training has reported, and the digits that the best of them has read.

    python check.py [--output DIR]      # exit code 0: all is well, 1: it is not, 2: usage
"""

import argparse
import json
import os

import numpy as np
from onnx.reference import ReferenceEvaluator

from digits import load, right

here = os.path.dirname(os.path.abspath(__file__))
parser = argparse.ArgumentParser(description="Check a finished run of this example.")
parser.add_argument("--output", default=os.path.join(here, "out"), help="the run's output folder (default: out/ beside this script)")
out = parser.parse_args().output

with open(os.path.join(out, "run.json")) as file:
    tasks = {task["task"]: task for task in json.load(file)["tasks"]}
assert all(task["state"] == "done" for task in tasks.values()), "some task is not done"
trained = {name: task for name, task in tasks.items() if name != "report"}


def scores(name, images):
    folder = os.path.join(out, os.path.dirname(trained[name]["log"]))
    model = ReferenceEvaluator(os.path.join(folder, "output", "model.onnx"))
    return model.run(None, {"pixels": images[:, None].astype(np.float32)})[0]


images, digits = load(300, 350)
for name, task in trained.items():
    val = task["metrics"]["val"]
    assert right(scores(name, images), digits) == val["max"], f"the model of {name} is not the one that it has reported"
    with open(os.path.join(out, task["log"].replace(".log", ".metrics.jsonl"))) as file:
        curve = [row["val"] for row in map(json.loads, file)]
    assert (len(curve), max(curve), curve[-1]) == (val["count"], val["max"], val["last"]), f"the curve of {name} is another one"
(best,) = [name for name, task in trained.items() if "best.winner" in task["best"]]
most = max(task["metrics"]["val"]["max"] for task in trained.values())
assert trained[best]["metrics"]["val"]["max"] == most, "another one is better"

images, digits = load(350, 400)
with open(os.path.join(out, "results.jsonl")) as file:
    records = {record["item"].rsplit("/", 1)[-1]: record["result"][0] for record in map(json.loads, file)}
expected = scores(best, images)
for at, row in enumerate(expected):
    sure, label = np.sort(row), records[f"digit-{350 + at:04}.png"]["label"]
    assert sure[-1] - sure[-2] < 1e-3 or label == str(row.argmax()), f"image {350 + at} is not read so by {best}"
with open(os.path.join(out, "tasks", "report", "output", "report.txt")) as file:
    assert file.read() == f"{best} had {most:g}, and read 50 images\n", "the report says something else"
print(f"{best} is the best of {len(trained)} models, and read {len(records)} images, {round(right(expected, digits) * 50)} of them right")
