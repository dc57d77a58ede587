"""Trains the two small models of this repository and writes them with the images that they are tested on.

It never shows a held-out image to training, and it never writes a model that fails the accuracy floor.

    python models/train_digits.py             # train, test, write
    python models/train_digits.py --validate  # judge a changed recipe without looking at the held-out images; writes nothing
    python models/train_digits.py --check     # test the models that are there; trains nothing, writes nothing
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import math
import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

# The math libraries choose their kernels by CPU, and other kernels round differently. All are asked for the AVX2 ones and one thread,
# so that the weights depend as little as possible on the machine. They read these variables once, while they load.
os.environ.update(
    OMP_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
    MKL_CBWR="AVX2",
    ONEDNN_MAX_CPU_ISA="AVX2",
    ATEN_CPU_CAPABILITY="avx2",
)

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional

MODELS = Path(__file__).resolve().parent
EXAMPLE = MODELS.parent / "examples" / "digits"
IMAGES = EXAMPLE / "images"

SEED = 7
SIDE = 32  # height and width of the images in pixels
HELD_OUT = 400
FLOOR = 0.975  # the lowest held-out accuracy that is worth shipping
EPOCHS = 60
BATCH = 64

# Old enough for any ONNX Runtime of the last years.
OPSET = 17
IR_VERSION = 8


@dataclass(frozen=True)
class Task:
    """One model: its file's stem, its labels by class number, and how a digit becomes a class number."""

    stem: str
    labels: tuple[str, ...]
    modulus: int

    def classes(self, digits: np.ndarray) -> np.ndarray:
        return digits % self.modulus


TASKS = (
    Task("digits", tuple("0123456789"), 10),
    Task("digits-parity", ("even", "odd"), 2),
)


# ## Data


def load_images() -> tuple[np.ndarray, np.ndarray]:
    """All 1797 images as u8 [n, SIDE, SIDE], and their digits as i64 [n]."""
    data = load_digits()
    grays = np.rint(data.images * (255 / 16)).astype(np.uint8)
    large = [Image.fromarray(gray).resize((SIDE, SIDE), Image.Resampling.BICUBIC) for gray in grays]
    return np.stack([np.asarray(image) for image in large]), data.target.astype(np.int64)


def split(images: np.ndarray, digits: np.ndarray, n_held_out: int, seed: int):
    """(images, held-out images, digits, held-out digits): shuffled, the same share of each digit on both sides."""
    return train_test_split(images, digits, test_size=n_held_out, stratify=digits, random_state=seed)


def image_name(index: int) -> str:
    """A file name that says nothing of the digit; `index` counts the shuffled held-out images from 0."""
    return f"digit-{index + 1:04}.png"


def write_images(images: np.ndarray, digits: np.ndarray) -> None:
    """Writes the held-out images as 8-bit gray PNG files, and `labels.csv` beside their folder."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    for stale in IMAGES.glob("digit-*.png"):
        stale.unlink()
    for index, image in enumerate(images):
        Image.fromarray(image).save(IMAGES / image_name(index), optimize=True)
    with open(EXAMPLE / "labels.csv", "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["file", "label"])
        rows.writerows([image_name(index), digit] for index, digit in enumerate(digits))


def read_images() -> tuple[np.ndarray, np.ndarray]:
    """The held-out images and their digits, from the files that `write_images` wrote."""
    with open(EXAMPLE / "labels.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    images = [np.asarray(Image.open(IMAGES / row["file"])) for row in rows]
    return np.stack(images), np.array([int(row["label"]) for row in rows])


def to_pixels(images: np.ndarray) -> np.ndarray:
    """u8 [n, SIDE, SIDE] to the model's input: f32 [n, 1, SIDE, SIDE], 0.0 to 1.0."""
    return (images.astype(np.float32) / 255)[:, None]


# ## Training


