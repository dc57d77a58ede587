"""Checks a finished run of this example against what Pillow, ONNX Runtime for Python and a search with numpy over all pairs make of the same files.

It needs the packages of `scripts/python-env.sh reference`, and it never starts a run.

    python check.py [--output DIR] [--index DIR]      # exit code 0: all is well, 1: it is not
"""

import argparse
import csv
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image

HERE = Path(__file__).resolve().parent
NEAREST = 5


def embedded(files):
    """Vectors of length 1, as f64."""
    pixels = np.stack([np.asarray(Image.open(file).convert("L"), np.float32)[None] / 255 for file in files])
    logits = onnxruntime.InferenceSession(HERE / "../../models/digits.onnx").run(None, {"pixels": pixels})[0].astype(np.float64)
    return logits / np.linalg.norm(logits, axis=1, keepdims=True)


def main():
    parser = argparse.ArgumentParser(description="Check a finished run of the search example.")
    parser.add_argument("--output", type=Path, default=HERE / "out", help="the run's output folder (default: out/ beside this script)")
    parser.add_argument("--index", type=Path, default=HERE / "index", help="that of index.toml (default: index/ beside this script)")
    asked = parser.parse_args()
    images = sorted((HERE / "../digits/images").iterdir())
    known, others = [[file for file in images if (file.name < "digit-03") == is_known] for is_known in (True, False)]
    vectors, queries = embedded(known), embedded(others)

    index = np.load(asked.index / "vectors" / "all.npy")
    names = json.loads((asked.index / "names.jsonl").read_text(encoding="utf-8"))["result"]
    if names != [file.name for file in known] or index.shape != vectors.shape or abs(index - vectors).max() > 1e-5:
        sys.exit(f"the index has {len(names)} names and the shape {index.shape}, or another vector than ONNX Runtime gives")

    with open(HERE / "../digits/labels.csv", newline="", encoding="utf-8") as file:
        labels = {row["file"]: row["label"] for row in csv.DictReader(file)}
    records = [json.loads(line) for line in (asked.output / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    if [record["item"] for record in records] != [file.name for file in others]:
        sys.exit(f"{len(records)} records for {len(others)} images, or in another order")
    same = 0
    for record, scores in zip(records, queries @ vectors.T):
        found = [(one["item"], one["score"]) for one in record["result"]]
        wanted = np.sort(scores)[::-1][:NEAREST]
        # By score, not by name: two images may be equally near.
        right = [abs(score - best) < 1e-5 and abs(scores[names.index(name)] - score) < 1e-5 for (name, score), best in zip(found, wanted)]
        if len({name for name, _ in found}) != NEAREST or not all(right):
            sys.exit(f"`{record['item']}`: {found}; numpy says {wanted}")
        same += labels[record["item"]] == labels[found[0][0]]
    print(f"{len(records)} images, the {NEAREST} nearest of {len(names)} as numpy has them; the nearest shows the same digit for {same}")


main()
