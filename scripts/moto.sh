#!/usr/bin/env bash
# A Python environment with Moto, an S3 server on this machine, for tests and for examples/bucket: made once, and kept in the cache,
# ${XDG_CACHE_HOME:-~/.cache}/orchestra/moto. It has 140 MB.
#
#   scripts/moto.sh          make it if need be, and print the path of its Python
#   scripts/moto.sh path     print the path if it has been made, else fail
set -euo pipefail

list=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/requirements-moto.txt
cache=${ORCHESTRA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/orchestra}/moto
env_dir=$cache/$(sha256sum <"$list" | cut -c1-16)
python=$env_dir/bin/python

fail() { printf 'moto: %s\n' "$*" >&2; exit 1; }

# The stamp is written last: an environment that was cut off while it was made is made again.
is_made() { [[ -e $env_dir/done ]]; }

case ${1:-make} in
    path) is_made || fail "it has not been made: scripts/moto.sh" ;;
    make)
        mkdir -p "$cache"
        # Two starts at once would install over each other. The lock is the kernel's and goes with this process.
        exec 9>"$cache/lock"
        flock 9
        if ! is_made; then
            echo "moto: making a Python environment in $env_dir" >&2
            rm -rf "$env_dir"
            "${PYTHON:-python3}" -m venv "$env_dir" || fail "no virtual environment can be made: apt-get install python3-venv, or name another Python with PYTHON=..."
            "$python" -m pip install --quiet --disable-pip-version-check --requirement "$list" >&2 || fail "pip could not install $list; its words are above"
            touch "$env_dir/done"
        fi
        ;;
    *) fail "unknown command \`$1\`: there are \`make\` and \`path\`" ;;
esac
printf '%s\n' "$python"
