#!/usr/bin/env bash
# Packs what scripts/gpu-smoke.sh needs on a machine with a GPU: the release binary, the GPU build of ONNX Runtime, models and pictures.
# Run it where there is a network; the machine with the GPU needs none.
#
#     scripts/gpu-pack.sh [--output DIR] [--binary FILE] [--wheel FILE] [--with-cuda] [--no-provider] [--part-mib N]
#
# DIR/kit (target/gpu-kit/kit) is the folder itself. DIR/parts holds the same in pieces of at most N MiB (48, at most 60) with their checksums, and
# gpu-smoke.sh, which joins them. --with-cuda adds the libraries of CUDA and cuDNN from NVIDIA's Python packages (1.5 GB), for a machine that has
# only a driver. --no-provider leaves out ONNX Runtime: orchestra then takes that of a Python environment there (pip install onnxruntime-gpu).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/.." && pwd)

fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 2; }

output=$root/target/gpu-kit binary=$root/target/release/orchestra wheel='' part_mib=48 with_cuda=0 provider=1
while (($#)); do
    case $1 in
        --output) output=${2:?}; shift 2 ;;
        --binary) binary=${2:?}; shift 2 ;;
        --wheel) wheel=${2:?}; shift 2 ;;
        --no-provider) provider=0; shift ;;
        --with-cuda) with_cuda=1; shift ;;
        --part-mib) part_mib=${2:?}; shift 2 ;;
        *) fail "unknown argument \`$1\`" ;;
    esac
done
[[ $part_mib =~ ^([1-9]|[1-5][0-9]|60)$ ]] || fail "--part-mib must be a number from 1 to 60, not \`$part_mib\`: a transfer takes 64 MiB"
((provider || !with_cuda)) || fail "--with-cuda needs the provider, which says for which CUDA it is built: leave out --no-provider"
[[ -x $binary ]] || fail "\`$binary\` is missing: cargo build --release --bin orchestra, or name another with --binary"
python=$("$here/bench-env.sh")
data=$root/target/bench-data
[[ -f $data/mobilenet.onnx && -d $data/small ]] || "$here/make-bench-data.sh"

kit=$output/kit
rm -rf "$kit" "$output/parts"
# A kit has the folders of the repository, as far as the check reads them.
mkdir -p "$kit"/{scripts,examples,models,target/release,target/bench-data/small} "$output/parts"
cp "$binary" "$kit/target/release/orchestra"
cp "$here"/gpu{-smoke.sh,_smoke.py} "$kit/scripts/"
for example in digits vector-add vector-add-cuda; do
    (cd "$root/examples" && find "$example" -type f ! -path '*/out/*' ! -name '*.npz' -exec cp --parents {} "$kit/examples/" \;)
done
cp "$root"/models/{digits,page-digits,vector-add}.onnx "$root/models/digits.labels.txt" "$kit/models/"
cp "$data/mobilenet.onnx" "$kit/target/bench-data/"
find "$data/small" -name '*.jpg' | LC_ALL=C sort | sed -n 1,300p | xargs cp -t "$kit/target/bench-data/small"
# The same models at f16: weights, inputs and outputs. Their graphs hold no constant nodes and no casts.
"$python" - "$kit"/{models/digits,models/page-digits,target/bench-data/mobilenet} <<'PYTHON'
import sys
import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

for name in sys.argv[1:]:
    model = onnx.load(f"{name}.onnx")
    for weight in model.graph.initializer:
        if weight.data_type == TensorProto.FLOAT:
            weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).astype(np.float16), weight.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    del model.graph.value_info[:]
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, f"{name}-f16.onnx")
PYTHON

# download FOLDER PACKAGE..: wheels for any Linux. Which Python they are for does not matter: only libraries are taken out of them.
download() {
    mkdir -p "$1"
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_28_x86_64 \
        --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --dest "$@"
}

# libraries WHEEL PATTERN: takes the files whose names match out of a wheel.
libraries() {
    mkdir -p "$kit/lib"
    "$python" - "$1" "$kit/lib" "$2" <<'PYTHON'
import re, shutil, sys, zipfile
from pathlib import Path

archive, folder, wanted = sys.argv[1], Path(sys.argv[2]), re.compile(sys.argv[3])
with zipfile.ZipFile(archive) as wheel:
    for name in wheel.namelist():
        if wanted.fullmatch(file := Path(name).name):
            with wheel.open(name) as source, (folder / file).open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
PYTHON
}

if ((provider)); then
    if [[ -z $wheel ]]; then
        # The version that orchestra itself would fetch.
        version=$(sed -n 's/^const VERSION: &str = "\([0-9.]*\)";/\1/p' "$root/crates/orchestra-onnx/src/library/pins.rs")
        download "$output/wheel" "onnxruntime-gpu==${version:?not found in pins.rs}"
        wheel=$(ls "$output"/wheel/onnxruntime_gpu-"$version"-*.whl)
    fi
    libraries "$wheel" 'libonnxruntime\.so\..*|libonnxruntime_providers_(cuda|shared|tensorrt)\.so'
fi
if ((with_cuda)); then
    # The provider's list of libraries tells for which release of CUDA it is built.
    if LC_ALL=C grep -qa 'libcublas\.so\.13' "$kit/lib/libonnxruntime_providers_cuda.so"; then
        packages=('nvidia-cuda-runtime==13.*' 'nvidia-nvjitlink==13.*' 'nvidia-cuda-nvrtc==13.*' 'nvidia-cublas==13.*' 'nvidia-curand==10.*')
        packages+=('nvidia-cufft==12.*' 'nvidia-cudnn-cu13==9.*')
    elif LC_ALL=C grep -qa 'libcublas\.so\.12' "$kit/lib/libonnxruntime_providers_cuda.so"; then
        packages=(nvidia-{cuda-runtime,nvjitlink,cuda-nvrtc,cublas,curand,cufft}-cu12 'nvidia-cudnn-cu12==9.*')
    else
        fail "\`$wheel\` is built for neither CUDA 12 nor CUDA 13, so its libraries are not known: leave out --with-cuda"
    fi
    rm -rf "$output/cuda-wheels"
    download "$output/cuda-wheels" "${packages[@]}"
    for file in "$output"/cuda-wheels/*.whl; do
        libraries "$file" 'lib(cudart|nvJitLink|nvrtc|nvrtc-builtins|cublas|cublasLt|curand|cufft|cudnn[a-z_]*)\.so\..*'
    done
fi
tar -C "$kit" -c . | gzip -3 | split -b "${part_mib}m" -d -a 3 - "$output/parts/kit.tar.gz."
(cd "$output/parts" && sha256sum kit.tar.gz.* >SHA256SUMS)
cp "$here/gpu-smoke.sh" "$output/parts/"
printf '%s: %s pieces, %s MB; there: parts/gpu-smoke.sh\n' "$output/parts" "$(find "$output/parts" -name 'kit.tar.gz.*' | wc -l)" "$(du -sm "$output/parts" | cut -f 1)"
