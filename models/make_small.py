"""Writes the smallest models of this repository, which are formulas and were never trained.

    python models/make_small.py             # writes square-root.onnx, energy.onnx, vector-add.onnx, face-finder.onnx and face-judge.onnx beside this script

It needs Python 3.8 and nothing else: a model is a few hundred bytes of protocol buffers, and `onnx.proto3` numbers their fields.
"""

import struct
from pathlib import Path

FLOAT = 1
INT64 = 7
OPSET = 17
IR_VERSION = 8


def varint(n):
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def field(number, value):
    """A field of a message: a number, a text, or bytes such as those of a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def tensor_info(name, row, dtype=FLOAT):
    """An input or output: any number of rows of this shape; a side that is a name may have any length."""
    dims = field(1, field(2, "batch")) + b"".join(field(1, field(2 if isinstance(n, str) else 1, n)) for n in row)
    return field(1, name) + field(2, field(1, field(1, dtype) + field(2, dims)))


def constant(name, value):
    return field(2, FLOAT) + field(8, name) + field(9, struct.pack("<f", value))


def node(operator, inputs, output, **attributes):
    out = b"".join(field(1, name) for name in inputs) + field(2, output) + field(4, operator)
    for name, value in attributes.items():
        one = field(3, value) + field(20, 2) if isinstance(value, int) else b"".join(field(8, n) for n in value) + field(20, 7)
        out += field(5, field(1, name) + one)
    return out


def kernel(name, rows):
    """The weights of a convolution of one channel, f32 [1, 1, height, width], as a constant of the graph."""
    numbers = [number for row in rows for number in row]
    dims = b"".join(field(1, n) for n in (1, 1, len(rows), len(rows[0])))
    return dims + field(2, FLOAT) + field(8, name) + field(9, struct.pack(f"<{len(numbers)}f", *numbers))


def axes(name, values):
    """A list of axes or sizes, i64, as a constant of the graph."""
    return field(1, len(values)) + field(2, INT64) + field(8, name) + field(9, struct.pack(f"<{len(values)}q", *values))


def write(name, nodes, constants, inputs, outputs):
    graph = b"".join(field(1, n) for n in nodes) + field(2, name)
    graph += b"".join(field(5, c) for c in constants)
    graph += b"".join(field(11, i) for i in inputs) + b"".join(field(12, o) for o in outputs)
    model = field(1, IR_VERSION) + field(2, "orchestra") + field(7, graph) + field(8, field(1, "") + field(2, OPSET))
    path = Path(__file__).resolve().parent / f"{name}.onnx"
    path.write_bytes(model)
    print(f"{path.name}: {len(model)} bytes")


# A round of Newton's method for the square root of `a`: next = (x + a / x) / 2, and how far next * next is from `a`.
write(
    "square-root",
    [
        node("Div", ["a", "x"], "quotient"),
        node("Add", ["x", "quotient"], "sum"),
        node("Mul", ["sum", "half"], "next"),
        node("Mul", ["next", "next"], "square"),
        node("Sub", ["square", "a"], "error"),
        node("Abs", ["error"], "residual"),
    ],
    [constant("half", 0.5)],
    [tensor_info("x", [1]), tensor_info("a", [1])],
    [tensor_info("next", [1]), tensor_info("residual", [1])],
)

# The sum of the squares of 64 numbers, and each of the squares.
write(
    "energy",
    [node("Mul", ["x", "x"], "squares"), node("ReduceSum", ["squares", "axis"], "energy", keepdims=1)],
    [axes("axis", [1])],
    [tensor_info("x", [64])],
    [tensor_info("energy", [1]), tensor_info("squares", [64])],
)

# The sum of two arrays of any length.
write(
    "vector-add",
    [node("Add", ["a", "b"], "sum")],
    [],
    [tensor_info("a", ["n"]), tensor_info("b", ["n"])],
    [tensor_info("sum", ["n"])],
)


SIDE, RADIUS = 24, 11


def face(x, y):
    """What is at a pixel of a face, as examples/faces draws it: 0 outside, 1 skin, 2 an eye or the mouth."""
    from_middle = lambda left, top: ((x - left) ** 2 + (y - top) ** 2) ** 0.5
    if from_middle(11.5, 11.5) > RADIUS:
        return 0
    is_eye = min(from_middle(7.5, 9), from_middle(15.5, 9)) <= 2
    return 2 if is_eye or (7 <= x <= 16 and 15 <= y <= 17) else 1


def template(weights):
    """For each pixel a weight by what is there, made so that all even pictures give 0, and a contrast of 1 between the first two gives 1."""
    of = [[weights[face(x, y)] for x in range(SIDE)] for y in range(SIDE)]
    used = [one for row in of for one in row if one is not None]
    mean = sum(used) / len(used)
    size = sum((one - mean) * one for one in used)
    return [[0.0 if one is None else (one - mean) / size for one in row] for row in of]


# How much a place looks like a light disc of 24 pixels, for every fourth pixel of a picture of any size.
write(
    "face-finder",
    [node("Conv", ["x", "disc"], "heat", strides=[4, 4])],
    [kernel("disc", template([0, 1, 1]))],
    [tensor_info("x", [1, "height", "width"])],
    [tensor_info("heat", [1, "down", "right"])],
)

# How much a part of 32 x 32 pixels looks like a face, at the best of 9 x 9 places in it, and which that is.
write(
    "face-judge",
    [
        node("Conv", ["x", "features"], "map"),
        node("Reshape", ["map", "places"], "flat"),
        node("ReduceMax", ["flat"], "likeness", axes=[1], keepdims=1),
        node("ArgMax", ["flat"], "place", axis=1, keepdims=1),
    ],
    [kernel("features", template([None, 1, 0])), axes("places", [0, 81])],
    [tensor_info("x", [1, 32, 32])],
    [tensor_info("likeness", [1]), tensor_info("place", [1], INT64)],
)
