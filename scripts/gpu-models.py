"""Makes the models and pictures of the GPU check: ResNet-50 and MobileNetV3-small at f32 and f16, a reader of lines of any width, and JPEG files.

    gpu-models.py BENCH_DATA OUTPUT

Nothing is trained and nothing is downloaded. The weights are random but seeded. Those of ResNet-50 are drawn from 256 values, so that a kit
of hundreds of megabytes travels as a quarter of that; to a GPU they cost what any others cost.
"""

from __future__ import annotations

import math
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

SIDE, CLASSES, OPSET, IR_VERSION, SEED = 224, 1000, 20, 10, 23
# Channels inside, channels out, blocks, stride: table 1 of "Deep Residual Learning for Image Recognition" (He et al., 2015).
GROUPS = ((64, 256, 3, 1), (128, 512, 4, 2), (256, 1024, 6, 2), (512, 2048, 3, 2))
# Each block adds to what goes around it; with a part of its size the sum stays within the range of f16.
BRANCH = 0.3
PHOTOS, SMALL = 300, 64
# Of the reader: height of a line, and what its classes stand for, behind that of no character. Channels and strides are those of CRNN (Shi et al., 2015).
LINE, CHARACTERS = 32, [chr(code) for code in range(33, 127)]
READER = ((64, (2, 2)), (128, (2, 2)), (256, (2, 1)), (256, (1, 1)), (512, (2, 1)), (512, (1, 1)), (512, (2, 1)))


class Network:
    """Nodes and weights of a graph under construction."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(SEED)
        self.values = self.random.normal(0, 1, 256).astype(np.float32)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, shape: tuple[int, ...], deviation: float) -> str:
        drawn = self.values[self.random.integers(0, 256, shape)] * np.float32(deviation)
        self.weights.append(numpy_helper.from_array(drawn.astype(np.float32), name))
        return name

    def add(self, operator: str, inputs: list[str], name: str, **attributes) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def conv(self, here: str, name: str, shape: tuple[int, int, int], stride: int | tuple[int, int] = 1, size: float = 1.0) -> str:
        before, after, kernel = shape
        strides = [stride, stride] if isinstance(stride, int) else list(stride)
        deviation = size * math.sqrt(2 / (before * kernel * kernel))
        names = [self.weight(f"{name}.weight", (after, before, kernel, kernel), deviation), self.weight(f"{name}.bias", (after,), 0.01)]
        pads = [kernel // 2] * 4
        return self.add("Conv", [here, *names], name, kernel_shape=[kernel, kernel], strides=strides, pads=pads)

    def relu(self, here: str) -> str:
        return self.add("Relu", [here], f"{here}.relu")

    def block(self, here: str, name: str, channels: tuple[int, int, int], stride: int) -> str:
        before, inside, after = channels
        inner = self.relu(self.conv(here, f"{name}.1", (before, inside, 1)))
        inner = self.relu(self.conv(inner, f"{name}.2", (inside, inside, 3), stride))
        inner = self.conv(inner, f"{name}.3", (inside, after, 1), size=BRANCH)
        if before != after:
            here = self.conv(here, f"{name}.around", (before, after, 1), stride, size=math.sqrt(0.5))
        return self.relu(self.add("Add", [inner, here], f"{name}.sum"))


def resnet50() -> onnx.ModelProto:
    net = Network()
    here = net.relu(net.conv("input", "stem", (3, 64, 7), 2))
    here = net.add("MaxPool", [here], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    before = 64
    for group, (inside, after, blocks, stride) in enumerate(GROUPS, start=1):
        for block in range(blocks):
            here = net.block(here, f"group{group}.{block}", (before, inside, after), stride if block == 0 else 1)
            before = after
    here = net.add("Flatten", [net.add("GlobalAveragePool", [here], "mean")], "flat", axis=1)
    names = [net.weight("head.weight", (CLASSES, before), math.sqrt(1 / before)), net.weight("head.bias", (CLASSES,), 0.01)]
    net.add("Gemm", [here, *names], "logits", transB=1)
    return model("resnet-50", net, ["batch", 3, SIDE, SIDE], ["batch", CLASSES])


def reader() -> onnx.ModelProto:
    """Reads lines of any width: one vector of logits for each four columns of pixels."""
    net = Network()
    here, before = "input", 3
    for at, (after, stride) in enumerate(READER):
        here, before = net.relu(net.conv(here, f"conv{at}", (before, after, 3), stride)), after
    here = net.conv(here, "classes", (before, 1 + len(CHARACTERS), 1))
    net.weights.append(numpy_helper.from_array(np.array([2], np.int64), "height"))
    net.add("Transpose", [net.add("Squeeze", [here, "height"], "steps")], "logits", perm=[0, 2, 1])
    made = model("reader", net, ["batch", 3, LINE, "width"], ["batch", "steps", 1 + len(CHARACTERS)])
    helper.set_model_props(made, {"character": "\n".join(CHARACTERS)})
    return made


def model(name: str, net: Network, takes: list[int | str], gives: list[int | str]) -> onnx.ModelProto:
    pixels = helper.make_tensor_value_info("input", TensorProto.FLOAT, takes)
    result = helper.make_tensor_value_info("logits", TensorProto.FLOAT, gives)
    graph = helper.make_graph(net.nodes, name, [pixels], [result], net.weights)
    imports = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION, producer_name="scripts/gpu-models.py")


def half(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same at f16: weights, input and output. The graph holds no constant nodes and no casts."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for weight in model.graph.initializer:
        if weight.data_type == TensorProto.FLOAT:
            weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).astype(np.float16), weight.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    del model.graph.value_info[:]
    return model


def save(model: onnx.ModelProto, path: Path) -> None:
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString(deterministic=True))
    print(f"  {path.name:24} {path.stat().st_size / 1e6:.0f} MB")


def main() -> int:
    bench_data, output = Path(sys.argv[1]), Path(sys.argv[2])
    models, photos, small = output / "models", output / "photos", output / "small"
    for folder in (models, photos, small):
        folder.mkdir(parents=True, exist_ok=True)
    for name, model in {"resnet50": resnet50(), "mobilenet": onnx.load(bench_data / "mobilenet.onnx")}.items():
        save(model, models / f"{name}-f32.onnx")
        save(half(model), models / f"{name}-f16.onnx")
    save(reader(), models / "reader-f32.onnx")
    sources = sorted((bench_data / "small").glob("*.jpg"))[:PHOTOS]
    for source in sources:
        shutil.copyfile(source, photos / source.name)
    for source in sources[:SMALL]:
        Image.open(source).convert("RGB").resize((SIDE, SIDE)).save(small / source.name, quality=80, subsampling="4:2:0")
    print(f"  {len(sources)} photographs, {SMALL} of {SIDE}x{SIDE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
