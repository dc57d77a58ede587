"""Judges a server of the Open Inference Protocol by a client of another make, and prints a table: a feature, over REST, over gRPC.

    python suite.py localhost:8000 localhost:8001 digits pixels 1,32,32 logits

Arguments: both addresses; a model that takes f32; its input; the shape of a row; its output. Fails where a cell of the table does.
"""

import asyncio
import functools
import queue
import sys
import threading

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.grpc.aio as over_grpc_aio
import tritonclient.http as over_http
import tritonclient.http.aio as over_http_aio
from tritonclient.utils import InferenceServerException

http_address, grpc_address, MODEL, INPUT, row, OUTPUT = sys.argv[1:]
ROW = [int(dim) for dim in row.split(",")]
FEATURES = []


class Skip(Exception):
    """The protocol has no such thing here."""


def feature(name):
    def add(check):
        FEATURES.append((name, check))
        return check

    return add


class Server:
    """One of the two ways to it."""

    def __init__(self, kind, client):
        self.kind, self.client = kind, client
        self.is_http = kind is over_http

    def ask(self, rows, binary=True, classes=0, outputs=True, **settings):
        given = self.kind.InferInput(INPUT, list(rows.shape), "FP32")
        if self.is_http:
            given.set_data_from_numpy(rows, binary_data=binary)
            wanted = self.kind.InferRequestedOutput(OUTPUT, binary_data=binary, class_count=classes)
        else:
            given.set_data_from_numpy(rows)
            wanted = self.kind.InferRequestedOutput(OUTPUT, class_count=classes)
        return self.client.infer(MODEL, [given], outputs=[wanted] if outputs else None, **settings)

    def refuses(self, ask, *words):
        try:
            ask()
        except InferenceServerException as error:
            said = error.message()
            assert all(word in said for word in words), said
        else:
            raise AssertionError("it was answered")


@functools.cache
def rows(n=3):
    return np.random.default_rng(n).random((n, *ROW), np.float32)


@functools.cache
def expected(n=3):
    """What the server says over HTTP, row by row: everything else must agree."""
    server = Server(over_http, over_http.InferenceServerClient(http_address))
    return np.concatenate([server.ask(rows(n)[at : at + 1]).as_numpy(OUTPUT) for at in range(n)])


def same(answer, n=3):
    found = answer.as_numpy(OUTPUT)
    assert found.dtype == np.float32 and found.shape == expected(n).shape, (found.dtype, found.shape)
    assert np.allclose(found, expected(n), rtol=1e-4, atol=1e-5), np.abs(found - expected(n)).max()


@feature("server live and ready")
def _(server):
    assert server.client.is_server_live() and server.client.is_server_ready()


@feature("server metadata")
def _(server):
    metadata = server.client.get_server_metadata(**({} if server.is_http else {"as_json": True}))
    assert metadata["name"] and metadata["version"] and "statistics" in metadata["extensions"], metadata


@feature("model ready, with and without a version")
def _(server):
    assert server.client.is_model_ready(MODEL) and server.client.is_model_ready(MODEL, "1")


@feature("model metadata")
def _(server):
    metadata = server.client.get_model_metadata(MODEL, **({} if server.is_http else {"as_json": True}))
    (given,) = metadata["inputs"]
    assert (given["name"], given["datatype"]) == (INPUT, "FP32"), metadata
    assert [int(dim) for dim in given["shape"]] == [-1, *ROW], metadata
    assert OUTPUT in [output["name"] for output in metadata["outputs"]], metadata


@feature("model configuration")
def _(server):
    config = server.client.get_model_config(MODEL, **({} if server.is_http else {"as_json": True}))
    config = config.get("config", config)
    (given,) = config["input"]
    assert given["data_type"] == "TYPE_FP32" and [int(dim) for dim in given["dims"]] == ROW, config
    assert int(config["max_batch_size"]) >= 1, config


