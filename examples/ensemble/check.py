"""Checks a finished run of this example: one record with both answers for each image, and a table of those that both are sure about.

It needs Python 3.8 and nothing else, and it never starts a run.

    python check.py [--output DIR]      # exit code 0: all is well, 1: it is not
"""

import argparse
import csv
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SURE = 0.9


def main():
    parser = argparse.ArgumentParser(description="Check a finished run of the ensemble example.")
    parser.add_argument("--output", type=Path, default=HERE / "out", help="the run's output folder (default: out/ beside this script)")
    output = parser.parse_args().output

    with open(HERE / "../digits/labels.csv", newline="", encoding="utf-8") as file:
        labels = {row["file"]: int(row["label"]) for row in csv.DictReader(file)}
    both, sure = {}, set()
    with open(output / "results.jsonl", encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            if record["item"] in both:
                sys.exit(f"`{record['item']}` has two records")
            digit, parity = record["result"]["digit"][0], record["result"]["parity"][0]
            both[record["item"]] = (int(digit["label"]), parity["label"])
            if min(digit["score"], parity["score"]) >= SURE:
                sure.add(record["item"])
    if both.keys() != labels.keys():
        sys.exit(f"{len(both)} of {len(labels)} images have a record")
    with open(output / "sure.csv", newline="", encoding="utf-8") as file:
        table = [row["item"] for row in csv.DictReader(file)]
    if sorted(table) != sorted(sure):
        sys.exit(f"sure.csv has {len(table)} images, and {len(sure)} of results.jsonl are sure")

    agree = {item for item, (digit, parity) in both.items() if (digit % 2 == 0) == (parity == "even")}
    right = {item for item, (digit, _) in both.items() if digit == labels[item]}
    print(
        f"{len(both)} images: {len(right)} digits right; both models agree on {len(agree)}, "
        f"of which {len(agree & right)} are right; {len(sure)} are sure, of which {len(sure & right)} are right"
    )
    if len(agree & right) < 0.975 * len(labels):
        sys.exit("too few")


main()
