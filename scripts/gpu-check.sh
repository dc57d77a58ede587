#!/usr/bin/env bash
# Proves orchestra on a machine with an NVIDIA GPU: devices, isolation, parity, commands, faults, end to end and a rate in five minutes, memory, all
# rates and ways to keep a GPU busy in a second call (--set rest). It builds nothing and
# needs no network: everything lies in the folder that scripts/gpu-pack.sh makes. Prints one table; gpu-check.json holds the same.
#
#     gpu-check.sh [--kit DIR] [--device cuda:0|cpu] [--output DIR] [--set first|rest|all] [--seconds N] [--only PART,..] [--dry-run]
#     gpu-check.sh --join PARTS DIR      put the parts of a packed kit together in DIR, checked, and end
#
# Among the parts it puts them together in ./gpu-kit by itself, once, and goes on from there.
#
# Needs bash, python3 (3.9 or later, nothing else) and, for a packed kit, tar and sha256sum.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 2; }

command -v python3 >/dev/null || fail "python3 is missing, and no line of this check can be judged without it"

# join PARTS DIR: every part is checked, then every file that came out of them. A kit that is whole already is left alone, and one that was cut
# off while it was made is made anew.
join() {
    local parts kit=$2 unpack made
    parts=$(cd "$1" && pwd) || fail "\`$1\` is no folder"
    [[ -f $parts/SHA256SUMS ]] || fail "\`$1\` holds no SHA256SUMS, so it holds no parts of scripts/gpu-pack.sh"
    if [[ -f $kit/SHA256SUMS ]] && cmp -s "$kit/.parts" "$parts/SHA256SUMS"; then
        return
    fi
    (cd "$parts" && sha256sum --quiet --check SHA256SUMS) || fail "a part in $1 is missing or damaged; copy it again"
    case $(cd "$parts" && ls kit.tar.*) in
        *.tar.zst.*) command -v zstd >/dev/null || fail "zstd is missing: apt-get install zstd, or pack without --zstd"; unpack='zstd -dc' ;;
        *) unpack='gzip -dc' ;;
    esac
    # Nothing that is not ours is removed: a kit has a list of its files.
    if [[ -e $kit && ! -f $kit/.parts && -n $(ls -A "$kit") ]]; then
        fail "\`$kit\` is there and is no kit; name another folder"
    fi
    made=$kit.$$
    trap 'rm -rf "$made"' EXIT
    mkdir -p "$made"
    cat "$parts"/kit.tar.* | $unpack | tar -x -C "$made"
    (cd "$made" && sha256sum --quiet --check SHA256SUMS) || fail "what came out of the parts is not what was packed; is there room on the disk?"
    cp "$parts/SHA256SUMS" "$made/.parts"
    rm -rf "$kit"
    mv "$made" "$kit"
    trap - EXIT
}

if [[ ${1:-} == --join ]]; then
    [[ $# == 3 ]] || fail "usage: ${0##*/} --join PARTS DIR"
    join "$2" "$3"
    printf 'the kit is in %s\n' "$3"
    exit 0
fi
if [[ ! -f $here/gpu_check.py && -f $here/SHA256SUMS ]]; then
    join "$here" "$PWD/gpu-kit"
    here=$PWD/gpu-kit
fi

exec env PYTHONUNBUFFERED=1 "${PYTHON:-python3}" "$here/gpu_check.py" "$@"
