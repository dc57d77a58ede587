#!/usr/bin/env bash
# Looks for what unsafe code may not do, where tests reach it: Miri over what it can interpret (rows that pictures are written to), and
# ThreadSanitizer over memory that threads share (the slot pool, rows of slots, carried pictures, inputs and outputs of workers).
#
#     scripts/unsafe.sh [miri|threads]...     (default: both)
#
# Needs a nightly toolchain: rustup toolchain install nightly --profile minimal --component miri,rust-src
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 2; }

rustc +nightly --version || fail "there is no nightly toolchain; --component says which parts are needed, see the head of this file"
host=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/unsafe

# Memory files and system calls of other kinds are beyond it, so it gets the crate that has none.
miri() {
    MIRIFLAGS=-Zmiri-strict-provenance cargo +nightly miri test --locked -p orchestra-media --lib
}

# The standard library is built anew: an uninstrumented one hides what it synchronises.
threads() {
    export RUSTFLAGS=-Zsanitizer=thread TSAN_OPTIONS=halt_on_error=1:${TSAN_OPTIONS:-}
    local cargo=(cargo +nightly test --locked -Zbuild-std --target "$host")
    "${cargo[@]}" -p orchestra-worker --test arena --test outputs
    "${cargo[@]}" -p orchestra-runtime --lib -- batch::slot_pool flow::carried
}

(($#)) || set -- miri threads
for part in "$@"; do
    case $part in
        miri | threads) printf '\n== %s\n' "$part"; "$part" ;;
        *) fail "unknown part \`$part\`: \`miri\` or \`threads\`" ;;
    esac
done
