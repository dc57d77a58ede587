#!/usr/bin/env bash
# Runs orchestra and a pool of Python processes side by side: same model, same pictures, same machine, in turns.
# It checks that both give the same answers before it prints a ratio.
#
#     scripts/bench-peers.sh [--workload NAME|all] [--runs N] [--orchestra PATH] [--data DIR] [--json FILE] [--quick]
#
#     --workload   digits, mobilenet, mobilenet-1080p, mobilenet-1080p-exact, or all (default)
#     --runs       rounds; each runs both once (default 5)
#     --orchestra  a binary; default: `cargo build --release`
#     --data       what scripts/make-bench-data.sh wrote (default: target/bench-data; made if it is not there)
#     --json       also write every measurement into this file
#     --quick      do not search for the pool's best settings; use a fair guess
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(dirname "$here")

fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 2; }

orchestra='' data=$repository/target/bench-data
pass=()
while (($#)); do
    case $1 in
        -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
        --quick) pass+=("$1"); shift ;;
        --workload | --runs | --orchestra | --data | --json)
            (($# > 1)) || fail "\`$1\` needs a value"
            case $1 in
                --orchestra) orchestra=$2 ;;
                --data) data=$2 ;;
                *) pass+=("$1" "$2") ;;
            esac
            shift 2 ;;
        *) fail "unknown argument \`$1\`; --help lists them" ;;
    esac
done

python=$("$here/bench-env.sh")

if [[ ! -f $data/digits.toml ]]; then
    "$python" "$here/make-bench-data.py" --output "$data" >&2
fi

if [[ -z $orchestra ]]; then
    command -v cargo >/dev/null || fail "cargo is missing: install a Rust toolchain, or name a binary with --orchestra"
    cargo build --release --locked --bin orchestra --manifest-path "$repository/Cargo.toml" >&2
    orchestra=${CARGO_TARGET_DIR:-$repository/target}/release/orchestra
fi
[[ -x $orchestra ]] || fail "\`$orchestra\` is no program"

exec "$python" "$here/peers/compare.py" --orchestra "$orchestra" --data "$data" "${pass[@]}"
