#!/usr/bin/env bash
# `orchestra serve` beside an echo of the same bodies by axum and tonic, in turns on this machine: requests per second over HTTP (wrk) and gRPC (h2load)
# by 32 connections, with a tiny model, and the ratios. Then MobileNetV3-small, a picture of 600 KB a request, beside a bare loop of ONNX Runtime.
#
#     scripts/bench-serve.sh [ROUNDS] [SECONDS]
#
# Builds what it runs; the second part needs the model of `scripts/make-bench-data.sh`. Needs `wrk` and `h2load` (Debian: wrk, nghttp2-client).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh
rounds=${1:-3} seconds=${2:-8} connections=32
need_command wrk wrk
need_command h2load nghttp2-client
need_command curl curl
cargo build --quiet --release --locked -p orchestra-cli
cargo build --quiet --release --locked -p orchestra-serve --example echo
release=${CARGO_TARGET_DIR:-target}/release
python=$(scripts/python-env.sh oip)

folder=$(mktemp -d)
stop() { kill "$server" "$echo" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$folder"; }
server='' echo=''
trap stop EXIT

printf 'version = 1\n[models.root]\npath = "%s/models/square-root.onnx"\nthreads = 1\n[devices]\nuse = ["cpu"]\n' "$PWD" >"$folder/model.toml"
# A request of 16 rows, as a file for each protocol, and the script that sends it.
"$python" - "$folder" <<'PYTHON'
import struct
import sys

import numpy as np
import tritonclient.http as http
from tritonclient.grpc import service_pb2 as pb

folder = sys.argv[1]
rows = np.arange(1, 17, dtype=np.float32).reshape(16, 1)
inputs = []
request = pb.ModelInferRequest(model_name="root")
for name in ("x", "a"):
    given = http.InferInput(name, list(rows.shape), "FP32")
    given.set_data_from_numpy(rows)
    inputs.append(given)
    request.inputs.add(name=name, datatype="FP32", shape=rows.shape)
    request.raw_input_contents.append(rows.tobytes())
outputs = [http.InferRequestedOutput("next")]
request.outputs.add(name="next")
body, length = http.InferenceServerClient.generate_request_body(inputs, outputs=outputs)
open(f"{folder}/http", "wb").write(body)
message = request.SerializeToString()
open(f"{folder}/grpc", "wb").write(b"\0" + struct.pack(">I", len(message)) + message)
open(f"{folder}/post.lua", "w").write(
    f"""
local file = io.open("{folder}/http", "rb")
wrk.method, wrk.body = "POST", file:read("*a")
wrk.headers["Inference-Header-Content-Length"] = "{length}"
"""
)
PYTHON

"$release/orchestra" serve "$folder/model.toml" --http 127.0.0.1:8600 --grpc 127.0.0.1:8601 --quiet &
server=$!
"$release/examples/echo" 127.0.0.1:8610 127.0.0.1:8611 >/dev/null &
echo=$!
curl --silent --fail --retry 60 --retry-delay 1 --retry-all-errors --output /dev/null 127.0.0.1:8600/v2/models/root/ready

# Requests per second; fails where one was not answered with 200.
over_http() {
    wrk -t1 -c$connections -d"${seconds}s" -s "$folder/post.lua" --latency "http://127.0.0.1:$1/v2/models/${2:-root}/infer" >"$folder/out"
    ! grep -q 'Non-2xx' "$folder/out" || { cat "$folder/out" >&2; fail "requests were refused"; }
    awk '/Requests\/sec/ { print $2 }' "$folder/out"
}
over_grpc() {
    h2load -t1 -c$connections -m1 -D"$seconds" -d "$folder/grpc" -H 'content-type: application/grpc' -H 'te: trailers' \
        "http://127.0.0.1:$1/inference.GRPCInferenceService/ModelInfer" >"$folder/out"
    awk '/finished in/ { print $4 }' "$folder/out" | tr -d ,
}

printf '%-8s%14s%14s%9s%14s%14s%9s\n' round 'http serve' 'http echo' ratio 'grpc serve' 'grpc echo' ratio
for round in $(seq "$rounds"); do
    a=$(over_http 8600) latency=$(awk '/ (50|99)%/ { print $1, $2 }' "$folder/out" | paste -sd' ')
    b=$(over_http 8610) c=$(over_grpc 8601) d=$(over_grpc 8611)
    awk -v r="$round" -v a="$a" -v b="$b" -v c="$c" -v d="$d" -v l="$latency" \
        'BEGIN { printf "%-8s%14.0f%14.0f%9.2f%14.0f%14.0f%9.2f   http serve: %s\n", r, a, b, a/b, c, d, c/d, l }'
done

model=$PWD/target/bench-data/mobilenet.onnx
[[ -f $model ]] || exit 0
kill "$server" "$echo" && wait "$server" "$echo" || true
printf 'version = 1\n[models.mobilenet]\npath = "%s"\n[devices]\nuse = ["cpu"]\n' "$model" >"$folder/model.toml"
bench_python=$(scripts/bench-env.sh)
# Writes a request, or prints pictures per second by batches of 8 on all cores.
on_mobilenet() {
    "$bench_python" - "$model" "$folder" "$seconds" "$1" <<'PYTHON'
import json, os, sys, time

import numpy as np
import onnxruntime

model, folder, seconds, what = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = len(os.sched_getaffinity(0))
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
(given,), output = session.get_inputs(), session.get_outputs()[0]
pictures = np.random.default_rng(1).random((8, *given.shape[1:]), np.float32)
if what == "request":
    data = pictures[:1].tobytes()
    tensor = {"name": given.name, "shape": [1, *given.shape[1:]], "datatype": "FP32", "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [tensor], "outputs": [{"name": output.name, "parameters": {"binary_data": True}}]}).encode()
    open(f"{folder}/http", "wb").write(head + data)
    script = open(f"{folder}/post.lua").read().rsplit("=", 1)[0]
    open(f"{folder}/post.lua", "w").write(f'{script}= "{len(head)}"\n')
else:
    session.run(None, {given.name: pictures})
    began, n = time.monotonic(), 0
    while time.monotonic() - began < float(seconds):
        session.run(None, {given.name: pictures})
        n += len(pictures)
    print(n / (time.monotonic() - began))
PYTHON
}
on_mobilenet request
printf '\n%-8s%14s%14s%9s\n' round mobilenet bare ratio
for round in $(seq "$rounds"); do
    "$release/orchestra" serve "$folder/model.toml" --http 127.0.0.1:8600 --grpc 127.0.0.1:8601 --quiet &
    server=$!
    curl --silent --fail --retry 60 --retry-delay 1 --retry-all-errors --output /dev/null 127.0.0.1:8600/v2/health/ready
    a=$(over_http 8600 mobilenet) latency=$(awk '/ (50|99)%/ { print $1, $2 }' "$folder/out" | paste -sd' ')
    kill "$server" && wait "$server" || true
    b=$(on_mobilenet bare)
    awk -v r="$round" -v a="$a" -v b="$b" -v l="$latency" 'BEGIN { printf "%-8s%14.0f%14.0f%9.2f   %s\n", r, a, b, a/b, l }'
done