@feature("inference: binary tensors")
def _(server):
    same(server.ask(rows()))


@feature("inference: tensors in the message")
def _(server):
    if server.is_http:
        return same(server.ask(rows(), binary=False))
    from tritonclient.grpc import service_pb2 as pb, service_pb2_grpc
    import grpc

    stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(grpc_address))
    request = pb.ModelInferRequest(model_name=MODEL)
    given = request.inputs.add(name=INPUT, datatype="FP32", shape=rows().shape)
    given.contents.fp32_contents.extend(rows().ravel().tolist())
    same(over_grpc.InferResult(stub.ModelInfer(request)))


@feature("inference: lists that are nested by dimension")
def _(server):
    if not server.is_http:
        raise Skip
    import json
    import urllib.request

    body = {"inputs": [{"name": INPUT, "shape": list(rows().shape), "datatype": "FP32", "data": rows().tolist()}]}
    request = urllib.request.Request(f"http://{http_address}/v2/models/{MODEL}/infer", json.dumps(body).encode())
    answer = json.load(urllib.request.urlopen(request))
    (output,) = [output for output in answer["outputs"] if output["name"] == OUTPUT]
    assert np.allclose(np.array(output["data"]).reshape(output["shape"]), expected(), rtol=1e-4, atol=1e-5)


@feature("inference: all outputs where none is named")
def _(server):
    same(server.ask(rows(), outputs=False))


@feature("inference: the id comes back")
def _(server):
    answer = server.ask(rows(), request_id="a-7").get_response()
    assert (answer["id"] if server.is_http else answer.id) == "a-7"


@feature("inference: a version is named")
def _(server):
    same(server.ask(rows(), model_version="1"))


@feature("inference: priority and time-out")
def _(server):
    same(server.ask(rows(), priority=1, timeout=60_000_000))


@feature("classification")
def _(server):
    found = server.ask(rows(), classes=2).as_numpy(OUTPUT)
    best = [int(row[0].decode().split(":")[1]) for row in found]
    assert found.shape == (3, 2) and best == expected().argmax(1).tolist(), found


@feature("compression")
def _(server):
    if server.is_http:
        for name in ("gzip", "deflate"):
            same(server.ask(rows(), request_compression_algorithm=name))
    else:
        same(server.ask(rows(), compression_algorithm="gzip"))


@feature("asynchronous requests, 64 at once")
def _(server):
    given = server.kind.InferInput(INPUT, list(rows().shape), "FP32")
    given.set_data_from_numpy(rows())
    if server.is_http:
        client = over_http.InferenceServerClient(http_address, concurrency=64)
        for answer in [client.async_infer(MODEL, [given]) for _ in range(64)]:
            same(answer.get_result())
    else:
        answers = queue.Queue()
        for _ in range(64):
            server.client.async_infer(MODEL, [given], callback=lambda result, error: answers.put((result, error)))
        for _ in range(64):
            result, error = answers.get(timeout=60)
            assert error is None, error
            same(result)


@feature("clients of asyncio")
def _(server):
    async def ask():
        given = aio.InferInput(INPUT, list(rows().shape), "FP32")
        given.set_data_from_numpy(rows())
        async with aio.InferenceServerClient(http_address if server.is_http else grpc_address) as client:
            assert await client.is_server_live() and await client.is_model_ready(MODEL)
            for answer in await asyncio.gather(*(client.infer(MODEL, [given]) for _ in range(8))):
                same(answer)

    aio = over_http_aio if server.is_http else over_grpc_aio
    asyncio.run(ask())


@feature("a stream: answers in order, and a wrong request ends nothing")
def _(server):
    if server.is_http:
        raise Skip
    given = over_grpc.InferInput(INPUT, list(rows().shape), "FP32")
    given.set_data_from_numpy(rows())
    answers = queue.Queue()
    client = over_grpc.InferenceServerClient(grpc_address)
    client.start_stream(lambda result, error: answers.put((result, error)))
    for at in range(8):
        client.async_stream_infer("nothing" if at == 3 else MODEL, [given], request_id=str(at))
    found = [answers.get(timeout=60) for _ in range(8)]
    client.stop_stream()
    assert found[3][1] is not None and "nothing" in found[3][1].message()
    assert [result.get_response().id for result, _ in found if result] == [str(at) for at in range(8) if at != 3]


