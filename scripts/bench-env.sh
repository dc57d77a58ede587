#!/usr/bin/env bash
# Prints the Python of a private environment that has what the benchmark scripts need; makes it the first time. It never touches the
# system's Python, and prints nothing else to standard output.
#
#     scripts/bench-env.sh
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }
say() { printf '%s\n' "$*" >&2; }

python=${PYTHON:-python3}
command -v "$python" >/dev/null || fail "\`$python\` is missing: install Python 3.11 or later, or name one with PYTHON=..."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "\`$python\` is $("$python" --version 2>&1), and 3.11 or later is needed; name another with PYTHON=..."
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "\`$python\` cannot make virtual environments: apt-get install python3-venv, or name another Python with PYTHON=..."

cache=${ORCHESTRA_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set}/.cache}/orchestra}
version=$("$python" -c 'import sys; print(f"{sys.version_info[0]}.{sys.version_info[1]}")')
env_dir=$cache/bench/python$version
mkdir -p "$cache/bench"

# Two starts at once would install over each other. The lock is the kernel's and goes with this process.
if command -v flock >/dev/null; then
    exec 9>"$cache/bench/lock"
    flock 9
fi

# An environment that was cut off while it was made has no pip that runs.
if ! "$env_dir/bin/python" -m pip --version >/dev/null 2>&1; then
    say "making a Python environment in $env_dir"
    rm -rf "$env_dir"
    "$python" -m venv "$env_dir"
fi

# The stamp is a copy of the list that was installed, written last: a changed list or a broken installation is done again.
if ! cmp -s "$here/requirements.txt" "$env_dir/requirements.done"; then
    say "installing requirements.txt"
    "$env_dir/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$here/requirements.txt" >&2 ||
        fail "pip could not install requirements.txt; its words are above"
    cp "$here/requirements.txt" "$env_dir/requirements.done"
fi
printf '%s\n' "$env_dir/bin/python"
