#!/usr/bin/env python3
"""Models whose outputs lie in every way that orchestra has to tell apart, and what each item gives by itself.

    model_outputs.py make FOLDER     writes NAME.onnx and NAME.npz (the items), and models.json
    model_outputs.py check FOLDER    reads NAME-BATCH.jsonl for each, and prints what differs

models.json has for each model `constants` (inputs with a value in the workflow, as TOML), `keys` (of the model's table), `inputs`, `columns` (their types, where NAME.jsonl has the items, because some are texts), `read` (what a sink reads: names of outputs, or null for all), `is_run` (else it is inspected alone), and `refused`: "batches" where an output has no row
for each item of a batch, "at run" where that may show in a run only, "always" where no stage can read it, "may" where it may be refused, and null.
The judge is ONNX Runtime for Python, one item after the other in a batch of one.
"""

import json
import os
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T, helper as h, numpy_helper as nh

ITEMS = 35
BATCHES = (1, 3, 8, 32)
MODELS = []


def model(name, inputs, nodes, outputs, data, initializers=(), read=None, refused=None, fixed=None, axis=0, domains=(), is_run=True,
          constants=None, in_axes=None, keys=""):
    """`fixed`: the only batch that the model takes; its outputs are then cut along `axis`. `constants`: per input the value as TOML, and the array for one item. `in_axes`:
    along which axis the items of an input lie, where that is not the first."""
    graph = h.make_graph(nodes, "g", inputs, outputs, [nh.from_array(value, key) for key, value in initializers])
    opsets = [h.make_opsetid("", 17)] + [h.make_opsetid(domain, 3) for domain in domains]
    made = h.make_model(graph, opset_imports=opsets, ir_version=9)
    MODELS.append((name, made, data, dict(read=read, refused=refused, fixed=fixed, axis=axis, is_run=is_run, constants=constants or {}, in_axes=in_axes or {}, keys=keys)))


def value(name, kind, *dims):
    return h.make_tensor_value_info(name, kind, list(dims))


def f32(name, *dims):
    return value(name, T.FLOAT, *dims)


def node(operator, inputs, outputs, **attributes):
    return h.make_node(operator, inputs, outputs, **attributes)


def ints(*values):
    return np.array(values, np.int64)


def numbers(*shape, seed=7):
    return np.random.RandomState(seed).uniform(-1, 1, (ITEMS, *shape)).astype("f4")


def body(name, nodes, inputs, outputs):
    return h.make_graph(nodes, name, inputs, outputs)


