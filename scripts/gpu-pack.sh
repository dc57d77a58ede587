#!/usr/bin/env bash
# Packs all that scripts/gpu-check.sh needs on a machine with a GPU: the release binary, the GPU build of ONNX Runtime, models and pictures.
# Run it where there is a network; the machine with the GPU needs none.
#
#     scripts/gpu-pack.sh [--output DIR] [--binary FILE] [--wheel FILE] [--part-mib N] [--no-parts]
#
# DIR/kit is the folder itself, DIR/parts the same in parts of at most N MiB (48) with a list of checksums.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/.." && pwd)

fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 2; }
say() { printf '%s\n' "$*"; }

output=$root/target/gpu-kit binary=$root/target/release/orchestra wheel='' part_mib=48 parts=1
while (($#)); do
    case $1 in
        --output) output=${2:?}; shift 2 ;;
        --binary) binary=${2:?}; shift 2 ;;
        --wheel) wheel=${2:?}; shift 2 ;;
        --part-mib) part_mib=${2:?}; shift 2 ;;
        --no-parts) parts=0; shift ;;
        *) fail "unknown argument \`$1\`" ;;
    esac
done
[[ $part_mib =~ ^[1-9][0-9]*$ ]] || fail "--part-mib must be a number of MiB, not \`$part_mib\`"
[[ -x $binary ]] || fail "\`$binary\` is missing: cargo build --release --bin orchestra, or name another with --binary"
((!parts)) || command -v xz >/dev/null || fail "xz is missing: apt-get install xz-utils, or --no-parts"
python=$("$here/bench-env.sh")
data=$root/target/bench-data
[[ -f $data/mobilenet.onnx && -d $data/small ]] || "$here/make-bench-data.sh"

kit=$output/kit
rm -rf "$kit" "$output/parts"
mkdir -p "$kit/lib"
say "$kit"
cp "$binary" "$kit/orchestra"
cp "$here/gpu-check.sh" "$here/gpu_check.py" "$here/gpu_kit.py" "$kit/"

# The version that orchestra itself would fetch.
version=$(sed -n 's/^const VERSION: &str = "\([0-9.]*\)";/\1/p' "$root/crates/orchestra-ortlib/src/pins.rs")
if [[ -z $wheel ]]; then
    mkdir -p "$output/wheel"
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --dest "$output/wheel" "onnxruntime-gpu==${version:?not found in pins.rs}"
    wheel=$(ls "$output"/wheel/onnxruntime_gpu-"$version"-*.whl)
fi
"$python" - "$wheel" "$kit/lib" <<'PYTHON'
import sys, zipfile
from pathlib import Path

wanted = ("libonnxruntime.so.", "libonnxruntime_providers_cuda.so", "libonnxruntime_providers_shared.so")
with zipfile.ZipFile(sys.argv[1]) as wheel:
    for name in wheel.namelist():
        file = Path(name).name
        if file.startswith(wanted):
            (Path(sys.argv[2]) / file).write_bytes(wheel.read(name))
            print(f"  {file}")
PYTHON
"$python" "$here/gpu-models.py" "$data" "$kit"
if ((parts)); then
    mkdir -p "$output/parts"
    tar -C "$output/kit" -c . | xz -T0 -1 | split -b "${part_mib}m" -d -a 3 - "$output/parts/kit.tar.xz."
    cp "$here/gpu-check.sh" "$output/parts/"
    (cd "$output/parts" && sha256sum kit.tar.xz.* >SHA256SUMS)
    say "$output/parts: $(find "$output/parts" -name 'kit.tar.xz.*' | wc -l) parts, $(du -sm "$output/parts" | cut -f 1) MB"
    say "there: gpu-check.sh --join PARTS DIR && DIR/gpu-check.sh"
fi
