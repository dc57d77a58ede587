#!/usr/bin/env bash
# Proves orchestra on a machine with an NVIDIA GPU, in under 8 minutes: devices, isolation, parity, memory, rates, faults. It builds nothing and
# needs no network: everything lies in the folder that scripts/gpu-pack.sh makes. Prints one table; gpu-check.json holds the same.
#
#     gpu-check.sh [--kit DIR] [--device cuda:0|cpu] [--output DIR] [--seconds N] [--only PART,..]
#     gpu-check.sh --join PARTS DIR      put the parts of a packed kit together in DIR, checked, and end
#
# Needs bash, python3 (3.9 or later, nothing else) and, for a packed kit, tar and xz.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 2; }

command -v python3 >/dev/null || fail "python3 is missing, and no line of this check can be judged without it"

if [[ ${1:-} == --join ]]; then
    [[ $# == 3 ]] || fail "usage: ${0##*/} --join PARTS DIR"
    command -v xz >/dev/null || fail "xz is missing: apt-get install xz-utils"
    parts=$(cd "$2" && pwd)
    mkdir -p "$3"
    (cd "$parts" && sha256sum --quiet --check SHA256SUMS) || fail "a part in $2 is missing or damaged; copy it again"
    cat "$parts"/kit.tar.xz.* | tar -xJ -C "$3"
    printf 'the kit is in %s\n' "$3"
    exit 0
fi

exec env PYTHONUNBUFFERED=1 python3 "$here/gpu_check.py" "$@"
