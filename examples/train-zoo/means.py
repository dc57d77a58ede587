"""Mean images: three of each digit, by k-means, on blurred images. Its loss is how far images are from the nearest mean. It keeps the
model of its best round.

    python means.py MODEL
"""

import json
import sys

import numpy as np
from onnx import helper

from digits import load, right, save

path = sys.argv[1]
images, digits = load(0, 300)
blurred = sum(np.roll(images, (down, across), (1, 2)) for down in (-1, 0, 1) for across in (-1, 0, 1)) / 9
pixels = blurred.reshape(-1, 1024)
others, other_digits = load(300, 350)
nodes = [("Gemm", ["flat", "means", "bias"], ["each"]), ("Reshape", ["each", "shape"], ["threes"])]
nodes = [helper.make_node(*node) for node in nodes] + [helper.make_node("ReduceMax", ["threes"], ["logits"], axes=[2], keepdims=0)]
best = 0
means = np.concatenate([pixels[digits == digit][:3] for digit in range(10)])
for n in range(1, 11):
    far = ((pixels[:, None] - means) ** 2).sum(2)
    far[digits[:, None] != np.arange(30) // 3] = np.inf
    nearest = far.argmin(1)
    means = np.stack([pixels[nearest == mean].mean(0) for mean in range(30)])
    # The nearest mean has the largest score: twice the product, less the square of the mean.
    bias = -(means**2).sum(1)
    scores = (2 * others.reshape(-1, 1024) @ means.T + bias).reshape(-1, 10, 3).max(2)
    val = right(scores, other_digits)
    print(json.dumps({"step": n, "far": far.min(1).mean(), "val": val}))
    if val > best:
        best = val
        save(path, nodes, {"means": 2 * means.T, "bias": bias, "shape": [-1, 10, 3]})
