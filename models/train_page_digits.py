"""Trains `page-digits.onnx`, the model that reads the digits of a page one by one, and writes it if it is good enough.

    python models/train_page_digits.py             # train, test on held-out pages, write
    python models/train_page_digits.py --validate  # the same with pages of training digits only; writes nothing
    python models/train_page_digits.py --check     # test the model that is there on held-out pages; writes nothing

It learns from pages that examples/pages/make_pages.py makes of the digits that models/train_digits.py trains on. In a test the boxes
are those of `page-finder.onnx`, so models/train_finder.py comes first. `--validate` takes them from that file as well, though it has
learned from all training digits.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
from collections import Counter

# First: it sets the variables that the math libraries read while they load.
from train_digits import IR_VERSION, MODELS, OPSET, SIDE, Network, folded, predict

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from torch import nn
from torch.nn import functional

import train_finder
from make_pages import Page, load_split, pages

FILE = MODELS / "page-digits.onnx"
SEED = 13
N_PAGES = 2000
EPOCHS = 10
BATCH = 64
FLOOR = 0.97  # share of pages that are read without any mistake
SOFTEN = 0.02  # keeps a crop of even paper from being blown up to noise


# ## Data


def crop(page: Page, box: np.ndarray) -> np.ndarray:
    """What a crop stage with `size = [32, 32]` and `color = "gray"` makes of a box with coordinates 0 to 1: u8 [32, 32]."""
    height, width = page.gray.shape
    edges = tuple(float(v) for v in box * (width, height, width, height))
    return np.asarray(Image.fromarray(page.gray).resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=edges))


def shaken(boxes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Boxes that are off by about as much as the finder's: moved and stretched by a few percent, each side by itself."""
    centres, sides = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    centres = centres + sides * rng.normal(0, 0.03, centres.shape)
    sides = sides * np.exp(rng.normal(0, 0.05, sides.shape))
    return np.clip(np.concatenate([centres - sides / 2, centres + sides / 2], 1), 0, 1)


def training_crops(glyphs: np.ndarray, digits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Crops as u8 [n, SIDE, SIDE], and their digits."""
    rng, crops, wanted = np.random.default_rng(SEED), [], []
    for page in train_finder.training_pages(N_PAGES, 200, glyphs, digits):
        crops += [crop(page, box) for box in shaken(train_finder.relative(page), rng)]
        wanted.append(page.digits)
    return np.stack(crops), np.concatenate(wanted)


# ## Training


class Reader(nn.Module):
    """The network of models/train_digits.py behind a step that takes brightness and contrast out of each crop."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Network(10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        centred = pixels - pixels.mean((2, 3), keepdim=True)
        return self.network(centred / ((centred**2).mean((2, 3), keepdim=True).sqrt() + SOFTEN))


def augment(pixels: torch.Tensor) -> torch.Tensor:
    """Each crop turned by up to 8 degrees, stretched by up to 10 percent each way and moved by up to 1.5 pixels; edges go on outside."""
    n = len(pixels)
    angle = (torch.rand(n) * 2 - 1) * math.radians(8)
    wide, high = 1 + (torch.rand(n) * 2 - 1) * 0.1, 1 + (torch.rand(n) * 2 - 1) * 0.1
    shift = (torch.rand(n, 2) * 2 - 1) * (1.5 / (SIDE / 2))
    cos, sin = torch.cos(angle), torch.sin(angle)
    matrix = torch.stack([torch.stack([cos * wide, -sin, shift[:, 0]], 1), torch.stack([sin, cos * high, shift[:, 1]], 1)], 1)
    grid = functional.affine_grid(matrix, list(pixels.shape), align_corners=False)
    return functional.grid_sample(pixels, grid, padding_mode="border", align_corners=False)


def train(crops: np.ndarray, digits: np.ndarray) -> Reader:
    """A trained network in evaluation mode. No crop chooses an epoch or a setting."""
    torch.manual_seed(SEED)
    images, wanted = torch.from_numpy(crops), torch.from_numpy(digits)
    reader = Reader()
    optimizer = torch.optim.AdamW(reader.parameters(), lr=3e-3, weight_decay=1e-2)
    n_steps = EPOCHS * math.ceil(len(images) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=n_steps)
    for epoch in range(EPOCHS):
        total = 0.0
        for rows in torch.randperm(len(images)).split(BATCH):
            pixels = images[rows].float()[:, None] / 255
            loss = functional.cross_entropy(reader(augment(pixels)), wanted[rows], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(rows)
        print(f"epoch {epoch + 1} of {EPOCHS}: loss {total / len(images):.4f}", flush=True)
    return reader.eval()


# ## Export


def to_onnx(reader: Reader) -> bytes:
    """The model file: `pixels` f32 [batch, 1, 32, 32] to `logits` f32 [batch, 10]."""
    nodes, weights = [], []

    def constant(name: str, value: np.ndarray) -> str:
        weights.append(numpy_helper.from_array(value, name))
        return name

    def node(operator: str, inputs: list[str], output: str, **attributes) -> str:
        nodes.append(helper.make_node(operator, inputs, [output], output, **attributes))
        return output

    over_pixels = {"axes": [2, 3], "keepdims": 1}
    centred = node("Sub", ["pixels", node("ReduceMean", ["pixels"], "mean", **over_pixels)], "centred")
    variance = node("ReduceMean", [node("Mul", [centred, centred], "squares")], "variance", **over_pixels)
    spread = node("Add", [node("Sqrt", [variance], "deviation"), constant("soften", np.array(SOFTEN, np.float32))], "spread")
    here = node("Div", [centred, spread], "even")
    for i, (conv, norm) in enumerate(zip(reader.network.convs, reader.network.norms), start=1):
        weight, bias = folded(conv, norm)
        inputs = [here, constant(f"conv{i}.weight", weight), constant(f"conv{i}.bias", bias)]
        here = node("Conv", inputs, f"conv{i}", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        here = node("MaxPool", [node("Relu", [here], f"relu{i}")], f"pool{i}", kernel_shape=[2, 2], strides=[2, 2])
    head = reader.network.head
    inputs = [node("Flatten", [here], "features", axis=1)]
    inputs += [constant("head.weight", head.weight.detach().numpy()), constant("head.bias", head.bias.detach().numpy())]
    node("Gemm", inputs, "logits", transB=1)

    pixels = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 1, SIDE, SIDE])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])
    model = helper.make_model(
        helper.make_graph(nodes, "page-digits", [pixels], [logits], weights),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="models/train_page_digits.py",
        doc_string="A digit cut out of a page, 32x32 gray pixels, 0.0 black to 1.0 white. See models/README.md.",
    )
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString(deterministic=True)


