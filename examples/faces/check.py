"""Checks a finished run of this example against the same cascade in numpy alone, and against the places where the faces were drawn.

It needs the packages of `scripts/python-env.sh reference`, and it never starts a run.

    python check.py [--output DIR]      # exit code 0: all is well, 1: it is not
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from PIL import Image

HERE = Path(__file__).resolve().parent


def weights(model):
    """Those of the one convolution of a model, f32 [24, 24], as f64."""
    initializers = onnx.load(HERE / f"../../models/{model}.onnx").graph.initializer
    return next(array[0, 0] for array in map(numpy_helper.to_array, initializers) if array.ndim == 4).astype(np.float64)


def likeness(picture, kernel):
    """For each place of a picture the sum of its products with the kernel."""
    return np.einsum("yxij,ij->yx", np.lib.stride_tricks.sliding_window_view(picture, kernel.shape), kernel)


def best_of_each(found):
    """`found` has score, left and top of squares of 24 pixels: those that share no more than 0.3 with any better one that is kept."""
    kept = []
    for score, left, top in sorted(found, reverse=True):
        shared = [max(0, 24 - abs(left - x)) * max(0, 24 - abs(top - y)) for _, x, y in kept]
        if all(area / (2 * 24 * 24 - area) <= 0.3 for area in shared):
            kept.append((score, left, top))
    return kept


def cascade(picture, disc, features):
    heat = likeness(picture, disc)[::4, ::4]
    places = best_of_each((heat[y, x], 4 * x, 4 * y) for y, x in np.argwhere(heat > 0.1))
    padded, found = np.pad(picture, 4), []
    for _, left, top in places:
        # The part begins 4 pixels before the place, and so does the padded picture.
        like = likeness(padded[top : top + 32, left : left + 32], features)
        down, right = np.unravel_index(like.argmax(), like.shape)
        if like.max() > 0.25:
            found.append((like.max(), left - 4 + right, top - 4 + down))
    return best_of_each(found)


def main():
    parser = argparse.ArgumentParser(description="Check a finished run of the faces example.")
    parser.add_argument("--output", type=Path, default=HERE / "out", help="the run's output folder (default: out/ beside this script)")
    output = parser.parse_args().output
    truth = json.loads((HERE / "truth.json").read_text())
    records = [json.loads(line) for line in (output / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    if [record["item"] for record in records] != sorted(truth):
        sys.exit(f"{len(records)} records for {len(truth)} pictures, or in another order")

    disc, features = weights("face-finder"), weights("face-judge")
    n_faces = n_found = n_right = 0
    for record in records:
        picture = np.asarray(Image.open(HERE / "pictures" / record["item"]), np.float64) / 255
        wanted = cascade(picture, disc, features)
        found = [(face["score"], *face["box"]) for face in record["result"]]
        boxes = [[left, top, left + 24, top + 24] for _, left, top in wanted]
        if [list(box) for _, *box in found] != boxes or any(abs(a[0] - b[0]) > 1e-4 for a, b in zip(found, wanted)):
            sys.exit(f"`{record['item']}`: {found}; numpy says {wanted}")
        drawn = [tuple(place) for place in truth[record["item"]]]
        n_faces, n_found = n_faces + len(drawn), n_found + len(found)
        n_right += sum((left, top) in drawn for _, left, top in wanted)
    print(f"{len(records)} pictures: {n_found} faces, all as numpy has them; {n_right} of the {n_faces} that were drawn, to the pixel")


main()