class Network(nn.Module):
    """Three blocks of convolution, batch norm, ReLU and pooling (32 to 16 to 8 to 4 pixels), then one linear layer."""

    WIDTHS = (16, 32, 64)

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        before = (1, *self.WIDTHS)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in zip(before, self.WIDTHS))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in self.WIDTHS)
        self.head = nn.Linear(self.WIDTHS[-1] * 4 * 4, n_classes)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        for conv, norm in zip(self.convs, self.norms):
            pixels = functional.max_pool2d(torch.relu(norm(conv(pixels))), 2)
        return self.head(functional.dropout(pixels.flatten(1), 0.3, self.training))


def augment(pixels: torch.Tensor) -> torch.Tensor:
    """Each image turned by up to 10 degrees, scaled by up to 10 percent and moved by up to 2 pixels; the border is black."""
    n = len(pixels)
    angle = (torch.rand(n) * 2 - 1) * math.radians(10)
    scale = 1 + (torch.rand(n) * 2 - 1) * 0.1
    shift = (torch.rand(n, 2) * 2 - 1) * (2 / (SIDE / 2))  # grid_sample counts in half images
    cos, sin = torch.cos(angle) * scale, torch.sin(angle) * scale
    matrix = torch.stack([torch.stack([cos, -sin, shift[:, 0]], 1), torch.stack([sin, cos, shift[:, 1]], 1)], 1)
    grid = functional.affine_grid(matrix, list(pixels.shape), align_corners=False)
    return functional.grid_sample(pixels, grid, align_corners=False)


def train(images: np.ndarray, classes: np.ndarray, n_classes: int) -> Network:
    """A trained network in evaluation mode. The recipe is fixed: no image chooses an epoch or a setting."""
    torch.manual_seed(SEED)
    pixels, wanted = torch.from_numpy(to_pixels(images)), torch.from_numpy(classes)
    network = Network(n_classes)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=1e-2)
    n_steps = EPOCHS * math.ceil(len(pixels) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=n_steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(pixels)).split(BATCH):
            loss = functional.cross_entropy(network(augment(pixels[rows])), wanted[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return network.eval()


# ## Export


def folded(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[np.ndarray, np.ndarray]:
    """Weight and bias of the one convolution that does what `conv` and then `norm` do."""
    gain = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    weight = conv.weight * gain[:, None, None, None]
    bias = norm.bias - norm.running_mean * gain
    return weight.detach().numpy(), bias.detach().numpy()


def to_onnx(network: Network, task: Task) -> bytes:
    """The model file: `pixels` f32 [batch, 1, 32, 32] to `logits` f32 [batch, classes].

    Built node by node and not by torch's exporter, whose files name the paths of the machine that made them.
    """
    nodes, weights, here = [], [], "pixels"
    for i, (conv, norm) in enumerate(zip(network.convs, network.norms), start=1):
        for name, value in zip((f"conv{i}.weight", f"conv{i}.bias"), folded(conv, norm)):
            weights.append(numpy_helper.from_array(value, name))
        nodes += [
            helper.make_node(
                "Conv", [here, f"conv{i}.weight", f"conv{i}.bias"], [f"conv{i}"], f"conv{i}", kernel_shape=[3, 3], pads=[1, 1, 1, 1]
            ),
            helper.make_node("Relu", [f"conv{i}"], [f"relu{i}"], f"relu{i}"),
            helper.make_node("MaxPool", [f"relu{i}"], [f"pool{i}"], f"pool{i}", kernel_shape=[2, 2], strides=[2, 2]),
        ]
        here = f"pool{i}"
    weights.append(numpy_helper.from_array(network.head.weight.detach().numpy(), "head.weight"))
    weights.append(numpy_helper.from_array(network.head.bias.detach().numpy(), "head.bias"))
    nodes.append(helper.make_node("Flatten", [here], ["features"], "flatten", axis=1))
    nodes.append(helper.make_node("Gemm", ["features", "head.weight", "head.bias"], ["logits"], "head", transB=1))

    pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 1, SIDE, SIDE])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", len(task.labels)])
    graph = helper.make_graph(nodes, task.stem, [pixels], [logits], weights)
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="models/train_digits.py",
        doc_string="Handwritten digits of 32x32 gray pixels, 0.0 black to 1.0 white. See models/README.md.",
    )
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString(deterministic=True)


