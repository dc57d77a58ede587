"""Checks a run: the model with the least loss has read each held-out image once, as numpy reads them with its weights, and most of them right.

    python check.py [--output DIR]      # exit code 0: all is well, 1: it is not, 2: usage
"""

import argparse
import csv
import glob
import json
import os

import numpy as np
import onnx
from onnx import numpy_helper
from PIL import Image

here = os.path.dirname(os.path.abspath(__file__))
digits = os.path.join(here, "..", "digits")
parser = argparse.ArgumentParser(description="Check a finished run of this example.")
parser.add_argument("--output", default=os.path.join(here, "out"), help="the run's output folder (default: out/ beside this script)")
out = parser.parse_args().output

with open(os.path.join(out, "run.json")) as file:
    tasks = {task["task"]: task for task in json.load(file)["tasks"]}
assert [task for task in tasks if tasks[task]["state"] != "done"] == ["train[lr=10000]"], "only `train[lr=10000]` may fail"
(best,) = [task for task in tasks.values() if task.get("best")]
losses = {}
for path in glob.glob(os.path.join(glob.escape(out), "tasks", "train", "*", "output", "loss.json")):
    with open(path) as file:
        losses[json.load(file)["loss"]] = os.path.dirname(path)
assert best["metrics"]["loss"]["last"] == min(losses), "another task is called the best than the one with the least loss"
model = onnx.load(os.path.join(losses[min(losses)], "model.onnx"))
weights, bias = (numpy_helper.to_array(constant) for constant in model.graph.initializer)

with open(os.path.join(digits, "labels.csv"), newline="") as file:
    labels = {row["file"]: row["label"] for row in csv.DictReader(file) if 300 <= int(row["file"][6:10]) < 400}
with open(os.path.join(out, "results.jsonl")) as file:
    records = [json.loads(line) for line in file]
found = {record["item"].rsplit("/", 1)[-1]: record["result"][0]["label"] for record in records}
assert len(records) == len(found) and found.keys() == labels.keys(), "not one record for each image"
for name, label in found.items():
    pixels = np.asarray(Image.open(os.path.join(digits, "images", name))).reshape(-1) / 255
    logits = np.sort(pixels @ weights + bias)
    assert logits[-1] - logits[-2] < 1e-4 or str(int((pixels @ weights + bias).argmax())) == label, f"{name} is not read so by the best model"
right = sum(found[name] == label for name, label in labels.items())
assert right >= 80, f"only {right} of 100 are right"
print(f"the best of {len(losses)} models read {len(found)} held-out images, {right} of them right")
