"""Makes an ONNX model with the topology and the cost of MobileNetV3-small, without training and without a download.

It reads and writes no file. The weights are random but seeded; each convolution is scaled on sample pictures as batch norm would have
scaled it, and the head is fitted so that the model tells the sample pictures' classes apart with a clear margin. So its answers depend on
the pixels, and do not flip when another JPEG decoder rounds one of them differently.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

SIDE = 224
N_CLASSES = 1000
OPSET = 20
IR_VERSION = 10
SEED = 11

# Kernel, expanded channels, channels out, squeeze-and-excite, activation, stride: table 2 of "Searching for MobileNetV3" (Howard et al., 2019).
BLOCKS = (
    (3, 16, 16, True, "Relu", 2),
    (3, 72, 24, False, "Relu", 2),
    (3, 88, 24, False, "Relu", 1),
    (5, 96, 40, True, "HardSwish", 2),
    (5, 240, 40, True, "HardSwish", 1),
    (5, 240, 40, True, "HardSwish", 1),
    (5, 120, 48, True, "HardSwish", 1),
    (5, 144, 48, True, "HardSwish", 1),
    (5, 288, 96, True, "HardSwish", 2),
    (5, 576, 96, True, "HardSwish", 1),
    (5, 576, 96, True, "HardSwish", 1),
)
STEM, LAST_CONV, HIDDEN = 16, 576, 1024


def smoothing(kernel: int) -> np.ndarray:
    """A binomial kernel [kernel, kernel] of sum 1. Random kernels would look at noise more than at pictures."""
    row = np.array([math.comb(kernel - 1, k) for k in range(kernel)], np.float64)
    return np.outer(row, row) / row.sum() ** 2


def even(deviations: np.ndarray) -> np.ndarray:
    """Channels that hardly vary are not blown up to the size of the others: on other pictures they would run away."""
    return np.maximum(deviations, np.median(deviations)) + 1e-3


class Network:
    """A graph under construction. It carries the activations of the sample pictures along, to scale each weight when it is made."""

    def __init__(self, samples: np.ndarray) -> None:
        self.random = np.random.default_rng(SEED)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.values = {"input": samples}

    def weight(self, name: str, value: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(value.astype(np.float32), name))
        return name

    def add(self, op: str, inputs: list[str], name: str, **attributes) -> str:
        """Adds a node that has no weights, and computes its output for the samples."""
        node = helper.make_node(op, inputs, [name], name, **attributes)
        self.nodes.append(node)
        self.values[name] = self.evaluate(node, {i: self.values[i] for i in inputs})
        return name

    def evaluate(self, node: onnx.NodeProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
        inputs = [helper.make_tensor_value_info(k, TensorProto.FLOAT, v.shape) for k, v in feeds.items()]
        output = helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)
        session = onnxruntime.InferenceSession(
            wrap(helper.make_graph([node], "step", inputs, [output])), one_thread(), providers=["CPUExecutionProvider"]
        )
        return session.run(None, feeds)[0]

    def conv(self, before: str, name: str, channels: int, kernel: int = 1, stride: int = 1, depthwise: bool = False, spread: float = 1.0) -> str:
        """A convolution whose outputs have mean 0 and deviation `spread` in each channel, over the samples."""
        value = self.values[before]
        groups = channels if depthwise else 1
        fan_in = value.shape[1] // groups * kernel * kernel
        weight = self.random.normal(0, math.sqrt(2 / fan_in), (channels, value.shape[1] // groups, 1, 1)) * smoothing(kernel)
        weight = (weight * self.random.uniform(0.8, 1.2, (*weight.shape[:2], kernel, kernel))).astype(np.float32)
        shape = {"kernel_shape": [kernel, kernel], "strides": [stride, stride], "pads": [kernel // 2] * 4, "group": groups}
        raw = self.evaluate(helper.make_node("Conv", ["x", "w"], ["y"], **shape), {"x": value, "w": weight})
        mean, deviation = raw.mean((0, 2, 3)), even(raw.std((0, 2, 3))) / spread
        names = [
            self.weight(f"{name}.weight", weight / deviation[:, None, None, None]),
            self.weight(f"{name}.bias", -mean / deviation),
        ]
        self.nodes.append(helper.make_node("Conv", [before, *names], [name], name, **shape))
        self.values[name] = ((raw - mean[:, None, None]) / deviation[:, None, None]).astype(np.float32)
        return name

    def linear(self, before: str, name: str, channels: int) -> str:
        """A full connection whose outputs have mean 0 and deviation 1 over the samples."""
        value = self.values[before]
        weight = self.random.normal(0, math.sqrt(2 / value.shape[1]), (channels, value.shape[1])).astype(np.float32)
        raw = value @ weight.T
        mean, deviation = raw.mean(0), even(raw.std(0))
        names = [self.weight(f"{name}.weight", weight / deviation[:, None]), self.weight(f"{name}.bias", -mean / deviation)]
        self.nodes.append(helper.make_node("Gemm", [before, *names], [name], name, transB=1))
        self.values[name] = ((raw - mean) / deviation).astype(np.float32)
        return name

    def squeeze(self, before: str, name: str) -> str:
        """Squeeze-and-excite: each channel times a factor that depends on the means of all."""
        channels = self.values[before].shape[1]
        few = max(8, (channels // 4 + 4) // 8 * 8)
        here = self.add("GlobalAveragePool", [before], f"{name}.pool")
        here = self.add("Relu", [self.conv(here, f"{name}.fc1", few)], f"{name}.relu")
        here = self.add("HardSigmoid", [self.conv(here, f"{name}.fc2", channels, spread=0.5)], f"{name}.gate", alpha=1 / 6, beta=0.5)
        return self.add("Mul", [before, here], name)

    def block(self, before: str, name: str, shape: tuple) -> str:
        kernel, expanded, channels, squeezed, activation, stride = shape
        here = before
        if expanded != self.values[before].shape[1]:
            here = self.add(activation, [self.conv(here, f"{name}.expand", expanded)], f"{name}.expand.act")
        here = self.conv(here, f"{name}.depthwise", expanded, kernel, stride, depthwise=True)
        here = self.add(activation, [here], f"{name}.depthwise.act")
        if squeezed:
            here = self.squeeze(here, f"{name}.squeeze")
        here = self.conv(here, f"{name}.project", channels)
        if stride == 1 and channels == self.values[before].shape[1]:
            here = self.add("Add", [before, here], f"{name}.add")
        return here

    def model(self, output: str, width: int) -> bytes:
        """The graph from `input` f32 [batch, 3, SIDE, SIDE] to `output` f32 [batch, width]."""
        pixels = helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])
        result = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", width])
        return wrap(helper.make_graph(self.nodes, "mobilenet-v3-small", [pixels], [result], self.weights))


def one_thread() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return options


def wrap(graph: onnx.GraphProto) -> bytes:
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="scripts/mobilenet.py",
        doc_string="The topology of MobileNetV3-small with seeded weights: a benchmark, not a classifier.",
    )
    return model.SerializeToString(deterministic=True)


def fit_head(views: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weight [N_CLASSES, n] and bias of a linear fit: about 8 for the right class, 0 for the others that occur.

    `views` is [pictures, views of it, n]. What differs between the views of a picture is punished, so that answers do not hang on it.
    The classes that do not occur get small random weights. They cost the same, and their logits stay around -4.
    """
    random = np.random.default_rng(SEED + 1)
    pictures = views.mean(1)
    mean = pictures.mean(0)
    centred = pictures - mean
    differences = (views - pictures[:, None]).reshape(-1, views.shape[2])
    wanted = np.zeros((len(classes), N_CLASSES))
    wanted[np.arange(len(classes)), classes] = 8
    gram = centred.T @ centred
    held = gram + 10 * differences.T @ differences + 1e-6 * np.trace(gram) / len(gram) * np.eye(len(gram))
    solved = np.linalg.solve(held, centred.T @ (wanted - wanted.mean(0))).T
    bias = wanted.mean(0) - solved @ mean
    spare = np.setdiff1d(np.arange(N_CLASSES), classes)
    solved[spare] = random.normal(0, 0.1 / np.sqrt(np.trace(gram) / len(pictures)), (len(spare), views.shape[2]))
    bias[spare] = -4
    return solved, bias


