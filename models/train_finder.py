"""Trains `page-finder.onnx`, the small model that finds the digits on a page, and writes it if it is good enough.

    python models/train_finder.py             # train, test on held-out pages, write
    python models/train_finder.py --validate  # the same with pages of training digits only; writes nothing
    python models/train_finder.py --check     # test the model that is there on held-out pages; writes nothing

It learns from pages that examples/pages/make_pages.py makes of the digits that models/train_digits.py trains on.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys

# First: it sets the variables that the math libraries read while they load, and it folds batch norms.
from train_digits import IR_VERSION, MODELS, OPSET, folded

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(MODELS.parent / "examples" / "pages"))
from make_pages import Page, load_split, pages

FILE = MODELS / "page-finder.onnx"
SEED = 11
HEIGHT, WIDTH = 48, 384  # what the model takes
STRIDE = 4  # pixels of a cell of the heat map, each way
ROWS, COLUMNS = HEIGHT // STRIDE, WIDTH // STRIDE
BOXES = 32  # rows of the answer
THRESHOLD = 0.5  # what the workflow keeps
FAINTEST = 0.05  # a peak below this is no box at all
UNIT = 16.0  # the usual side of a box in pixels of the model's input
FLOOR, FLOOR_MANY = 0.98, 0.95  # share of pages where all digits are found, and nothing else; with few digits, and with many
N_PAGES = 2500
EPOCHS = 12
BATCH = 16


# ## Data


def to_input(page: Page) -> np.ndarray:
    """What an image stage with `size = [48, 384]` and `color = "gray"` makes of a page: f32 [1, 48, 384]."""
    small = Image.fromarray(page.gray).resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR)
    return np.asarray(small, dtype=np.float32)[None] / 255


def relative(page: Page) -> np.ndarray:
    """The page's boxes with coordinates from 0 to 1."""
    height, width = page.gray.shape
    return page.boxes / (width, height, width, height)


def targets(page: Page) -> np.ndarray:
    """What the network shall answer, f32 [6, ROWS, COLUMNS]: heat, dx, dy, log width, log height, and where the last four count."""
    wanted = np.zeros((6, ROWS, COLUMNS), np.float32)
    row, column = np.mgrid[:ROWS, :COLUMNS] + 0.5
    nearest = np.full((ROWS, COLUMNS), np.inf)
    for x1, y1, x2, y2 in relative(page) * (WIDTH, HEIGHT, WIDTH, HEIGHT):
        cx, cy, w, h = (x1 + x2) / 2 / STRIDE, (y1 + y2) / 2 / STRIDE, x2 - x1, y2 - y1
        dx, dy = cx - column, cy - row
        # A digit warms the cells around its centre, a large one more of them; its own cell is the only one with 1.
        heat = np.exp(-((dx / (w / STRIDE / 6)) ** 2 + (dy / (h / STRIDE / 6)) ** 2) / 2)
        heat[min(int(cy), ROWS - 1), min(int(cx), COLUMNS - 1)] = 1
        wanted[0] = np.maximum(wanted[0], heat)
        mine = (np.abs(dx) < 1.5) & (np.abs(dy) < 1.5) & (dx**2 + dy**2 < nearest)
        nearest[mine] = (dx**2 + dy**2)[mine]
        wanted[1][mine], wanted[2][mine] = dx[mine], dy[mine]
        wanted[3][mine], wanted[4][mine] = math.log(w / UNIT), math.log(h / UNIT)
        wanted[5][mine] = 1
    return wanted


