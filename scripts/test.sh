#!/usr/bin/env bash
# Runs all tests at their quick size, then says which were skipped and how to run them. Arguments go to `cargo test`.
#
#     scripts/test.sh [CARGO TEST ARGUMENTS]
#
# ORCHESTRA_TESTS=strict   a test that lacks a tool fails instead of being skipped; those of scripts/deep-check.sh are skipped all the same
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

skipped=${CARGO_TARGET_DIR:-target}/debug/skipped-tests
rm -f "$skipped"
status=0
cargo test --workspace --locked "$@" || status=$?
if [[ -s $skipped ]]; then
    printf '\n%s tests were skipped; behind each, what it lacks and how to run it:\n' "$(wc -l <"$skipped")"
    sort "$skipped"
else
    printf '\nno test was skipped\n'
fi
exit "$status"
