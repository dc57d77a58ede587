"""Writes rows.csv, 178 wines with names of cellars, forest.onnx, a random forest of scikit-learn that knows every second one, and its classes.

    python data.py
"""

import csv
import os

import numpy as np
from skl2onnx import to_onnx
from sklearn.datasets import load_wine
from sklearn.ensemble import RandomForestClassifier

here = os.path.dirname(os.path.abspath(__file__))
CELLARS = ["Müller & Söhne", "Tenuta Rossi, Alba", 'Château "Vieux"', "Bodega Núñez"]


def wines():
    """Columns by their names, f32 [178, 13], and the names of their kinds."""
    data = load_wine()
    return data.feature_names, data.data.astype(np.float32), np.array(["Barolo", "Grignolino", "Barbera"])[data.target]


def forest():
    _, columns, kinds = wines()
    return RandomForestClassifier(n_estimators=50, random_state=0).fit(columns[::2], kinds[::2])


if __name__ == "__main__":
    names, columns, _ = wines()
    with open(os.path.join(here, "rows.csv"), "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["cellar", *names])
        writer.writerows([CELLARS[at % 4], *map(str, row)] for at, row in enumerate(columns))
    with open(os.path.join(here, "classes.txt"), "w", encoding="utf-8") as file:
        file.writelines(f"{name}\n" for name in forest().classes_)
    # `zipmap`: probabilities as one tensor, and not as a list of dictionaries.
    model = to_onnx(forest(), columns[:1], options={"zipmap": False}, target_opset=17)
    with open(os.path.join(here, "forest.onnx"), "wb") as file:
        file.write(model.SerializeToString())
