#!/usr/bin/env python3
"""Checks that a real Jaeger gives back what a run has sent: one trace of the run with all its batches, and a trace for each item, linked with both.
And that a request to `orchestra serve` is below the span of its client, and linked with its batch, which has the work of the worker below it.

    scripts/jaeger-check.py ORCHESTRA     the program to run; starts the Jaeger of `scripts/jaeger.sh` on free ports
"""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location("tree", ROOT / "scripts/jaeger-tree.py")
tree = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tree)
PHASES = {"worker.queue", "worker.copy_in", "worker.compute", "worker.copy_out"}
STEPS = {"item.read", "item.decode", "item.row", "item.queue", "item.infer", "item.post", "item.write"}


def until(what, look):
    """Jaeger stores what it has taken a little later."""
    for _ in range(600):
        try:
            if found := look():
                return found
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit(f"waited in vain until {what}")


def linked(span, kind):
    return [link["spanId"] for link in span.get("links", []) if tree.attributes(link)["orchestra.link"] == kind]


def check(base, report):
    run, batches = report["run_id"], sum(device["batches"] for device in report["devices"])
    n_items = report["items"]["done"]
    traces = until("it knows the run", lambda: tree.find(base, 10, "workflow.run", **{tree.RUN_ID: run}))
    assert len(traces) == 1, f"a run has one trace, and not {len(traces)}"
    of_name = lambda spans, name: [span for span in spans.values() if span["name"] == name]
    is_whole = lambda spans: len(of_name(spans, "batch")) == batches and spans
    spans = until("it has all batches", lambda: is_whole(tree.read(base, traces[0])))
    [root] = of_name(spans, "workflow.run")
    for batch in of_name(spans, "batch"):
        below = lambda parent: [span for span in spans.values() if span.get("parentSpanId") == parent["spanId"]]
        [worker] = below(batch)
        assert batch["parentSpanId"] == root["spanId"] and worker["name"] == "worker.run", batch
        assert {span["name"] for span in below(worker)} == PHASES, worker
    known = {batch["spanId"] for batch in of_name(spans, "batch")}
    find_items = lambda: tree.find(base, 100_000, "item", **{tree.RUN_ID: run})
    items = until("it has every item", lambda: (found := find_items()) and len(found) >= n_items and found)
    assert len(items) == n_items, f"{len(items)} items of {n_items}"
    for trace in items:
        has_all = lambda spans: STEPS < {span["name"] for span in spans.values()} and spans
        [item] = of_name(until("it has all steps of an item", lambda: has_all(tree.read(base, trace))), "item")
        assert linked(item, "run") == [root["spanId"]] and set(linked(item, "batch")) <= known, item
    print(f"{batches} batches and {n_items} items are in Jaeger as they were sent")


def check_served(program, base, otlp):
    """A client that sends a span of its own asks a model once."""
    trace, client, began = os.urandom(16).hex(), os.urandom(8).hex(), time.time_ns()
    command = [program, "serve", ROOT / "examples/serve/workflow.toml", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--otlp", otlp]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        line = next(line for line in server.stderr if line.startswith("serving "))
        url = line.split(": ", 1)[1].split(",")[0] + "/v2/models/square-root/infer"
        inputs = [{"name": name, "shape": [1, 1], "datatype": "FP32", "data": [2]} for name in ("x", "a")]
        headers = {"traceparent": f"00-{trace}-{client}-01"}
        urllib.request.urlopen(urllib.request.Request(url, json.dumps({"inputs": inputs}).encode(), headers)).read()
    finally:
        server.terminate()
        server.communicate()
    span = {"traceId": trace, "spanId": client, "name": "ask", "kind": 3, "startTimeUnixNano": began, "endTimeUnixNano": time.time_ns()}
    service = {"attributes": [{"key": "service.name", "value": {"stringValue": "client"}}]}
    sent = json.dumps({"resourceSpans": [{"resource": service, "scopeSpans": [{"spans": [span]}]}]}).encode()
    urllib.request.urlopen(urllib.request.Request(otlp + "/v1/traces", sent, {"Content-Type": "application/json"})).read()
    is_whole = lambda spans: {"ask", "item", "item.infer", "worker.run", "worker.compute"} <= {span["name"] for span in spans.values()} and spans
    spans = until("it has the request", lambda: is_whole(tree.read(base, trace)))
    [item] = [span for span in spans.values() if span["name"] == "item"]
    assert item["parentSpanId"] == client, item
    [to_batch] = [link for link in item["links"] if tree.attributes(link)["orchestra.link"] == "batch"]
    below = lambda spans, parent: [span["name"] for span in spans.values() if span.get("parentSpanId") == parent]
    [infer] = [key for key, span in spans.items() if span["name"] == "item.infer"]
    assert below(spans, infer) == ["worker.run"], spans
    of_batch = until("it has the batch", lambda: (found := tree.read(base, to_batch["traceId"])) and below(found, to_batch["spanId"]) and found)
    assert of_batch[to_batch["spanId"]]["name"] == "batch" and below(of_batch, to_batch["spanId"]) == ["worker.run"], of_batch
    print("a request, its batch and its worker are below the span of the client, and linked with the batch of all that were in it")


def main(program):
    jaeger = subprocess.Popen([ROOT / "scripts/jaeger.sh", "--free-ports"], stdout=subprocess.PIPE, text=True)
    try:
        at = dict(word.split("=", 1) for word in jaeger.stdout.readline().split())
        until("it is ready", lambda: b"StatusOK" in urllib.request.urlopen(at["health"]).read())
        with tempfile.TemporaryDirectory() as out:
            variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": at["otlp_http"], "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}
            settings = ["--set", "telemetry.slow=0s", "--set", "telemetry.flush_timeout=10m"]
            command = [program, "run", ROOT / "examples/digits/workflow.toml", "--output", out, *settings]
            subprocess.run(command, env=os.environ | variables, check=True)
            check(at["query"], json.loads((pathlib.Path(out) / "run.json").read_text()))
            check_served(program, at["query"], at["otlp_http"])
    finally:
        jaeger.terminate()
        jaeger.wait()


main(sys.argv[1])