def make(samples: np.ndarray, views: Iterable[np.ndarray], classes: np.ndarray) -> bytes:
    """The model file.

    `samples` f32 [n, 3, SIDE, SIDE], about a hundred, scale the layers. `views`, of the same shape and each of one picture, fit the head,
    with `classes` i64 [pictures].
    """
    network = Network(samples.astype(np.float32))
    here = network.add("HardSwish", [network.conv("input", "stem", STEM, 3, 2)], "stem.act")
    for i, shape in enumerate(BLOCKS, start=1):
        here = network.block(here, f"block{i}", shape)
    here = network.add("HardSwish", [network.conv(here, "last", LAST_CONV)], "last.act")
    here = network.add("GlobalAveragePool", [here], "pool")
    here = network.add("Flatten", [here], "flat", axis=1)
    here = network.add("HardSwish", [network.linear(here, "hidden", HIDDEN)], "features")

    body = onnxruntime.InferenceSession(network.model(here, HIDDEN), one_thread(), providers=["CPUExecutionProvider"])
    features = np.stack([body.run([here], {"input": batch})[0] for batch in views])
    weight, bias = fit_head(features.astype(np.float64), classes)
    names = [network.weight("head.weight", weight), network.weight("head.bias", bias)]
    network.nodes.append(helper.make_node("Gemm", [here, *names], ["logits"], "head", transB=1))
    model = network.model("logits", N_CLASSES)
    onnx.checker.check_model(model, full_check=True)
    return model