def make():
    x4, x = {"x": numbers(4)}, [f32("x", "N", 4)]
    # Rows, of several ranks.
    model("rows", x, [node("Relu", ["x"], ["y"])], [f32("y", "N", 4)], x4)
    model("numbers", x, [node("ReduceSum", ["x", "a"], ["y"], keepdims=0)], [f32("y", "N")], x4, [("a", ints(1))])
    model("rank4", [f32("x", "N", 2, 3, 4)], [node("Neg", ["x"], ["y"])], [f32("y", "N", 2, 3, 4)], {"x": numbers(2, 3, 4)})
    # The batch is another axis.
    layers = [node("Neg", ["x"], ["m"]), node("Unsqueeze", ["x", "a"], ["u"]), node("Unsqueeze", ["m", "a"], ["v"]),
              node("Concat", ["u", "v"], ["hn"], axis=0), node("Identity", ["x"], ["y"])]
    for name, dims in (("layers_symbolic", ("layers", "N", 4)), ("layers_fixed", (2, "N", 4)), ("layers_unnamed", (None, None, None)),
                       ("layers_as_batch", ("N", "layers", 4))):
        model(name, x, layers, [f32("y", "N", 4), f32("hn", *dims)], x4, [("a", ints(0))])
    steps = [node("Transpose", ["x"], ["t"], perm=[1, 0]), node("Unsqueeze", ["t", "a"], ["y"])]
    model("steps", [f32("x", "N", 32)], steps, [f32("y", "T", "N", 1)], {"x": numbers(32)}, [("a", ints(2))])
    model("steps_fixed", [f32("x", "N", 8)], steps, [f32("y", 8, "N", 1)], {"x": numbers(8)}, [("a", ints(2))])
    model("last_axis", x, [node("Transpose", ["x"], ["y"], perm=[1, 0])], [f32("y", 4, "N")], x4)
    model("last_of_three", [f32("x", "N", 2, 3)], [node("Transpose", ["x"], ["y"], perm=[1, 2, 0])], [f32("y", 2, 3, "N")], {"x": numbers(2, 3)})
    rng = np.random.RandomState(1)
    weights = [("w", rng.uniform(-1, 1, (2, 12, 3)).astype("f4")), ("r", rng.uniform(-1, 1, (2, 12, 3)).astype("f4"))]
    model("lstm", [f32("x", "N", 5, 3)],
          [node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
           node("LSTM", ["t", "w", "r"], ["y", "yh", "yc"], hidden_size=3, direction="bidirectional")],
          [f32("y", 5, 2, "N", 3), f32("yh", 2, "N", 3), f32("yc", 2, "N", 3)], {"x": numbers(5, 3)}, weights)
    # What is declared says little, or something else.
    model("unnamed", x, [node("Relu", ["x"], ["y"])], [f32("y", None, None)], x4)
    model("other_name", x, [node("Relu", ["x"], ["y"])], [f32("y", "M", 4)], x4)
    model("no_shape", x, [node("Relu", ["x"], ["y"])], [h.make_tensor_value_info("y", T.FLOAT, None)], x4)
    model("open_rows", [f32("x", "N", 4)], [node("Concat", ["x", "x"], ["y"], axis=1)], [f32("y", "N", "width")], x4)
    # Several entries of each item.
    model("flat", x, [node("Reshape", ["x", "s"], ["y"])], [f32("y", "M")], x4, [("s", ints(-1))])
    model("two_each", x, [node("Reshape", ["x", "s"], ["y"])], [f32("y", "M", 2)], x4, [("s", ints(-1, 2))])
    model("interleaved", x, [node("Neg", ["x"], ["m"]), node("Concat", ["x", "m"], ["y"], axis=0)], [f32("y", "M", 4)], x4, refused="batches")
    # No row for each item.
    model("sum", x, [node("ReduceSum", ["x"], ["y"], keepdims=0)], [f32("y")], x4, refused="batches")
    model("mean", x, [node("ReduceMean", ["x"], ["y"], keepdims=1)], [f32("y", 1, 1)], x4, refused="batches")
    hits = [node("Greater", ["x", "z"], ["b"]), node("NonZero", ["b"], ["y"])]
    model("nonzero", x, hits, [value("y", T.INT64, 2, "hits")], x4, [("z", np.float32(0.2))], refused="batches")
    model("hits", x, [*hits[:1], node("NonZero", ["b"], ["n"]), node("Transpose", ["n"], ["p"]), node("GatherND", ["x", "p"], ["g"]),
                      node("Unsqueeze", ["g", "a"], ["y"])],
          [f32("y", "hits", 1)], x4, [("z", np.float32(0.2)), ("a", ints(1))], refused="batches")
    # Items that change each other.
    model("softmax_of_batch", x, [node("Softmax", ["x"], ["y"], axis=0)], [f32("y", "N", 4)], x4, refused="batches")
    model("pairs", x, [node("Transpose", ["x"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["y"])], [f32("y", "N", "N")], x4, refused="batches")
    model("best_of_batch", x, [node("TopK", ["x", "k"], ["y", "at"], axis=0)], [f32("y", 1, 4), value("at", T.INT64, 1, 4)], x4, [("k", ints(1))], refused="batches")
    model("sums_so_far", x, [node("CumSum", ["x", "a"], ["y"])], [f32("y", "N", 4)], x4, [("a", np.int64(0))], refused="batches")
    model("turned_round", x, [node("Slice", ["x", "from", "to", "axis", "step"], ["y"])], [f32("y", "N", 4)], x4,
          [("from", ints(-1)), ("to", ints(-1 << 62)), ("axis", ints(0)), ("step", ints(-1))], refused="batches")
    model("sorted", x, [node("Shape", ["x"], ["s"]), node("Gather", ["s", "first"], ["n"]), node("TopK", ["x", "n"], ["y", "at"], axis=0)],
          [f32("y", "N", 4), value("at", T.INT64, "N", 4)], x4, [("first", ints(0))], refused="batches")
    # What an item has follows from its place, or from how many there are.
    size = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "first"], ["n"])]
    count = [*size, node("Squeeze", ["n", "first"], ["m"]), node("Range", ["zero", "m", "one"], ["r"]), node("Cast", ["r"], ["f"], to=T.FLOAT),
             node("Unsqueeze", ["f", "axis"], ["place"])]
    of_count = [("first", ints(0)), ("axis", ints(1)), ("zero", np.int64(0)), ("one", np.int64(1)), ("wide", np.float32(640))]
    model("numbered", x, [*count, node("Mul", ["x", "wide"], ["v"]), node("Concat", ["place", "v"], ["y"], axis=1)], [f32("y", "N", 5)], x4, of_count, refused="batches")
    model("by_place", x, [*count, node("Add", ["x", "place"], ["y"])], [f32("y", "N", 4)], x4, of_count, refused="batches")
    model("shared", x, [*size, node("Cast", ["n"], ["f"], to=T.FLOAT), node("Div", ["x", "f"], ["y"])], [f32("y", "N", 4)], x4, of_count[:1], refused="batches")
    model("shape", x, [node("Shape", ["x"], ["y"])], [value("y", T.INT64, 2)], x4, refused="batches")
    model("loud", x, [node("Sub", ["x", "k"], ["d"]), node("Relu", ["d"], ["r"]), node("ReduceSum", ["r", "a"], ["s"]), node("Add", ["x", "s"], ["y"])],
          [f32("y", "N", 4)], x4, [("k", np.float32(50)), ("a", ints(0))], refused="batches")
    model("best_place", x, [node("ArgMax", ["x"], ["y"], axis=0)], [value("y", T.INT64, 1, 4)], x4, refused="batches")
    boxes = np.sort(np.abs(numbers(3, 4)), axis=2)[:, :, [0, 1, 2, 3]]
    model("nms", [f32("b", "N", 3, 4), f32("s", "N", 2, 3)], [node("NonMaxSuppression", ["b", "s", "most", "iou"], ["y"])], [value("y", T.INT64, "hits", 3)],
          {"b": boxes, "s": np.abs(numbers(2, 3))}, [("most", ints(3)), ("iou", np.array([0.5], "f4"))], refused="batches")
    model("less_the_next", x, [node("Slice", ["x", "one", "all", "axis"], ["rest"]), node("Slice", ["x", "axis", "one", "axis"], ["first"]),
          node("Concat", ["rest", "first"], ["next"], axis=0), node("Sub", ["x", "next"], ["y"])], [f32("y", "N", 4)], x4,
          [("one", ints(1)), ("all", ints(1 << 62)), ("axis", ints(0))], refused="batches")
    # Items that change each other at some values, some sizes or some places alone, where no probe looks.
    at_run, ascending = {"refused": "at run"}, {"x": np.abs(numbers(4)) * np.logspace(-2, 6, ITEMS)[:, None].astype("f4")}
    model("turned_by_four", x, [node("Slice", ["x", "four", "all", "axis"], ["a"]), node("Slice", ["x", "axis", "four", "axis"], ["b"]),
          node("Concat", ["a", "b"], ["y"], axis=0)], [f32("y", "N", 4)], x4, [("four", ints(4)), ("all", ints(1 << 62)), ("axis", ints(0))], **at_run)
    large = dict(then_branch=body("then", [node("ReduceSum", ["x", "z"], ["sum"]), node("Add", ["x", "sum"], ["t"])], [], [f32("t", "N", 4)]),
                 else_branch=body("else", [node("Identity", ["x"], ["e"])], [], [f32("e", "N", 4)]))
    model("large_batches", x, [node("Shape", ["x"], ["s"]), node("Gather", ["s", "first"], ["n"]), node("Greater", ["n", "four"], ["c"]), node("If", ["c"], ["y"], **large)],
          [f32("y", "N", 4)], x4, [("first", np.int64(0)), ("four", np.int64(4)), ("z", ints(0))], **at_run)
    words = np.array([[1 + at % 8] * (1 + at % 7) + [0] * (7 - at % 7) for at in range(ITEMS)])
    model("cut_to_longest", [value("x", T.INT64, "N", 8)], [node("Greater", ["x", "zero"], ["b"]), node("Cast", ["b"], ["i"], to=T.INT64),
          node("ReduceSum", ["i", "one"], ["l"], keepdims=0), node("ReduceMax", ["l"], ["most"]), node("Slice", ["x", "z", "most", "one"], ["y"])],
          [value("y", T.INT64, "N", "L")], {"x": words}, [("zero", np.int64(0)), ("one", ints(1)), ("z", ints(0))], **at_run)
    halve = body("halve", [node("Mul", ["s", "half"], ["s2"]), node("ReduceMax", ["s2"], ["m"], keepdims=0), node("Greater", ["m", "k"], ["c2"])],
                 [value("i", T.INT64), value("c", T.BOOL), f32("s", "N", 4)], [value("c2", T.BOOL), f32("s2", "N", 4)])
    model("until_all_end", x, [node("Loop", ["n", "go", "x"], ["y"], body=halve)], [f32("y", "N", 4)], ascending,
          [("n", np.int64(50)), ("go", np.array(True)), ("half", np.float32(0.5)), ("k", np.float32(1000))], **at_run)
    ids = {"x": np.random.RandomState(5).randint(0, 1000, (ITEMS, 3))}
    model("large_ids", [value("x", T.INT64, "N", 3)], [node("Greater", ["x", "k"], ["g"]), node("Cast", ["g"], ["f"], to=T.FLOAT), node("ReduceSum", ["f"], ["s"]),
          node("Cast", ["x"], ["v"], to=T.FLOAT), node("Add", ["v", "s"], ["y"])], [f32("y", "N", 3)], ids, [("k", np.int64(100))], **at_run)
    model("place_in_201", [f32("x", "N", 200)], [*count, node("Concat", ["x", "place"], ["y"], axis=1)], [f32("y", "N", 201)], {"x": numbers(200)}, of_count[:4], **at_run)
    model("scaled_by_size", x, [*size, node("Cast", ["n"], ["f"], to=T.FLOAT), node("Mul", ["f", "e"], ["g"]), node("Add", ["g", "k"], ["h"]), node("Mul", ["x", "h"], ["y"])],
          [f32("y", "N", 4)], x4, [("first", ints(0)), ("e", np.float32(5e-4)), ("k", np.float32(1))], **at_run)
    model("quantized_together", x, [node("DynamicQuantizeLinear", ["x"], ["q", "s", "p"]), node("DequantizeLinear", ["q", "s", "p"], ["y"])], [f32("y", "N", 4)], ascending, **at_run)
    swap = np.eye(8, dtype="f4")[[0, 2, 1, 3, 4, 5, 6, 7]]
    model("fixed8_swapped", [f32("x", 8, 4)], [node("MatMul", ["w", "x"], ["y"])], [f32("y", 8, 4)], x4, [("w", swap)], fixed=8, **at_run)
    model("trained", x, [node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y", "rm", "rv"], training_mode=1)], [f32("y", "N", 4)], x4,
          [("s", np.ones(4, "f4")), ("b", np.zeros(4, "f4")), ("m", np.zeros(4, "f4")), ("v", np.ones(4, "f4"))], refused="always")
    # Types.
    model("topk", x, [node("TopK", ["x", "k"], ["v", "at"])], [f32("v", "N", 2), value("at", T.INT64, "N", 2)], x4, [("k", ints(2))])
    types = [(T.FLOAT16, "h"), (T.INT32, "i"), (T.UINT8, "u"), (T.BOOL, "b")]
    model("types", x, [node("Cast", ["x"], [name], to=kind) for kind, name in types], [value(name, kind, "N", 4) for kind, name in types],
          {"x": np.abs(numbers(4)) * 9})
    double = [node("Cast", ["x"], ["d"], to=T.DOUBLE), node("Relu", ["x"], ["y"])]
    model("double_unread", x, double, [f32("y", "N", 4), value("d", T.DOUBLE, "N", 4)], x4, read=["y"])
    model("double_read", x, double, [f32("y", "N", 4), value("d", T.DOUBLE, "N", 4)], x4, refused="may")
    model("int8_read", x, [node("Cast", ["x"], ["y"], to=T.INT8)], [value("y", T.INT8, "N", 4)], {"x": np.abs(numbers(4)) * 9}, refused="may")
    quantize = [node("QuantizeLinear", ["x", "scale", zero], [name]) for zero, name in (("zu", "u"), ("zi", "i"))]
    scales = [("scale", np.float32(0.1)), ("zu", np.uint8(0)), ("zi", np.int8(0))]
    model("quantized", x, quantize, [value("u", T.UINT8, "N", 4), value("i", T.INT8, "N", 4)], x4, scales, is_run=False)
    model("bfloat16", x, [node("Cast", ["x"], ["y"], to=T.BFLOAT16)], [value("y", T.BFLOAT16, "N", 4)], x4, is_run=False)
    for name, kind in (("int8", T.INT8), ("uint16", T.UINT16), ("uint32", T.UINT32), ("uint64", T.UINT64), ("bf16", T.BFLOAT16), ("text", T.STRING)):
        identity = [node("Identity", ["x"], ["y"])]
        model(f"takes_{name}", [value("x", kind, "N", 4)], identity, [value("y", kind, "N", 4)], x4, is_run=False)
    model("takes_texts", [value(name, T.STRING, "N") for name in "ab"], [node("Identity", ["a"], ["y"])], [value("y", T.STRING, "N")], x4, is_run=False)
    # Inputs of texts.
    words = np.array(["a", "ü", "", "Grüße", "x\0y", "b", "日本"])[np.random.RandomState(11).randint(0, 7, ITEMS)]
    known, of_ml = np.array(["red", "green"])[np.arange(ITEMS) % 2], {"domains": ["ai.onnx.ml"]}
    text = lambda name, *dims: value(name, T.STRING, "N", *dims)
    one_hot = lambda x, y, keys, **zeros: node("OneHotEncoder", [x], [y], domain="ai.onnx.ml", cats_strings=keys, **zeros)
    grams = dict(mode="TF", min_gram_length=1, max_gram_length=1, max_skip_count=0, ngram_counts=[0], ngram_indexes=[0, 1, 2], pool_strings=["a", "ü", "日本"])
    model("text", [text("x")], [node("Identity", ["x"], ["y"])], [text("y")], {"x": words})
    model("text_passed", [text("x"), f32("z", "N", 4)], [node("Neg", ["z"], ["y"])], [text("x"), f32("y", "N", 4)], {"x": words, "z": numbers(4)})
    model("text_keys", [text("x")], [node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_strings=["a", "ü", ""], values_int64s=[7, 8, 9], default_int64=-1)],
          [value("y", T.INT64, "N")], {"x": words}, **of_ml)
    model("text_in_columns", [text("x", 1)], [one_hot("x", "y", ["a", "日本"], zeros=1)], [f32("y", "N", 1, 2)], {"x": words[:, None]}, **of_ml)
    model("text_known", [text("x", None)], [one_hot("x", "y", ["red", "green"], zeros=0)], [f32("y", "N", None, 2)], {"x": known[:, None]}, **of_ml)
    model("text_numbers", [text("x", 1)], [node("Cast", ["x"], ["y"], to=T.FLOAT)], [f32("y", "N", 1)], {"x": numbers(1).astype(str)})
    model("text_grams", [text("x", 1)], [node("TfIdfVectorizer", ["x"], ["y"], **grams)], [f32("y", "N", 3)], {"x": words[:, None]})
    model("text_normalized", [text("x")], [node("StringNormalizer", ["x"], ["y"], case_change_action="UPPER", locale="C.UTF-8")], [text("y")], {"x": words})
    model("table", [text("a", 1), text("b", 1), f32("x", "N", 2)],
          [one_hot("a", "oa", ["red", "green"], zeros=1), one_hot("b", "ob", ["a", "ü", "日本"], zeros=1), node("Flatten", ["oa"], ["fa"]), node("Flatten", ["ob"], ["fb"]),
           node("Concat", ["fa", "fb", "x"], ["all"], axis=1), node("MatMul", ["all", "w"], ["scores"]), node("ArgMax", ["scores"], ["best"], axis=1, keepdims=0),
           node("LabelEncoder", ["best"], ["label"], domain="ai.onnx.ml", keys_int64s=[0, 1, 2], values_strings=["no", "yes", "vielleicht ü"])],
          [text("label"), f32("scores", "N", 3)], {"a": known[:, None], "b": words[:, None], "x": numbers(2)},
          [("w", np.random.RandomState(8).uniform(-1, 1, (7, 3)).astype("f4"))], **of_ml)
    model("text_grams_of_all", [text("x")], [node("TfIdfVectorizer", ["x"], ["y"], **grams)], [f32("y", "N")], {"x": words}, refused="batches")
    for name, first, refused in (("text_turned", 1, "batches"), ("text_turned_by_four", 4, "at run")):
        turned = [node("Slice", ["x", "n", "all", "axis"], ["a"]), node("Slice", ["x", "axis", "n", "axis"], ["b"]), node("Concat", ["a", "b"], ["y"], axis=0)]
        model(name, [text("x")], turned, [text("y")], {"x": np.arange(ITEMS).astype(str)}, [("n", ints(first)), ("all", ints(1 << 62)), ("axis", ints(0))], refused=refused)
    model("text_fixed4", [value("x", T.STRING, 4)], [node("Identity", ["x"], ["y"])], [value("y", T.STRING, 4)], {"x": words}, fixed=4)
    # Texts, lists, maps, and what may be missing.
    keys = {"x": np.random.RandomState(3).randint(0, 3, ITEMS)}
    encoder = node("LabelEncoder", ["x"], ["label"], domain="ai.onnx.ml", keys_int64s=[0, 1, 2], values_strings=["", "weiß", "a,b\n"], default_string="?")
    model("texts", [value("x", T.INT64, "N")], [encoder], [value("label", T.STRING, "N")], keys, domains=["ai.onnx.ml"])
    model("texts_in_columns", [value("x", T.INT64, "N", 1)], [encoder, node("Cast", ["x"], ["y"], to=T.FLOAT)],
          [value("label", T.STRING, "N", 1), f32("y", "N", 1)], {"x": keys["x"][:, None]}, domains=["ai.onnx.ml"])
    zip_map = [node("Softmax", ["x"], ["p"]), node("ArgMax", ["x"], ["label"], axis=1, keepdims=0),
               node("ZipMap", ["p"], ["probabilities"], domain="ai.onnx.ml", classlabels_strings=["a", "b", "c", "d"])]
    maps = h.make_value_info("probabilities", h.make_sequence_type_proto(h.make_map_type_proto(T.STRING, h.make_tensor_type_proto(T.FLOAT, None))))
    for name, read, refused in (("zipmap_unread", ["label"], None), ("zipmap_read", None, "always")):
        model(name, x, zip_map, [value("label", T.INT64, "N"), maps], x4, read=read, refused=refused, domains=["ai.onnx.ml"])
    parts = h.make_value_info("parts", h.make_sequence_type_proto(h.make_tensor_type_proto(T.FLOAT, None)))
    split = [node("SplitToSequence", ["x"], ["parts"], axis=1), node("Relu", ["x"], ["y"])]
    model("sequence_unread", x, split, [parts, f32("y", "N", 4)], x4, read=["y"])
    model("sequence_read", x, split, [parts, f32("y", "N", 4)], x4, refused="always")
    some = h.make_value_info("some", h.make_optional_type_proto(h.make_tensor_type_proto(T.FLOAT, ["N", 4])))
    optional = [node("Optional", ["x"], ["some"]), node("Relu", ["x"], ["y"])]
    model("optional_unread", x, optional, [some, f32("y", "N", 4)], x4, read=["y"])
    model("optional_read", x, optional, [some, f32("y", "N", 4)], x4, refused="always")
    # Rows that are single numbers, and a scan over them.
    model("single", [f32("x", "N")], [node("Neg", ["x"], ["y"])], [f32("y", "N")], {"x": numbers()})
    each = body("each", [node("Neg", ["row"], ["out"])], [f32("row", 4)], [f32("out", 4)])
    model("scan", x, [node("Scan", ["x"], ["y"], num_scan_inputs=1, body=each)], [f32("y", "N", 4)], x4)
    total = body("total", [node("Add", ["state", "row"], ["next"]), node("Identity", ["next"], ["out"])], [f32("state", 4), f32("row", 4)], [f32("next", 4), f32("out", 4)])
    model("scan_sums", x, [node("Scan", ["start", "x"], ["last", "y"], num_scan_inputs=1, body=total)], [f32("y", "N", 4)], x4, [("start", np.zeros(4, "f4"))], refused="batches")
    # Outputs that are inputs.
    model("passed", [f32("x", "N", 4), value("id", T.INT64, "N")], [node("Relu", ["x"], ["z"])], [f32("z", "N", 4), value("id", T.INT64, "N")],
          {**x4, "id": np.arange(ITEMS) + 101})
    kinds = [(T.FLOAT, "f", "f4"), (T.FLOAT16, "h", "f2"), (T.INT32, "i", "i4"), (T.UINT8, "u", "u1"), (T.BOOL, "b", "?")]
    model("passed_types", [value(name, kind, "N", 3) for kind, name, _ in kinds], [node("Relu", ["f"], ["z"])],
          [f32("z", "N", 3)] + [value(name, kind, "N", 3) for kind, name, _ in kinds],
          {name: (np.abs(numbers(3, seed=at)) * 5).astype(kind) for at, (_, name, kind) in enumerate(kinds)})
    # Inputs that are the same for all items: single values, whole inputs and what each item has.
    scalar, rate = value("sr", T.INT64), [node("Cast", ["sr"], ["r"], to=T.FLOAT), node("Mul", ["x", "r"], ["y"])]
    model("constant_scalar", [*x, scalar], rate, [f32("y", "N", 4)], x4, constants={"sr": ("3", np.array(3))})
    branch = dict(then_branch=body("then", [node("Neg", ["x"], ["t"])], [], [f32("t", "N", 4)]),
                  else_branch=body("else", [node("Relu", ["x"], ["e"])], [], [f32("e", "N", 4)]))
    model("constant_branch", [value("go", T.BOOL), *x], [node("If", ["go"], ["y"], **branch)], [f32("y", "N", 4)], x4, constants={"go": ("true", np.array(True))})
    add = [node("Add", ["x", "w"], ["y"])]
    for name, dims, toml, array in (("whole", (4,), "[1, 2.5, -3, 4]", [1, 2.5, -3, 4]), ("filled_whole", (4,), "0.5", [0.5] * 4), ("item", ("N", 4), "[1, 2.5, -3, 4]", [[1, 2.5, -3, 4]]),
                                    ("filled_item", ("N", 4), "2", [[2] * 4]), ("all_of_it", ("M", 4), "[[1, 2, 3, 4]]", [[1, 2, 3, 4]]), ("in_table", ("N", 4), "{ value = 2 }", [[2] * 4])):
        model(f"constant_{name}", [f32("w", *dims), *x], add, [f32("y", "N", 4)], x4, constants={"w": (toml, np.array(array, "f4"))})
    kinds = [("f2", T.FLOAT16), ("f8", T.DOUBLE), ("i4", T.INT32), ("u1", T.UINT8), ("i2", T.INT16)]
    casts = [node("Cast", [f"w{kind}"], [f"c{kind}"], to=T.FLOAT) for kind, _ in kinds]
    model("constant_types", [*[value(f"w{kind}", of, "N", 4) for kind, of in kinds], *x], [*casts, node("Sum", ["x", *[f"c{kind}" for kind, _ in kinds]], ["y"])], [f32("y", "N", 4)], x4,
          constants={f"w{kind}": ("[1, 2, 3, 4]", np.array([[1, 2, 3, 4]], kind)) for kind, _ in kinds})
    encode = dict(domain="ai.onnx.ml", keys_strings=["a", "b"], values_floats=[1.0, 2.0], default_float=-1.0)
    for name, dims, toml, array in (("text", ("N", 1), '{ value = "b" }', [["b"]]), ("texts", ("N", 2), '["b", "a"]', [["b", "a"]]), ("scalar_text", (), '{ value = "b" }', "b")):
        model(f"constant_{name}", [value("t", T.STRING, *dims), f32("x", "N", 2)], [node("LabelEncoder", ["t"], ["e"], **encode), node("Add", ["x", "e"], ["y"])],
              [f32("y", "N", 2)], {"x": numbers(2)}, constants={"t": (toml, np.array(array, object))}, domains=["ai.onnx.ml"])
    # Items along another axis of an input.
    turn = [node("Transpose", ["state"], ["s"], perm=[1, 0, 2]), node("ReduceSum", ["s", "a"], ["sum"], keepdims=0), node("Add", ["x", "sum"], ["y"]), node("Neg", ["state"], ["next"])]
    state = {"x": numbers(4), "state": numbers(2, 4, seed=8)}
    for name, dims in (("named", (2, "N", 4)), ("unnamed", (2, None, 4))):
        batch = dims[1]
        model(f"axis_{name}", [f32("x", batch, 4), f32("state", *dims)], turn, [f32("y", batch, 4), f32("next", *dims)], state, [("a", ints(1))], in_axes={"state": 1})
    model("axis_constant", [f32("x", "N", 4), f32("state", 2, "N", 4)], turn, [f32("y", "N", 4), f32("next", 2, "N", 4)], x4, [("a", ints(1))],
          constants={"state": ("[[1, 2, 3, 4], [5, 6, 7, 8]]", np.arange(1, 9, dtype="f4").reshape(2, 1, 4))})
    model("axis_said", [f32("x", 5, None, 3)], [node("Neg", ["x"], ["y"])], [f32("y", 5, None, 3)], {"x": numbers(5, 3)}, in_axes={"x": 1}, keys="batch_axis = { x = 1 }")
    model("axis_of_time", [f32("x", "T", "N", 3)], [node("ReduceMean", ["x"], ["y"], axes=[0], keepdims=0)], [f32("y", "N", 3)], {"x": numbers(5, 3)}, in_axes={"x": 1},
          keys="batch_axis = { x = 1 }")
    model("axis_last", [f32("x", 4, "N"), f32("z", "N", 4)], [node("Transpose", ["x"], ["t"], perm=[1, 0]), node("Add", ["t", "z"], ["y"])], [f32("y", "N", 4)],
          {"x": numbers(4), "z": numbers(4, seed=8)}, in_axes={"x": 1})
    gru = [("w", rng.uniform(-1, 1, (1, 9, 3)).astype("f4")), ("r", rng.uniform(-1, 1, (1, 9, 3)).astype("f4"))]
    model("axis_gru", [f32("x", 5, "N", 3), f32("h", 1, "N", 3)], [node("GRU", ["x", "w", "r", "", "", "h"], ["y", "hn"], hidden_size=3)],
          [f32("y", 5, 1, "N", 3), f32("hn", 1, "N", 3)], {"x": numbers(5, 3), "h": numbers(1, 3, seed=8)}, gru, in_axes={"x": 1, "h": 1}, keys="batch_axis = { x = 1, h = 1 }")
    # Control flow.
    trip = [("n", np.int64(3)), ("go", np.array(True))]
    step = body("step", [node("Identity", ["c"], ["c2"]), node("Add", ["s", "s"], ["s2"]), node("Identity", ["s2"], ["each"])],
                [value("i", T.INT64), value("c", T.BOOL), f32("s", "N", 4)], [value("c2", T.BOOL), f32("s2", "N", 4), f32("each", "N", 4)])
    model("loop", x, [node("Loop", ["n", "go", "x"], ["y", "all"], body=step)], [f32("y", "N", 4), f32("all", 3, "N", 4)], x4, trip)
    branches = dict(then_branch=body("then", [node("Neg", ["x"], ["t"])], [], [f32("t", "N", 4)]),
                    else_branch=body("else", [node("Relu", ["x"], ["e"])], [], [f32("e", "N", 4)]))
    model("if", x, [node("Constant", [], ["k"], value=h.make_tensor("k", T.BOOL, [], [True])), node("If", ["k"], ["y"], **branches)], [f32("y", "N", 4)], x4)
    # One size of a batch.
    model("fixed4", [f32("x", 4, 3)], [node("Neg", ["x"], ["y"])], [f32("y", 4, 3)], {"x": numbers(3)}, fixed=4)
    for name, n in (("fixed4_layers", 2), ("fixed4_square", 4)):
        nodes = [node("Unsqueeze", ["x", "a"], ["u"]), node("Mul", ["u", "k"], ["y"])]
        scales = np.arange(1, n + 1, dtype="f4").reshape(n, 1, 1)
        model(name, [f32("x", 4, 3)], nodes, [f32("y", n, 4, 3)], {"x": numbers(3)}, [("a", ints(0)), ("k", scales)], fixed=4, axis=1)
    model("fixed4_summed", [f32("x", 4, 3)], [node("CumSum", ["x", "a"], ["y"])], [f32("y", 4, 3)], {"x": numbers(3)}, [("a", np.int64(0))], fixed=4, refused="always")
    model("fixed4_turned", [f32("x", 4, 3)], [node("Slice", ["x", "from", "to", "axis", "step"], ["y"])], [f32("y", 4, 3)], {"x": numbers(3)},
          [("from", ints(-1)), ("to", ints(-1 << 62)), ("axis", ints(0)), ("step", ints(-1))], fixed=4, refused="always")
    model("fixed1_steps", [f32("x", 1, 8)], steps, [f32("y", 8, 1, 1)], {"x": numbers(8)}, [("a", ints(2))])
    model("fixed1_hits", [f32("x", 1, 4)], hits, [value("y", T.INT64, 2, "hits")], x4, [("z", np.float32(0.2))])


