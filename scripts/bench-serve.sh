#!/usr/bin/env bash
# `orchestra serve` against an echo of the same bodies by axum and tonic, in turns on this machine: requests per second over HTTP (wrk) and gRPC (h2load)
# by 32 connections, with a tiny model, and the ratios. After `scripts/python-env.sh triton` also against Triton, with a model in Python that gives its
# input back. Then MobileNetV3-small, a picture of 600 KB a request, against a bare loop of ONNX Runtime.
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
servers=()
stop() {
    kill "${servers[@]}" 2>/dev/null || true
    wait
    servers=()
}
trap 'stop; rm -rf "$folder"' EXIT
answers() { curl --silent --fail --retry 60 --retry-delay 1 --retry-all-errors --output /dev/null "$1/v2/health/ready"; }

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
servers+=($!)
"$release/examples/echo" 127.0.0.1:8610 127.0.0.1:8611 >/dev/null &
servers+=($!)
if triton=$(scripts/python-env.sh triton path 2>/dev/null); then
    packages=$("$triton" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    version=$("$triton" -c 'import sys; print(f"{sys.version_info[0]}.{sys.version_info[1]}")')
    # Its stub loads Python as a library, and is no longer beside those of the wheel.
    libraries=$("$triton" -c 'import sysconfig; print(sysconfig.get_config_var("LIBDIR"))')
    mkdir -p "$folder"/{models/root/1,backends}
    cp -r "$packages/pytriton/tritonserver/backends/python" "$folder/backends/"
    cp "$packages/pytriton/tritonserver/python_backend_stubs/$version/triton_python_backend_stub" "$folder/backends/python/"
    cat >"$folder/models/root/config.pbtxt" <<'CONFIG'
backend: "python"
max_batch_size: 64
input [ { name: "x", data_type: TYPE_FP32, dims: [ 1 ] }, { name: "a", data_type: TYPE_FP32, dims: [ 1 ] } ]
output [ { name: "next", data_type: TYPE_FP32, dims: [ 1 ] } ]
dynamic_batching { }
CONFIG
    cat >"$folder/models/root/1/model.py" <<'PYTHON'
import triton_python_backend_utils as utils


class TritonPythonModel:
    def execute(self, requests):
        rows = [utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [utils.InferenceResponse([utils.Tensor("next", row)]) for row in rows]
PYTHON
    PATH=${triton%/*}:$PATH LD_LIBRARY_PATH=$libraries:$packages/nvidia_pytriton.libs "$packages/pytriton/tritonserver/bin/tritonserver" --model-repository="$folder/models" \
        --backend-directory="$folder/backends" --allow-metrics=false --http-port=8620 --grpc-port=8621 >"$folder/triton.log" 2>&1 &
    servers+=($!)
    answers 127.0.0.1:8620 || { tail -20 "$folder/triton.log" >&2; fail "Triton has not started"; }
fi
answers 127.0.0.1:8600

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

printf '%-8s%14s%14s%9s%14s%14s%9s%s\n' round 'http serve' 'http echo' ratio 'grpc serve' 'grpc echo' ratio \
    "${triton:+$(printf '%14s%9s%14s%9s' 'http triton' ratio 'grpc triton' ratio)}"
for round in $(seq "$rounds"); do
    a=$(over_http 8600) latency=$(awk '/ (50|99)%/ { print $1, $2 }' "$folder/out" | paste -sd' ')
    b=$(over_http 8610) c=$(over_grpc 8601) d=$(over_grpc 8611)
    awk -v r="$round" -v a="$a" -v b="$b" -v c="$c" -v d="$d" 'BEGIN { printf "%-8s%14.0f%14.0f%9.2f%14.0f%14.0f%9.2f", r, a, b, a/b, c, d, c/d }'
    if [[ $triton ]]; then
        e=$(over_http 8620) f=$(over_grpc 8621)
        awk -v a="$a" -v c="$c" -v e="$e" -v f="$f" 'BEGIN { printf "%14.0f%9.2f%14.0f%9.2f", e, a/e, f, c/f }'
    fi
    printf '   http serve: %s\n' "$latency"
done

model=$PWD/target/bench-data/mobilenet.onnx
[[ -f $model ]] || exit 0
stop
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
    servers+=($!)
    answers 127.0.0.1:8600
    a=$(over_http 8600 mobilenet) latency=$(awk '/ (50|99)%/ { print $1, $2 }' "$folder/out" | paste -sd' ')
    stop
    b=$(on_mobilenet bare)
    awk -v r="$round" -v a="$a" -v b="$b" -v l="$latency" 'BEGIN { printf "%-8s%14.0f%14.0f%9.2f   %s\n", r, a, b, a/b, l }'
done
