"""A network with one hidden layer: cross-entropy, on the images and copies that are shifted by two pixels. It keeps the model of its best epoch.

    python mlp.py WIDTH MODEL
"""

import json
import sys

import numpy as np
from onnx import helper

from digits import load, right, save

width, path = int(sys.argv[1]), sys.argv[2]
random = np.random.default_rng(width)
images, digits = load(0, 300)
shifted = [np.roll(images, (down, across), (1, 2)) for down in (-2, 0, 2) for across in (-2, 0, 2)]
pixels, wanted = np.concatenate(shifted).reshape(-1, 1024), np.eye(10)[np.tile(digits, 9)]
others, other_digits = load(300, 350)
first, second = random.normal(0, 0.03, (1024, width)), random.normal(0, 0.1, (width, 10))
best = 0
for epoch in range(1, 31):
    losses = []
    for batch in np.array_split(random.permutation(len(pixels)), 50):
        hidden = np.maximum(pixels[batch] @ first, 0)
        odds = np.exp(hidden @ second)
        shares = odds / odds.sum(1, keepdims=True)
        losses.append(-np.log(shares[wanted[batch] > 0]).mean())
        slope = (shares - wanted[batch]) / len(batch)
        back = (slope @ second.T) * (hidden > 0)
        second -= 0.1 * hidden.T @ slope
        first -= 0.1 * pixels[batch].T @ back
    val = right(np.maximum(others.reshape(-1, 1024) @ first, 0) @ second, other_digits)
    print(json.dumps({"step": epoch, "loss": np.mean(losses), "val": val}))
    if val > best:
        best = val
        nodes = [("MatMul", ["flat", "first"], ["sums"]), ("Relu", ["sums"], ["hidden"]), ("MatMul", ["hidden", "second"], ["logits"])]
        save(path, [helper.make_node(*node) for node in nodes], {"first": first, "second": second})