def write(folder):
    make()
    about = {}
    for name, made, data, settings in MODELS:
        onnx.save(made, os.path.join(folder, name + ".onnx"))
        np.savez(os.path.join(folder, name + ".npz"), **data)
        np.save(os.path.join(folder, name + ".npy"), next(iter(data.values())))
        columns = None
        if any(values.dtype.kind == "U" for values in data.values()):
            of = lambda values: "text" if values.dtype.kind == "U" else f"f32{list(values.shape[1:])}"
            columns = ", ".join(f'{key} = "{of(values)}"' for key, values in data.items())
            with open(os.path.join(folder, name + ".jsonl"), "w") as file:
                items = [{key: values[item].ravel()[0] if values.dtype.kind == "U" else values[item].tolist() for key, values in data.items()} for item in range(ITEMS)]
                file.writelines(json.dumps(item) + "\n" for item in items)
        constants = {key: toml for key, (toml, _) in settings["constants"].items()}
        about[name] = {"inputs": sorted(data), "columns": columns, **settings, "constants": constants}
        np.savez(os.path.join(folder, name + ".constants.npz"), **{key: array.astype(str) if array.dtype == object else array for key, (_, array) in settings["constants"].items()})
    with open(os.path.join(folder, "models.json"), "w") as file:
        json.dump(about, file)


