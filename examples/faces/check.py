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
from PIL import Image, ImageOps

HERE = Path(__file__).resolve().parent


def weights(model):
    """Those of the one convolution of a model, f32 [24, 24], as f64."""
    initializers = onnx.load(HERE / f"../../models/{model}.onnx").graph.initializer
    return next(array[0, 0] for array in map(numpy_helper.to_array, initializers) if array.ndim == 4).astype(np.float64)


def likeness(picture, kernel):
    """For each place of a picture the sum of its products with the kernel."""
    return np.einsum("yxij,ij->yx", np.lib.stride_tricks.sliding_window_view(picture, kernel.shape), kernel)


def overlap(one, other):
    """The area that two squares share, as a share of that of both."""
    (_, left, top, side), (_, x, y, other_side) = one, other
    wide = min(left + side, x + other_side) - max(left, x)
    high = min(top + side, y + other_side) - max(top, y)
    both = max(wide, 0) * max(high, 0)
    return both / (side**2 + other_side**2 - both)


def best_of_each(found):
    """`found` has score, left, top and side of squares: those that share no more than 0.3 with any better one that is kept."""
    kept = []
    for square in sorted(found, key=lambda square: square[0], reverse=True):
        if all(overlap(square, other) <= 0.3 for other in kept):
            kept.append(square)
    return kept


def pixels(picture):
    return np.asarray(picture, np.float64) / 255


def cascade(picture, disc, features):
    places = []
    for times in (1, 1.5, 2):
        small = picture.resize((round(144 / times), round(96 / times)), Image.BILINEAR)
        heat = likeness(pixels(small), disc)[::4, ::4]
        # With the margin that a part has around it.
        places += [(heat[y, x], 4 * (x - 1) * times, 4 * (y - 1) * times, 32 * times) for y, x in np.argwhere(heat > 0.1)]
    found, padded = [], ImageOps.expand(picture, 8)
    for _, left, top, side in best_of_each(places):
        part = padded.crop([int(at) + 8 for at in (left, top, left + side, top + side)]).resize((32, 32), Image.BILINEAR)
        like = likeness(pixels(part), features)
        down, right = np.unravel_index(like.argmax(), like.shape)
        if like.max() > 0.25:
            times = side / 32
            found.append((like.max(), left + right * times, top + down * times, 24 * times))
    return best_of_each(found)


def is_same(one, other):
    """A pixel of a picture that was made smaller may be one of 255 off what Pillow makes of it, so the best place may be the one beside it."""
    step = one[3] / 24
    return abs(one[0] - other[0]) < 1e-3 and one[3] == other[3] and all(abs(a - b) <= step for a, b in zip(one[1:3], other[1:3]))


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
        wanted = cascade(Image.open(HERE / "pictures" / record["item"]), disc, features)
        boxes = [(face["score"], *face["box"]) for face in record["result"]]
        found = [(score, left, top, right - left) for score, left, top, right, _ in boxes]
        if len(found) != len(wanted) or not all(any(is_same(face, other) for other in found) for face in wanted):
            sys.exit(f"`{record['item']}`: {found}; numpy says {wanted}")
        drawn = truth[record["item"]]
        n_faces, n_found = n_faces + len(drawn), n_found + len(found)
        n_right += sum(any(is_same(face, (face[0], *other)) for other in drawn) for face in found)
    print(f"{len(records)} pictures: {n_found} faces, all as numpy has them; {n_right} of the {n_faces} that were drawn")


main()
