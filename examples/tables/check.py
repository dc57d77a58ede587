"""Checks a run: each row of the table has one line, in order, with its own columns and the class and the probability that scikit-learn's forest predicts.

    python check.py [--output DIR]      # exit code 0: all is well, 1: it is not, 2: usage
"""

import argparse
import csv
import os

import numpy as np

from data import forest, here, wines

parser = argparse.ArgumentParser(description="Check a finished run of this example.")
parser.add_argument("--output", default=os.path.join(here, "out"), help="the run's output folder (default: out/ beside this script)")
out = parser.parse_args().output


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


rows, found = read(os.path.join(here, "rows.csv")), read(os.path.join(out, "results.csv"))
_, columns, kinds = wines()
model = forest()
predicted, likely = model.predict(columns), model.predict_proba(columns).max(1)
assert len(found) == len(rows), f"{len(found)} lines for {len(rows)} rows"
for at, (row, line) in enumerate(zip(rows, found)):
    assert line["wines.cellar"] == row["cellar"] and float(line["wines.alcohol"]) == float(row["alcohol"]), f"row {at} has columns of another one"
    assert line["kind.label"] == predicted[at], f"row {at}: {line['kind.label']} and not {predicted[at]}"
    assert abs(float(line["kind.score"]) - likely[at]) < 1e-5, f"row {at}: {line['kind.score']} and not {likely[at]}"
unseen = np.arange(len(rows)) % 2 == 1
print(f"{len(rows)} rows as scikit-learn says; of {unseen.sum()} that it had not seen, {(predicted == kinds)[unseen].sum()} are right")
