"""Makes a model of the mean image of each digit: what is nearest wins. Writes it as ONNX.

    python train.py train.npz model.onnx
"""

import os
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

arrays, out = sys.argv[1:]
with np.load(arrays) as loaded:
    pixels, labels = loaded["images"].reshape(len(loaded["labels"]), -1).astype(np.float32) / 255, loaded["labels"]
means = np.stack([pixels[labels == digit].mean(0) for digit in range(10)])
# |x - mean|² is least where x · mean - |mean|² / 2 is most.
constants = [numpy_helper.from_array(means.T.copy(), "means"), numpy_helper.from_array(-(means**2).sum(1) / 2, "bias")]
nodes = [helper.make_node("Flatten", ["pixels"], ["flat"]), helper.make_node("Gemm", ["flat", "means", "bias"], ["scores"])]
given = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 1, 32, 32])
made = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])
graph = helper.make_graph(nodes, "nearest-mean", [given], [made], constants)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), out + ".new")
os.replace(out + ".new", out)
