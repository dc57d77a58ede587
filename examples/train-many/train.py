"""Trains a linear model on 300 images of ../digits, and writes it as ONNX with its loss beside it.

    python train.py --lr 0.5 --out FOLDER
"""

import argparse
import csv
import json
import os
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

STEPS = 200
DIGITS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "digits")


def load():
    """Pixels f32 [300, 1024] from 0 to 1, and digits, of all images but those that the models are to read: 300 to 399."""
    with open(os.path.join(DIGITS, "labels.csv"), newline="") as file:
        rows = [(row["file"], int(row["label"])) for row in csv.DictReader(file)]
    rows = [row for row in rows if not 300 <= int(row[0][6:10]) < 400]
    images = [np.asarray(Image.open(os.path.join(DIGITS, "images", name))) for name, _ in rows]
    return np.stack(images).reshape(len(rows), -1).astype(np.float32) / 255, np.array([label for _, label in rows])


def train(pixels, digits, lr):
    """Weights f32 [1024, 10], bias f32 [10] and the last loss of a softmax regression."""
    weights, bias, wanted = np.zeros((pixels.shape[1], 10)), np.zeros(10), np.eye(10)[digits]
    for step in range(STEPS + 1):
        logits = pixels @ weights + bias
        odds = np.exp(logits - logits.max(1, keepdims=True))
        shares = odds / odds.sum(1, keepdims=True)
        with np.errstate(divide="ignore"):
            loss = float(-np.log(shares[np.arange(len(digits)), digits]).mean())
        if step % 50 == 0:
            print(f"step={step} loss={loss}")
        if not np.isfinite(loss):
            sys.exit("the loss is no number")
        slope = (shares - wanted) / len(digits)
        weights -= lr * pixels.T @ slope
        bias -= lr * slope.sum(0)
    return weights.astype(np.float32), bias.astype(np.float32), loss


def to_onnx(weights, bias):
    """`pixels` f32 [batch, 1, 32, 32] to `logits` f32 [batch, 10]."""
    nodes = [helper.make_node("Flatten", ["pixels"], ["flat"]), helper.make_node("Gemm", ["flat", "weights", "bias"], ["logits"])]
    given = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 1, 32, 32])
    made = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])
    constants = [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(bias, "bias")]
    graph = helper.make_graph(nodes, "linear", [given], [made], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    weights, bias, loss = train(*load(), args.lr)
    onnx.save(to_onnx(weights, bias), os.path.join(args.out, "model.onnx"))
    # Last, and whole: what is there says that the model is.
    with open(os.path.join(args.out, "new"), "w") as file:
        json.dump({"lr": args.lr, "loss": loss}, file)
    os.replace(os.path.join(args.out, "new"), os.path.join(args.out, "loss.json"))


main()