# ## Testing


def predict(model: bytes, images: np.ndarray) -> np.ndarray:
    """Class numbers i64 [n] as ONNX Runtime computes them on the CPU, in batches of 64."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    pixels = to_pixels(images)
    batches = [session.run(["logits"], {"pixels": pixels[i : i + BATCH]})[0] for i in range(0, len(pixels), BATCH)]
    return np.concatenate(batches).argmax(1)


def report(task: Task, model: bytes, images: np.ndarray, digits: np.ndarray) -> float:
    """Prints accuracy and every confusion of one model; gives the accuracy."""
    found, wanted = predict(model, images), task.classes(digits)
    accuracy = float((found == wanted).mean())
    print(f"{task.stem}: {(found == wanted).sum()} of {len(wanted)} right, accuracy {accuracy:.4f}")
    confusions = Counter((int(w), int(f)) for w, f in zip(wanted, found) if w != f)
    for (w, f), n in sorted(confusions.items()):
        print(f"  {n} x {task.labels[w]} read as {task.labels[f]}")
    print(f"  {len(model)} bytes, sha256 {hashlib.sha256(model).hexdigest()}")
    return accuracy


def validate(images: np.ndarray, digits: np.ndarray) -> None:
    """Five trainings on 80 percent of the training images, each tested on the other 20: every training image is judged once."""
    for task in TASKS:
        n_right = 0
        order = np.random.default_rng(SEED).permutation(len(images))
        for part in np.array_split(order, 5):
            rest = np.setdiff1d(order, part)
            network = train(images[rest], task.classes(digits[rest]), len(task.labels))
            n_right += int((predict(to_onnx(network, task), images[part]) == task.classes(digits[part])).sum())
        print(f"{task.stem}: {n_right} of {len(images)} right in five-fold validation, accuracy {n_right / len(images):.4f}")


def check() -> bool:
    """Tests the files that are there. True when both models reach the floor."""
    images, digits = read_images()
    return all([report(task, (MODELS / f"{task.stem}.onnx").read_bytes(), images, digits) >= FLOOR for task in TASKS])


def build(images: np.ndarray, digits: np.ndarray, held_out: np.ndarray, held_out_digits: np.ndarray) -> bool:
    """Trains, tests and writes both models. False when one is below the floor; that one is not written."""
    write_images(held_out, held_out_digits)
    all_good = True
    for task in TASKS:
        network = train(images, task.classes(digits), len(task.labels))
        model = to_onnx(network, task)
        # Read back from the PNG files: what is tested is what a workflow will see.
        if report(task, model, *read_images()) < FLOOR:
            print(f"  below {FLOOR}: not written")
            all_good = False
            continue
        (MODELS / f"{task.stem}.onnx").write_bytes(model)
        (MODELS / f"{task.stem}.labels.txt").write_text("\n".join(task.labels) + "\n", encoding="utf-8")
    return all_good


def main() -> int:
    parser = argparse.ArgumentParser(description="Train and test the digit models.")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--validate", action="store_true", help="five-fold validation on the training images; writes nothing")
    mode.add_argument("--check", action="store_true", help="test the models that are there; writes nothing")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if asked.check:
        return 0 if check() else 1
    images, held_out, digits, held_out_digits = split(*load_images(), HELD_OUT, SEED)
    if asked.validate:
        validate(images, digits)
        return 0
    return 0 if build(images, digits, held_out, held_out_digits) else 1


if __name__ == "__main__":
    sys.exit(main())
