#!/usr/bin/env bash
# Looks for what unsafe code and threads may not do, where tests reach it.
#
#   scripts/unsafe.sh [miri|loom]
#
# miri  the rows that pictures are written to. Memory files and other system calls are beyond it, so it gets the crate that has none.
#       Needs a nightly toolchain: rustup toolchain install nightly --profile minimal --component miri,rust-src
# loom  all orders of few threads that claim and publish rows of slots.
#
# Without a word, both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=${CARGO_TARGET_DIR:-target}

with_miri() {
    if ! cargo +nightly miri --version >/dev/null 2>&1; then
        echo "Miri is missing: rustup toolchain install nightly --profile minimal --component miri,rust-src" >&2
        exit 69
    fi
    CARGO_TARGET_DIR=$target/unsafe MIRIFLAGS=-Zmiri-strict-provenance cargo +nightly miri test --locked -p orchestra-media --lib
}

# In a folder of its own, because the flag is one for all crates. Optimised, because it runs each test some thousand times.
with_loom() {
    CARGO_TARGET_DIR=$target/loom RUSTFLAGS="--cfg loom" cargo test --locked --release -p orchestra-core --test slot_claims_loom
}

case ${1-both} in
miri) with_miri ;;
loom) with_loom ;;
both) with_loom && with_miri ;;
*) printf 'usage: %s [miri|loom]\n' "$0" >&2; exit 64 ;;
esac
