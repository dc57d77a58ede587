"""Checks a run: the bucket has one record for each held-out image, with the digit whose mean image is nearest, and most of them right.

    python check.py [--output DIR]      # exit code 0: all is well, 1: it is not, 2: usage
"""

import argparse
import csv
import json
import os

import numpy as np
from PIL import Image

here = os.path.dirname(os.path.abspath(__file__))
digits = os.path.join(here, "..", "digits")
parser = argparse.ArgumentParser(description="Check a finished run of this example.")
parser.add_argument("--output", default=os.path.join(here, "out"), help="the run's output folder (default: out/ beside this script)")
out = parser.parse_args().output


def pixels(name):
    return np.asarray(Image.open(os.path.join(digits, "images", name))).reshape(-1) / 255


with open(os.path.join(digits, "labels.csv"), newline="") as file:
    rows = [(row["file"], int(row["label"])) for row in csv.DictReader(file)]
seen = [row for at, row in enumerate(rows) if at % 4]
means = [np.mean([pixels(name) for name, label in seen if label == digit], 0) for digit in range(10)]
held_out = {name: label for at, (name, label) in enumerate(rows) if at % 4 == 0}

with open(os.path.join(out, "tasks", "upload", "output", "bucket", "results.jsonl")) as file:
    records = [json.loads(line) for line in file]
assert [record["item"].rsplit("/", 1)[-1] for record in records] == sorted(held_out), "not one record for each image, in order"
right = 0
for record in records:
    name, found = record["item"].rsplit("/", 1)[-1], int(record["result"][0]["label"])
    far = [((pixels(name) - mean) ** 2).sum() for mean in means]
    assert far[found] - min(far) < 1e-4, f"{name} is not nearest to {found}"
    right += found == held_out[name]
assert right >= 80, f"only {right} are right"
print(f"{len(records)} records in the bucket, {right} right")