# ## Testing


def report(what: str, finder: bytes, model: bytes, tested: list[Page]) -> float:
    """Runs both models over pages as the workflow does. Prints what is right; gives the share of pages without any mistake."""
    boxes = [train_finder.kept(rows) for rows in train_finder.find(finder, tested)]
    found = predict(model, np.stack([crop(page, box) for page, its in zip(tested, boxes) for box in its]))
    numbers = np.split(found, np.cumsum([len(its) for its in boxes])[:-1])
    n_right = sum(np.array_equal(number, page.digits) for number, page in zip(numbers, tested))
    counted = [(number, page.digits) for number, page in zip(numbers, tested) if len(number) == len(page.digits)]
    pairs = [(int(w), int(f)) for number, wanted in counted for w, f in zip(wanted, number)]
    n_digits = sum(w == f for w, f in pairs)
    print(f"{what}: {n_right} of {len(tested)} pages right, {n_right / len(tested):.4f}; ", end="")
    print(f"on the {len(counted)} with the right count {n_digits} of {len(pairs)} digits right, {n_digits / len(pairs):.4f}")
    for (w, f), n in Counter(pair for pair in pairs if pair[0] != pair[1]).most_common():
        print(f"  {n} x {w} read as {f}")
    return n_right / len(tested)


def test(model: bytes, glyphs: np.ndarray, digits: np.ndarray) -> bool:
    print(f"{len(model)} bytes, sha256 {hashlib.sha256(model).hexdigest()}")
    finder = train_finder.FILE.read_bytes()
    few = report("3 to 8 digits", finder, model, list(pages(300, 3, 8, 1, glyphs, digits)))
    report("15 to 24 digits", finder, model, list(pages(300, 15, 24, 2, glyphs, digits)))
    return few >= FLOOR


def main() -> int:
    parser = argparse.ArgumentParser(description="Train and test the model that reads the digits of a page.")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--validate", action="store_true", help="test on pages of training digits that it did not learn from; writes nothing")
    mode.add_argument("--check", action="store_true", help="test the model that is there; writes nothing")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if asked.check:
        return 0 if test(FILE.read_bytes(), *load_split("held-out")) else 1
    glyphs, digits = load_split("train")
    tested = load_split("held-out")
    if asked.validate:
        cut = len(glyphs) * 4 // 5
        tested = glyphs[cut:], digits[cut:]
        glyphs, digits = glyphs[:cut], digits[:cut]
    model = to_onnx(train(*training_crops(glyphs, digits)))
    good = test(model, *tested)
    if not good:
        print(f"below {FLOOR}: not written")
    elif not asked.validate:
        FILE.write_bytes(model)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