@feature("an unknown model and version are refused by name")
def _(server):
    server.refuses(lambda: server.client.infer("nothing", []), "nothing")
    server.refuses(lambda: server.ask(rows(), model_version="9"), "9")


@feature("wrong inputs and outputs are refused by name")
def _(server):
    def of(name, shape, datatype, data):
        given = server.kind.InferInput(name, shape, datatype)
        given.set_data_from_numpy(data)
        return lambda: server.client.infer(MODEL, [given])

    server.refuses(of("nothing", [1, *ROW], "FP32", rows(1)), "nothing", INPUT)
    server.refuses(of(INPUT, [1, 3], "FP32", np.zeros((1, 3), np.float32)), INPUT, "[1, 3]")
    server.refuses(of(INPUT, [1, *ROW], "INT64", rows(1).astype(np.int64)), INPUT, "i64")
    server.refuses(lambda: server.client.infer(MODEL, []), INPUT)
    wanted = server.kind.InferRequestedOutput("nothing")
    given = server.kind.InferInput(INPUT, [1, *ROW], "FP32")
    given.set_data_from_numpy(rows(1))
    server.refuses(lambda: server.client.infer(MODEL, [given], outputs=[wanted]), "nothing", OUTPUT)


@feature("statistics count answers and failures")
def _(server):
    def read():
        stats = server.client.get_inference_statistics(MODEL, **({} if server.is_http else {"as_json": True}))
        (stats,) = stats["model_stats"]
        success = stats["inference_stats"]["success"]
        return int(stats["inference_count"]), int(success["count"]), int(success["ns"])

    before = read()
    server.ask(rows())
    after = read()
    assert after[0] - before[0] == 3 and after[1] - before[1] == 1 and after[2] > before[2], (before, after)


@feature("repository: index, unload, load, load again under requests")
def _(server):
    client = server.client
    index = client.get_model_repository_index(**({} if server.is_http else {"as_json": True}))
    index = index if server.is_http else index["models"]
    assert MODEL in [model["name"] for model in index if model["state"] == "READY"], index
    client.unload_model(MODEL)
    assert not client.is_model_ready(MODEL) and client.is_server_ready()
    server.refuses(lambda: server.ask(rows()), MODEL, "unloaded")
    client.load_model(MODEL)
    same(server.ask(rows()))
    failed, over = [], threading.Event()

    def load():
        other = Server(server.kind, server.kind.InferenceServerClient(http_address if server.is_http else grpc_address))
        while not over.is_set():
            try:
                same(other.ask(rows()))
            except Exception as error:  # noqa: BLE001: all of them are told below
                failed.append(error)
                return

    thread = threading.Thread(target=load)
    thread.start()
    client.load_model(MODEL)
    over.set()
    thread.join()
    assert not failed, failed


def cell(check, server):
    try:
        check(server)
    except Skip:
        return "-"
    except Exception as error:  # noqa: BLE001: the table tells it
        return f"FAILED: {type(error).__name__}: {error}"
    return "ok"


def main():
    servers = [
        Server(over_http, over_http.InferenceServerClient(http_address)),
        Server(over_grpc, over_grpc.InferenceServerClient(grpc_address)),
    ]
    failures = 0
    print(f"{'':64}{'REST':8}gRPC")
    for name, check in FEATURES:
        cells = [cell(check, server) for server in servers]
        failures += sum(cell.startswith("FAILED") for cell in cells)
        print(f"{name:64}{cells[0]:8}{cells[1]}", flush=True)
    sys.exit(failures > 0)


main()
