"""Checks a finished run of this example: one record for each image, margins that are those of numpy to the last bit, and models that agree.

It needs Python 3.8 and numpy, and it never starts a run.

    python check.py [--output DIR]      # exit code 0: all is well, 1: it is not
"""

import argparse
import csv
import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent


def margin(logits):
    """As centre.py has it, for one row."""
    exponents = np.exp(logits - logits.max())
    best = np.sort(exponents / exponents.sum())
    return best[-1] - best[-2]


def main():
    parser = argparse.ArgumentParser(description="Check a finished run of the python-worker example.")
    parser.add_argument("--output", type=Path, default=HERE / "out", help="the run's output folder (default: out/ beside this script)")
    output = parser.parse_args().output

    with open(HERE / "../digits/labels.csv", newline="", encoding="utf-8") as file:
        labels = {row["file"]: int(row["label"]) for row in csv.DictReader(file)}
    right, agree, sure, seen = 0, 0, 0, set()
    with open(output / "results.jsonl", encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            item, result = record["item"], record["result"]
            if item in seen:
                sys.exit(f"`{item}` has two records")
            seen.add(item)
            digit, even = int(result["digit"][0]["label"]), result["even"][0]["label"] == "even"
            said = np.float32(result["centre.margin"])
            expected = margin(np.array(result["digits"]["data"], np.float32))
            if said != expected:
                sys.exit(f"`{item}`: the margin is {said}, and numpy says {expected}")
            right += digit == labels[item]
            agree += even == (digit % 2 == 0)
            sure += bool(said >= 0.9)
    if seen != labels.keys():
        sys.exit(f"{len(seen)} of {len(labels)} images have a record")
    print(f"{len(seen)} images: {right} digits right; the second model agrees on {agree} once they are centred; {sure} margins of 0.9 or more")
    if min(right, agree) < 0.95 * len(labels):
        sys.exit("too few")


main()
