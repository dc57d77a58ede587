"""A linear support vector machine, one digit against all others: hinge loss, on the images as they are. It keeps the model of its best round.

    python svm.py MODEL
"""

import sys

import numpy as np
from onnx import helper

from digits import load, right, save

path = sys.argv[1]
images, digits = load(0, 300)
pixels, signs = images.reshape(-1, 1024), np.eye(10)[digits] * 2 - 1
others, other_digits = load(300, 350)
weights, bias, best = np.zeros((1024, 10)), np.zeros(10), 0
for n in range(1, 201):
    margins = signs * (pixels @ weights + bias)
    slope = -signs * (margins < 1) / len(pixels)
    weights -= 0.05 * (pixels.T @ slope + 0.001 * weights)
    bias -= 0.05 * slope.sum(0)
    val = right(others.reshape(-1, 1024) @ weights + bias, other_digits)
    if n % 10 == 0:
        print(f"round {n}: hinge={np.maximum(1 - margins, 0).mean():.6f} val={val}")
        if val > best:
            best = val
            save(path, [helper.make_node("Gemm", ["flat", "weights", "bias"], ["logits"])], {"weights": weights, "bias": bias})
