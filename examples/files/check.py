"""Checks a finished run of this example: one record for each file, which says what magika itself says of it.

It needs the package magika, and it never starts a run.

    python check.py [--output DIR]      # exit code 0: all is well, 1: it is not
"""

import argparse
import csv
import sys
from pathlib import Path

import magika

HERE = Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(description="Check a finished run of the files example.")
    parser.add_argument("--output", type=Path, default=HERE / "out", help="the run's output folder (default: out/ beside this script)")
    output = parser.parse_args().output
    with open(output / "kinds.csv", newline="", encoding="utf-8") as lines:
        records = list(csv.DictReader(lines))
    files = sorted(path.name for path in (HERE / "files").iterdir())
    if [record["item"] for record in records] != files:
        sys.exit(f"{len(records)} records for {len(files)} files, or in another order")

    itself = magika.Magika()
    labels, by_rule = set(), 0
    for record in records:
        path = HERE / "files" / record["item"]
        said = itself.identify_path(path).prediction
        expected = (str(said.output.label), str(said.output.is_text).lower(), str(path), str(path.stat().st_size))
        found = (record["kind.label"], record["kind.is_text"], record["files.path"], record["files.size"])
        if found != expected or abs(float(record["kind.score"]) - said.score) > 1e-3:
            sys.exit(f"`{record['item']}` is {found}, {record['kind.score']}; magika says {expected}, {said.score}")
        labels.add(record["kind.label"])
        by_rule += str(said.dl.label) == "undefined"
    print(f"{len(records)} files of {len(labels)} kinds, all as magika says, {by_rule} of them without the model")


main()
