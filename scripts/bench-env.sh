#!/usr/bin/env bash
# Prints the Python of a private environment that has what the benchmark scripts need; makes it the first time. It never touches the
# system's Python, and prints nothing else to standard output.
#
#     scripts/bench-env.sh [--torch]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }
say() { printf '%s\n' "$*" >&2; }

wanted=(requirements)
case ${1:-} in
    '') ;;
    --torch) wanted+=(requirements-torch) ;;
    *) fail "unknown argument \`$1\`; the only one is --torch" ;;
esac

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

for name in "${wanted[@]}"; do
    # The stamp is a copy of the list that was installed, written last: a changed list or a broken installation is done again.
    if cmp -s "$here/$name.txt" "$env_dir/$name.done"; then continue; fi
    if [[ $name == requirements-torch ]]; then
        free_kib=$(df -Pk "$env_dir" | awk 'NR == 2 { print $4 }')
        ((free_kib > 8 * 1024 * 1024)) ||
            fail "torch needs up to 8 GB in $env_dir, and there are $((free_kib / 1024 / 1024)): make room, set XDG_CACHE_HOME, or leave the peer \`dataloader\` out"
    fi
    say "installing $name.txt"
    "$env_dir/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$here/$name.txt" >&2 ||
        fail "pip could not install $name.txt; its words are above"
    cp "$here/$name.txt" "$env_dir/$name.done"
done
printf '%s\n' "$env_dir/bin/python"
