#!/usr/bin/env bash
# Checks orchestra on a machine with an NVIDIA GPU, in a few minutes, without a build and without a network.
#
#     gpu-smoke.sh [--device cuda:0|cpu] [--binary FILE] [--libraries DIR]
#
# Prints one table (check, result, figure) and exits with 1 if a line failed. DIR holds the libraries of onnxruntime-gpu, and those of CUDA and cuDNN
# unless the machine has them. `--device cpu` runs the same checks without a GPU, except those that need one.
#
# In the repository it takes the release binary and the models of the examples. scripts/gpu-pack.sh packs all of that for another machine. Among the
# pieces of such a kit, this script first joins them in ./gpu-kit. It needs bash and Python 3.9 or later.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 2; }

if [[ -f $here/kit.tar.gz.000 ]]; then
    (cd "$here" && sha256sum --quiet --check SHA256SUMS) || fail "a piece of the kit is missing or damaged: copy it again"
    rm -rf gpu-kit.new
    mkdir gpu-kit.new
    cat "$here"/kit.tar.gz.* | tar -xz -C gpu-kit.new
    # A kit that is there already may be another one.
    rm -rf gpu-kit
    mv gpu-kit.new gpu-kit
    here=$PWD/gpu-kit/scripts
fi
exec "${PYTHON:-python3}" -u "$here/gpu_smoke.py" "$@"
