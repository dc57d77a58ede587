"""Writes the three smallest models of this repository, which are formulas and were never trained.

    python models/make_small.py             # writes square-root.onnx, energy.onnx and vector-add.onnx beside this script

It needs Python 3.8 and nothing else: a model is a few hundred bytes of protocol buffers, and `onnx.proto3` numbers their fields.
"""

import struct
from pathlib import Path

FLOAT = 1
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


def tensor_info(name, row):
    """An f32 input or output: any number of rows of this shape; a side that is a name may have any length."""
    dims = field(1, field(2, "batch")) + b"".join(field(1, field(2 if isinstance(n, str) else 1, n)) for n in row)
    return field(1, name) + field(2, field(1, field(1, FLOAT) + field(2, dims)))


def constant(name, value):
    return field(2, FLOAT) + field(8, name) + field(9, struct.pack("<f", value))


def node(operator, inputs, output, **attributes):
    out = b"".join(field(1, name) for name in inputs) + field(2, output) + field(4, operator)
    for name, value in attributes.items():
        out += field(5, field(1, name) + field(3, value) + field(20, 2))
    return out


def axes(name, values):
    """A list of axes, i64, as a constant of the graph."""
    return field(1, len(values)) + field(2, 7) + field(8, name) + field(9, struct.pack(f"<{len(values)}q", *values))


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
