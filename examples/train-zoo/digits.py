"""What the trainings share: the images of ../digits, and how a model is written. Those below 300 are to train with, those from 300 to compare models by."""

import csv
import os

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

DIGITS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "digits")


def load(start, stop):
    """Pixels f64 [n, 32, 32] from 0 to 1, and digits, of the images with these numbers in their names."""
    with open(os.path.join(DIGITS, "labels.csv"), newline="") as file:
        rows = [(row["file"], int(row["label"])) for row in csv.DictReader(file)]
    rows = [row for row in rows if start <= int(row[0][6:10]) < stop]
    images = [np.asarray(Image.open(os.path.join(DIGITS, "images", name))) for name, _ in rows]
    return np.stack(images) / 255, np.array([label for _, label in rows])


def right(scores, digits):
    """Which share of the digits has the largest score."""
    return float((scores.argmax(1) == digits).mean())


def save(path, nodes, constants):
    """Writes a model whose nodes make `logits` f32 [batch, 10] of `flat` f32 [batch, 1024]. What is there under its name is whole."""
    given = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 1, 32, 32])
    made = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])
    arrays = {name: np.asarray(value) for name, value in constants.items()}
    arrays = {name: array.astype(np.float32 if array.dtype.kind == "f" else np.int64) for name, array in arrays.items()}
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph([helper.make_node("Flatten", ["pixels"], ["flat"]), *nodes], "digits", [given], [made], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path + ".new")
    os.replace(path + ".new", path)
