#!/usr/bin/env python3
"""Compares a finished run of an example with what Pillow, numpy and ONNX Runtime for Python make of the same files.

    $(scripts/python-env.sh reference) scripts/examples_reference.py EXAMPLE OUTPUT      # exit code 0: they agree

EXAMPLE is `digits`, `pages`, `ensemble`, `embeddings` or `bucket`. This Python has no reader of Parquet: for `bucket`, OUTPUT is a folder with the rows as
JSON, `rows.json`.
"""

import csv
import itertools
import json
import sys
from pathlib import Path

import numpy
import onnxruntime
from PIL import Image

TOP = Path(__file__).resolve().parent.parent
# What kernels for other batch sizes may change of a score; and what a resize does that rounds some pixels to another level.
NEAR = 2e-3
NEAR_RESIZED = 2e-2
# Edges of a box this near to the middle of a pixel may be rounded either way.
BORDER = 0.05


class Model:
    def __init__(self, name):
        self.session = onnxruntime.InferenceSession(TOP / "models" / f"{name}.onnx", providers=["CPUExecutionProvider"])

    def __call__(self, picture):
        """The output for a gray picture of the size of the input."""
        row = numpy.asarray(picture, dtype=numpy.float32) / 255
        return self.session.run(None, {self.session.get_inputs()[0].name: row[None, None]})[0][0]


def softmax(logits):
    powers = numpy.exp(logits - logits.max(), dtype=numpy.float64)
    return powers / powers.sum()


def gray(folder):
    for file in sorted((TOP / "examples" / folder).glob("*.png")):
        yield file.name, Image.open(file).convert("L")


def records(file):
    found = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if found.setdefault(record["item"], record["result"]) is not record["result"]:
            sys.exit(f"`{record['item']}` has two records")
    return found


def same_classes(found, scores, labels, near):
    """Whether these are the best classes, best first."""
    is_same = lambda answer, best: answer["label"] == labels[answer["class"]] and abs(answer["score"] - best) <= near
    best = sorted(scores, reverse=True)
    return all(is_same(answer, score) and abs(scores[answer["class"]] - score) <= near for answer, score in zip(found, best))


def must_be(where, found, scores, labels):
    if not same_classes(found, scores, labels, NEAR):
        sys.exit(f"{where}: {found}, expected {dict(zip(labels, scores))}")


def same_items(found, expected):
    if found.keys() != expected.keys():
        sys.exit(f"{len(found)} items, expected {len(expected)}: {sorted(found.keys() ^ expected.keys())[:5]}")


DIGITS = [str(digit) for digit in range(10)]


def digits(output):
    model, found = Model("digits"), records(output / "results.jsonl")
    expected = {name: softmax(model(picture)) for name, picture in gray("digits/images")}
    same_items(found, expected)
    for name, scores in expected.items():
        if len(found[name]) != 3:
            sys.exit(f"{name}: {found[name]}")
        must_be(name, found[name], scores, DIGITS)
    return len(found)


def ensemble(output):
    models = {"digit": (Model("digits"), DIGITS), "parity": (Model("digits-parity"), ["even", "odd"])}
    found, sure, unsure = records(output / "results.jsonl"), set(), set()
    pictures = dict(gray("digits/images"))
    same_items(found, pictures)
    for name, picture in pictures.items():
        best = []
        for of, (model, labels) in models.items():
            scores = softmax(model(picture))
            must_be(f"{name}, {of}", found[name][of], scores, labels)
            best.append(scores.max())
        # Those at the border may be in the table or not.
        if abs(min(best) - 0.9) > NEAR:
            (sure if min(best) >= 0.9 else unsure).add(name)
    with open(output / "sure.csv", newline="", encoding="utf-8") as file:
        table = [row["item"] for row in csv.DictReader(file)]
    if not sure <= set(table) or unsure & set(table) or len(set(table)) != len(table):
        sys.exit(f"sure.csv has {len(table)} images, and {len(sure)} are sure")
    return len(found)


def pages(output):
    finder, reader, found = Model("page-finder"), Model("page-digits"), records(output / "results.jsonl")
    pictures = dict(gray("pages/pages"))
    same_items(found, pictures)
    for name, page in pictures.items():
        boxes = finder(page.resize((384, 48), Image.Resampling.BILINEAR))
        boxes = sorted((box for box in boxes.astype(float).tolist() if box[4] >= 0.5), key=lambda box: box[0] + box[2])
        if len(found[name]) != len(boxes):
            sys.exit(f"{name}: {len(found[name])} parts, expected {len(boxes)}")
        for at, (box, classes) in enumerate(zip(boxes, found[name])):
            sides = [numpy.clip(side * of, 0, of) for side, of in zip(box, page.size * 2)]
            cuts = itertools.product(*({int(side + by + 0.5) for by in (-BORDER, 0, BORDER)} for side in sides))
            parts = [softmax(reader(page.crop(cut).resize((32, 32), Image.Resampling.BILINEAR))) for cut in cuts]
            if not any(same_classes(classes, scores, DIGITS, NEAR_RESIZED) for scores in parts):
                sys.exit(f"{name}, part {at}: {classes}, expected {dict(zip(DIGITS, parts[0]))}")
    return len(found)


def embeddings(output):
    model, files = Model("digits"), {}
    for line in (output / "vectors" / "index.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        files[entry["item"]] = numpy.load(output / "vectors" / entry["file"])
    expected = {name: model(picture) for name, picture in gray("digits/images")}
    same_items(files, expected)
    for name, logits in expected.items():
        vector = logits / numpy.linalg.norm(logits)
        if files[name].shape != (10,) or numpy.abs(files[name] - vector).max() > NEAR:
            sys.exit(f"{name}: {files[name]}, expected {vector}")
    return len(files)


def bucket(output):
    model, found = Model("digits"), {}
    for row in json.loads((output / "rows.json").read_text(encoding="utf-8")):
        if found.setdefault(row["file"], row) is not row:
            sys.exit(f"`{row['file']}` has two rows")
    # Its server has the first 300, in archives.
    pictures = dict(itertools.islice(gray("digits/images"), 300))
    same_items(found, pictures)
    for name, picture in pictures.items():
        label, score = found[name]["label"], found[name]["score"]
        must_be(name, [{"label": label, "class": DIGITS.index(label), "score": score}], softmax(model(picture)), DIGITS)
    return len(found)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("digits", "pages", "ensemble", "embeddings", "bucket"):
        sys.exit(__doc__)
    n = globals()[sys.argv[1]](Path(sys.argv[2]))
    print(f"{sys.argv[1]}: {n} items as ONNX Runtime for Python has them")
