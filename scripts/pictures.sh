#!/usr/bin/env bash
# Makes the pictures of the README and the guide anew, from runs of examples: `docs/guide/pictures/`. It needs what the `page` part of
# `scripts/deep-check.sh` needs, and a program: `cargo build --release --bin orchestra`.
#
#   scripts/pictures.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh
need_command chromium chromium
need_command npm npm
need_python

readonly MOST_BYTES=150000
orchestra=${CARGO_TARGET_DIR:-target}/release/orchestra
to=docs/guide/pictures
[[ -x $orchestra ]] || fail "there is no $orchestra: cargo build --release --bin orchestra"
python=$(scripts/python-env.sh reference)
export PATH=${python%/*}:$PATH
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
mkdir -p "$to"

# One task of `train-many` fails on purpose.
for example in pages train-many; do
    "$orchestra" run "examples/$example/workflow.toml" --output "$out/$example" --report --quiet || [[ $? == 65 ]]
done
scripts/page-check.sh --picture "$to/report.webp" "$out/pages/report.html" body
scripts/page-check.sh --picture "$to/curves.webp" "$out/train-many/report.html" "#tasks .chart"

# The example is over before anything is drawn: its images thirty times.
mkdir -p "$out/digits/images"
for copy in {1..30}; do cp -r examples/digits/images "$out/digits/images/$copy"; done
sed "s|images/|images/*/|; s|\.\./\.\./models|$PWD/models|" examples/digits/workflow.toml >"$out/digits/workflow.toml"
scripts/terminal-picture.py "$orchestra" run "$out/digits/workflow.toml" >"$to/terminal.svg"
for picture in "$to"/*; do
    (($(stat -c %s "$picture") <= MOST_BYTES)) || fail "$picture has more than $MOST_BYTES bytes"
done
