#!/usr/bin/env bash
# Looks for what unsafe code may not do, where tests reach it: Miri over the rows that pictures are written to. Memory files and other system
# calls are beyond it, so it gets the crate that has none.
#
# Needs a nightly toolchain: rustup toolchain install nightly --profile minimal --component miri,rust-src
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/unsafe
MIRIFLAGS=-Zmiri-strict-provenance cargo +nightly miri test --locked -p orchestra-media --lib
