#!/usr/bin/env bash
# Python environments that tests and examples need, each made once from `requirements-NAME.txt` and kept in the cache,
# ${XDG_CACHE_HOME:-~/.cache}/orchestra/NAME: `moto`, an S3 server on this machine (140 MB), `gcs`, one of Google Cloud Storage (60 MB), `pyarrow`, a reader of
# Parquet (160 MB), `reference`, which judges the examples (270 MB), `tables` of examples/tables (400 MB), `oip`, a client of `orchestra serve` (200 MB), `mypy`, which checks clients/python (120 MB), `triton`, which scripts/bench-serve.sh measures (370 MB),
# and for scripts/bench-read-text.sh `rapidocr` (400 MB).
#
#   scripts/python-env.sh NAME          make it if need be, and print the path of its Python
#   scripts/python-env.sh NAME path     print the path if it has been made, else fail
set -euo pipefail

name=${1:-}
list=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/requirements-$name.txt
[[ -n $name && -e $list ]] || { echo "python-env: the first argument is \`moto\`, \`gcs\`, \`pyarrow\`, \`reference\`, \`tables\`, \`oip\`, \`mypy\`, \`triton\` or \`rapidocr\`" >&2; exit 1; }
cache=${ORCHESTRA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/orchestra}/$name
env_dir=$cache/$(sha256sum <"$list" | cut -c1-16)
python=$env_dir/bin/python

fail() { printf 'python-env: %s\n' "$*" >&2; exit 1; }

# The stamp is written last: an environment that was cut off while it was made is made again.
is_made() { [[ -e $env_dir/done ]]; }

case ${2:-make} in
    path) is_made || fail "it has not been made: scripts/python-env.sh $name" ;;
    make)
        mkdir -p "$cache"
        # Two starts at once would install over each other. The lock is the kernel's and goes with this process.
        exec 9>"$cache/lock"
        flock 9
        if ! is_made; then
            echo "python-env: making a Python environment in $env_dir" >&2
            rm -rf "$env_dir"
            "${PYTHON:-python3}" -m venv "$env_dir" || fail "no virtual environment can be made: apt-get install python3-venv, or name another Python with PYTHON=..."
            "$python" -m pip install --quiet --disable-pip-version-check --requirement "$list" >&2 || fail "pip could not install $list; its words are above"
            alone=$(sed -n 's/^# without what it asks for: //p' "$list")
            [[ -z $alone ]] || "$python" -m pip install --quiet --disable-pip-version-check --no-deps $alone >&2 || fail "pip could not install $alone; its words are above"
            touch "$env_dir/done"
        fi
        ;;
    *) fail "unknown command \`$2\`: there are \`make\` and \`path\`" ;;
esac
printf '%s\n' "$python"
