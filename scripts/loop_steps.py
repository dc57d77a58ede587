#!/usr/bin/env python3
"""A recurrent model, arrays of random lengths for it to step through, and the same steps as a plain loop over ONNX Runtime.

    loop_steps.py make FOLDER SEED    writes model.onnx, frames.py and arrays/NUMBER.npy
    loop_steps.py check FOLDER OUT    reads OUT/all.jsonl, OUT/some.jsonl and OUT/low.jsonl, and prints what differs

`all` steps to the end, `some` takes at most 5 rounds, and `low` ends a row once `level` is below 0.4.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T, helper as h, numpy_helper as nh

FRAMES = """
import io
import numpy as np
import orchestra

@orchestra.stage(batch=16, each=True, outputs={"x": ("float32", [None, 3]), "gain": ("float32", [None, 1]), "start": ("float32", [2, 4])})
def frames(content):
    x = np.load(io.BytesIO(content))
    return {"x": x, "gain": x[:, :1] + 2, "start": np.full((2, 4), x.shape[0] / 64, np.float32)}
"""


def make(folder, seed):
    rng = np.random.RandomState(seed % 2**32)
    weights = {name: rng.uniform(-1, 1, shape).astype("f4") for name, shape in (("w", (2, 12, 3)), ("r", (2, 12, 4)))}
    f32 = lambda name, *dims: h.make_tensor_value_info(name, T.FLOAT, list(dims))
    node = h.make_node
    nodes = [node("Mul", ["x", "gain"], ["loud"]), node("Cast", ["rate"], ["f"], to=T.FLOAT), node("Div", ["loud", "f"], ["slow"]),
             node("Unsqueeze", ["slow", "zero"], ["step"]),
             node("GRU", ["step", "w", "r", "", "", "state"], ["y", "next"], hidden_size=4, direction="bidirectional"),
             node("Transpose", ["next"], ["rows"], perm=[1, 0, 2]), node("ReduceSum", ["rows", "axes"], ["level"], keepdims=0),
             node("Squeeze", ["y", "zero"], ["turned"]), node("Transpose", ["turned"], ["heard"], perm=[1, 0, 2])]
    constants = {**weights, "zero": np.array([0]), "axes": np.array([1, 2])}
    inputs = [f32("x", "N", 3), f32("gain", "N", 1), f32("state", 2, "N", 4), h.make_tensor_value_info("rate", T.INT64, [])]
    graph = h.make_graph(nodes, "g", inputs, [f32("level", "N"), f32("next", 2, "N", 4), f32("heard", "N", 2, 4)],
                         [nh.from_array(value, name) for name, value in constants.items()])
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9), folder / "model.onnx")
    (folder / "frames.py").write_text(FRAMES)
    (folder / "arrays").mkdir()
    lengths = [1, 1, 70, *rng.randint(1, 40, 60)]
    for item, length in enumerate(lengths):
        np.save(folder / f"arrays/{item:03}.npy", rng.uniform(-1, 1, (length, 3)).astype("f4"))


def steps(session, x, state, rounds, below):
    """The levels of all rounds, what was heard in them, and the last state."""
    levels, heard = [], []
    for frame in x[:rounds]:
        feed = {"x": frame[None], "gain": frame[None, :1] + 2, "state": state, "rate": np.array(8)}
        level, state, one = session.run(["level", "next", "heard"], feed)
        levels.append(level[0])
        heard.append(one[0])
        if level[0] < below:
            break
    return levels, heard, state[:, 0]


def check(folder, out):
    session = ort.InferenceSession(folder / "model.onnx")
    wrong, n = [], 0
    for sink, rounds, below, start in (("all", 1 << 30, -np.inf, 0.0), ("some", 5, -np.inf, None), ("low", 1 << 30, 0.4, 0.25)):
        records = {record["item"]: record["result"] for record in map(json.loads, open(out / f"{sink}.jsonl"))}
        arrays = sorted((folder / "arrays").iterdir())
        if sorted(records) != [path.name for path in arrays]:
            wrong.append(f"{sink}: {len(records)} records")
            continue
        for path in arrays:
            x, found = np.load(path), records[path.name]
            first = np.float32(x.shape[0] / 64 if start is None else start)
            levels, heard, state = steps(session, x, np.full((2, 1, 4), first, "f4"), rounds, below)
            of = lambda name: np.array(found[name]["data"], "f4").reshape(found[name]["shape"])
            for name, want in (("level", np.array(levels)), ("heard", np.array(heard)), ("next", state)):
                if of(name).shape != want.shape or not np.allclose(of(name), want, rtol=1e-4, atol=1e-5):
                    wrong.append(f"{sink}: {name} of {path.name}: {found[name]['shape']}, expected {want.shape}")
            rounds_of = found["rounds"]["data"] if isinstance(found["rounds"], dict) else found["rounds"]
            if np.ravel(rounds_of)[0] != len(levels):
                wrong.append(f"{sink}: {path.name} took {rounds_of} rounds, expected {len(levels)}")
            n += 1
    print("\n".join(wrong[:20]) or f"{n} right")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    make(Path(sys.argv[2]), int(sys.argv[3])) if sys.argv[1] == "make" else check(Path(sys.argv[2]), Path(sys.argv[3]))
