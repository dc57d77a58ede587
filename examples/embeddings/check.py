"""Checks a finished run of this example: each vector is what the model says, divided by its length, and the nearest other image shows the
same digit for nearly all images.

It needs pyarrow, which `scripts/python-env.sh pyarrow` installs in a place of its own, and it never starts a run.

    python check.py [--output DIR]      # exit code 0: all is well, 1: it is not
"""

import argparse
import csv
import json
import math
import struct
import sys
from pathlib import Path

import pyarrow.parquet

HERE = Path(__file__).resolve().parent


def table(output):
    rows = [row for file in sorted(output.glob("table-*.parquet")) for row in pyarrow.parquet.read_table(file).to_pylist()]
    vectors = {row["item"]: row["embedding"] for row in rows}
    if len(vectors) != len(rows):
        sys.exit(f"{len(rows)} rows for {len(vectors)} images")
    return vectors


def logits(file):
    with open(file, newline="", encoding="utf-8") as lines:
        return {row["item"]: [float(row[f"logits.{at}"]) for at in range(10)] for row in csv.DictReader(lines)}


def main():
    parser = argparse.ArgumentParser(description="Check a finished run of the embeddings example.")
    parser.add_argument("--output", type=Path, default=HERE / "out", help="the run's output folder (default: out/ beside this script)")
    output = parser.parse_args().output
    with open(HERE / "../digits/labels.csv", newline="", encoding="utf-8") as file:
        labels = {row["file"]: row["label"] for row in csv.DictReader(file)}
    raw, vectors = logits(output / "raw.csv"), table(output)
    if vectors.keys() != labels.keys():
        sys.exit(f"{len(vectors)} of {len(labels)} images have a vector")
    for item, vector in vectors.items():
        length = math.sqrt(sum(x * x for x in raw[item]))
        if any(abs(x - y / length) > 1e-6 for x, y in zip(vector, raw[item])):
            sys.exit(f"`{item}`: {vector} is not {raw[item]} divided by its length")
    files = 0
    for line in (output / "vectors" / "index.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        data = (output / "vectors" / entry["file"]).read_bytes()
        if any(abs(x - y) > 1e-6 for x, y in zip(struct.unpack("<10f", data[-40:]), vectors[entry["item"]])):
            sys.exit(f"`{entry['file']}` is not the vector of `{entry['item']}`")
        files += 1
    if files != len(labels):
        sys.exit(f"{files} of {len(labels)} images have a file")

    def nearest(item):
        cosine = lambda other: sum(x * y for x, y in zip(vectors[item], vectors[other]))
        return max((other for other in vectors if other != item), key=cosine)

    same = sum(labels[item] == labels[nearest(item)] for item in vectors)
    print(f"{len(vectors)} images, a vector each; the nearest other image shows the same digit for {same}")
    if same < 0.95 * len(vectors):
        sys.exit("too few")


main()