def training_pages(n: int, seed: int, glyphs: np.ndarray, digits: np.ndarray) -> list[Page]:
    """Half of them with few digits, half with many."""
    return [*pages(n // 2, 1, 9, seed, glyphs, digits), *pages(n - n // 2, 10, 24, seed + 1, glyphs, digits)]


# ## Training


class Finder(nn.Module):
    """Two convolutions with stride 2, three that look further around, 49 pixels in the end, and one of 1x1: a heat and a box per cell."""

    WIDTHS = (1, 12, 24, 24, 24, 32)
    KERNELS = (5, 3, 3, 3, 3)
    STRIDES = (2, 2, 1, 1, 1)
    DILATIONS = (1, 1, 1, 2, 2)

    def __init__(self) -> None:
        super().__init__()
        shapes = zip(self.WIDTHS, self.WIDTHS[1:], self.KERNELS, self.STRIDES, self.DILATIONS)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, k, s, k // 2 * d, d, bias=False) for a, b, k, s, d in shapes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in self.WIDTHS[1:])
        self.head = nn.Conv2d(self.WIDTHS[-1], 5, 1)
        nn.init.constant_(self.head.bias, 0.0)
        self.head.bias.data[0] = -4.0  # most cells are no centre

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x - x.mean((2, 3), keepdim=True)  # paper becomes 0, and so does what lies beyond the edge
        for conv, norm in zip(self.convs, self.norms):
            x = torch.relu(norm(conv(x)))
        return self.head(x)


def loss_of(answer: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Focal loss for the heat as in CenterNet, and the distance of the boxes where there are any."""
    heat, is_centre = wanted[:, 0], (wanted[:, 0] == 1).float()
    hot, cold = functional.logsigmoid(answer[:, 0]), functional.logsigmoid(-answer[:, 0])
    p = torch.sigmoid(answer[:, 0])
    heat_loss = -(is_centre * (1 - p) ** 2 * hot + (1 - is_centre) * (1 - heat) ** 4 * p**2 * cold).sum() / is_centre.sum()
    counts = wanted[:, 5:]
    return heat_loss + ((answer[:, 1:] - wanted[:, 1:5]).abs() * counts).sum() / counts.sum()


def train(learned: list[Page]) -> Finder:
    """A trained network in evaluation mode. No page chooses an epoch or a setting."""
    torch.manual_seed(SEED)
    inputs = torch.from_numpy(np.stack([to_input(page) for page in learned]))
    wanted = torch.from_numpy(np.stack([targets(page) for page in learned]))
    network = Finder()
    optimizer = torch.optim.AdamW(network.parameters(), lr=4e-3, weight_decay=1e-2)
    n_steps = EPOCHS * math.ceil(len(inputs) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=n_steps)
    for epoch in range(EPOCHS):
        total = 0.0
        for rows in torch.randperm(len(inputs)).split(BATCH):
            gain, shift = torch.rand(len(rows), 1, 1, 1) * 0.5 + 0.7, torch.rand(len(rows), 1, 1, 1) * 0.2 - 0.1
            loss = loss_of(network(inputs[rows] * gain + shift), wanted[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(rows)
        print(f"epoch {epoch + 1} of {EPOCHS}: loss {total / len(inputs):.4f}", flush=True)
    return network.eval()


# ## Export


def to_onnx(network: Finder) -> bytes:
    """The model file: `x` f32 [batch, 1, 48, 384] to `boxes` f32 [batch, 32, 5], with all that is done to the heat map inside."""
    nodes, weights = [], []

    def constant(name: str, value) -> str:
        weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(operator: str, inputs: list[str], output: str | list[str], **attributes) -> str:
        outputs = [output] if isinstance(output, str) else output
        nodes.append(helper.make_node(operator, inputs, outputs, outputs[0], **attributes))
        return outputs[0]

    here = node("Sub", ["x", node("ReduceMean", ["x"], "paper", axes=[2, 3], keepdims=1)], "ink")
    for i, (conv, norm) in enumerate(zip(network.convs, network.norms), start=1):
        weight, bias = folded(conv, norm)
        k, s, d = Finder.KERNELS[i - 1], Finder.STRIDES[i - 1], Finder.DILATIONS[i - 1]
        inputs = [here, constant(f"conv{i}.weight", weight), constant(f"conv{i}.bias", bias)]
        here = node("Conv", inputs, f"conv{i}", kernel_shape=[k, k], strides=[s, s], dilations=[d, d], pads=[k // 2 * d] * 4)
        here = node("Relu", [here], f"relu{i}")
    weight, bias = network.head.weight.detach().numpy(), network.head.bias.detach().numpy()
    head = node("Conv", [here, constant("head.weight", weight), constant("head.bias", bias)], "head", kernel_shape=[1, 1])
    node("Split", [head, constant("parts", np.array([1, 2, 2], np.int64))], ["heat", "offset", "extent"], axis=1)

    # Heat: a cell keeps its score where none around it is hotter.
    f32 = np.float32
    scores = node("Sigmoid", ["heat"], "scores")
    highest = node("MaxPool", [scores], "highest", kernel_shape=[7, 3], pads=[3, 1, 3, 1], strides=[1, 1])
    is_peak = node("And", [
        node("Equal", [scores, highest], "is_highest"),
        node("Greater", [scores, constant("faintest", np.array(FAINTEST, f32))], "is_hot"),
    ], "is_peak")  # fmt: skip
    peaks = node("Mul", [scores, node("Cast", [is_peak], "peak", to=TensorProto.FLOAT)], "peaks")

    # Boxes of all cells, 0 to 1 across the page.
    row, column = np.mgrid[:ROWS, :COLUMNS].astype(f32) + f32(0.5)
    cells = np.array([COLUMNS, ROWS], f32).reshape(1, 2, 1, 1)
    grid = (np.stack([column, row])[None] / cells).astype(f32)
    centre = node("Add", [node("Mul", ["offset", constant("cell", 1 / cells)], "moved"), constant("grid", grid)], "centre")
    half_unit = (UNIT / 2 / np.array([WIDTH, HEIGHT], f32)).reshape(1, 2, 1, 1).astype(f32)
    half = node("Mul", [node("Exp", ["extent"], "units"), constant("half_unit", half_unit)], "half")
    corners = node("Concat", [node("Sub", [centre, half], "low"), node("Add", [centre, half], "high")], "corners", axis=1)
    inside = node("Clip", [corners, constant("zero", np.array(0, f32)), constant("one", np.array(1, f32))], "inside")

    # The hottest peaks with their boxes; the rows that are left over are all 0.
    flat = constant("flat", np.array([0, 5, ROWS * COLUMNS], np.int64))
    all_cells = node("Reshape", [node("Concat", [inside, peaks], "by_cell", axis=1), flat], "all_cells")
    hottest = node("Reshape", [peaks, constant("one_row", np.array([0, 1, ROWS * COLUMNS], np.int64))], "heat_row")
    node("TopK", [hottest, constant("k", np.array([BOXES], np.int64))], ["best", "where"], axis=2)
    chosen = node("GatherElements", [all_cells, node("Concat", ["where"] * 5, "where5", axis=1)], "chosen", axis=2)
    is_used = node("Cast", [node("Greater", ["best", "zero"], "is_used")], "used", to=TensorProto.FLOAT)
    node("Transpose", [node("Mul", [chosen, is_used], "kept")], "boxes", perm=[0, 2, 1])

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1, HEIGHT, WIDTH])
    boxes = helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ["batch", BOXES, 5])
    model = helper.make_model(
        helper.make_graph(nodes, "page-finder", [x], [boxes], weights),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="models/train_finder.py",
        doc_string="Digits on a page of gray pixels, 0.0 black to 1.0 white: x1, y1, x2, y2 from 0 to 1, and a score. "
        "See models/README.md.",
    )
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString(deterministic=True)


# ## Testing


def find(model: bytes, tested: list[Page]) -> np.ndarray:
    """f32 [n, BOXES, 5] as ONNX Runtime computes them on the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    inputs = np.stack([to_input(page) for page in tested])
    return np.concatenate([session.run(["boxes"], {"x": inputs[i : i + BATCH]})[0] for i in range(0, len(inputs), BATCH)])


def kept(rows: np.ndarray) -> np.ndarray:
    """The boxes of one page that a workflow goes on with, from left to right: f32 [n, 4]."""
    rows = rows[rows[:, 4] >= THRESHOLD]
    return rows[np.argsort(rows[:, 0], kind="stable"), :4]


def overlap(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union of the boxes of `a` and of `b`, one by one."""
    sides = np.clip(np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2]), 0, None)
    area = lambda boxes: (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return sides.prod(1) / (area(a) + area(b) - sides.prod(1))


def report(what: str, model: bytes, tested: list[Page]) -> float:
    """Prints how many pages have all their digits found in order; gives their share."""
    n_right, overlaps, misses = 0, [], []
    for page, rows in zip(tested, find(model, tested)):
        found, wanted = kept(rows), relative(page)
        if len(found) != len(wanted):
            misses.append(len(found) - len(wanted))
            continue
        overlaps.append(overlap(found, wanted))
        n_right += bool((overlaps[-1] > 0.5).all())
    print(f"{what}: all digits found on {n_right} of {len(tested)} pages, mean overlap {np.concatenate(overlaps).mean():.3f}", end="")
    print(f"; too many on {sum(m > 0 for m in misses)}, too few on {sum(m < 0 for m in misses)}")
    return n_right / len(tested)


def test(model: bytes, glyphs: np.ndarray, digits: np.ndarray) -> bool:
    print(f"{len(model)} bytes, sha256 {hashlib.sha256(model).hexdigest()}")
    few = report("3 to 8 digits", model, list(pages(300, 3, 8, 1, glyphs, digits)))
    many = report("15 to 24 digits", model, list(pages(300, 15, 24, 2, glyphs, digits)))
    return few >= FLOOR and many >= FLOOR_MANY


def main() -> int:
    parser = argparse.ArgumentParser(description="Train and test the model that finds digits on a page.")
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
    model = to_onnx(train(training_pages(N_PAGES, 100, glyphs, digits)))
    good = test(model, *tested)
    if not good:
        print(f"below {FLOOR}, or {FLOOR_MANY} with many digits: not written")
    elif not asked.validate:
        FILE.write_bytes(model)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