def alone(session, data, constants, item, of, names):
    """What one item gives."""
    fixed, axis = of["fixed"], of["axis"]
    # Of arrays of other texts ONNX Runtime for Python takes what stands before a zero byte.
    feed = {key: values[item:item + 1].astype(object if values.dtype.kind == "U" else values.dtype) for key, values in data.items()}
    if fixed:
        feed = {key: np.repeat(values, fixed, axis=0) for key, values in feed.items()}
    feed = {key: np.moveaxis(values, 0, of["in_axes"].get(key, 0)) for key, values in feed.items()}
    found = session.run(names, {**feed, **constants})
    return [np.asarray(np.take(value, 0, axis=axis)) if fixed else value for value in found]


def flat(value):
    """The numbers or texts of a value of a record."""
    if isinstance(value, dict):
        value = value["data"]
    return np.array(value).ravel()


def differs(want, found):
    if want.dtype.kind in "OUS":
        return want.ravel().astype(str).tolist() != flat(found).tolist()
    want, found = want.ravel(), flat(found)
    if want.shape != found.shape:
        return True
    if want.dtype.kind == "f":
        return not np.allclose(found.astype("f8"), want.astype("f8"), rtol=1e-4, atol=1e-5)
    return (found != want).any()


def check(folder):
    about = json.load(open(os.path.join(folder, "models.json")))
    n_right, wrong = 0, []
    for name, of in about.items():
        data = dict(np.load(os.path.join(folder, name + ".npz")))
        constants = np.load(os.path.join(folder, name + ".constants.npz"))
        constants = {key: values.astype(object) if values.dtype.kind == "U" else values for key, values in constants.items()}
        session = None
        for batch in BATCHES:
            path = os.path.join(folder, f"{name}-{batch}.jsonl")
            if not os.path.exists(path):
                continue
            session = session or ort.InferenceSession(os.path.join(folder, name + ".onnx"))
            names = of["read"] or [output.name for output in session.get_outputs()]
            records = [json.loads(line) for line in open(path)]
            if sorted(record["index"] for record in records) != list(range(ITEMS)):
                wrong.append(f"{name} at {batch}: {len(records)} records")
            for record in records:
                want = alone(session, data, constants, record["index"], of, names)
                result = record["result"]
                for output, one in zip(names, want):
                    found = result[output] if isinstance(result, dict) and output in result else result
                    if differs(one, found):
                        wrong.append(f"{name} at {batch}: item {record['index']}, output {output}: {str(found)[:200]}, expected {str(one.tolist())[:200]}")
            n_right += 1
    print("\n".join(wrong[:20]) or f"{n_right} right")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    {"make": write, "check": check}[sys.argv[1]](sys.argv[2])
