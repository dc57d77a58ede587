#!/usr/bin/env bash
# The checks that take too long for every push, which runs `.ci/run`.
#
#     scripts/deep-check.sh [PART ...]
#
#     loom      all orders in which few threads claim and publish rows of slots
#     miri      undefined behaviour where rows of pictures are written; needs a nightly toolchain. Only `orchestra-media`: Miri has no memory files
#     kernels   kernels without Landlock and with control groups, which run as programs (User-mode Linux)
#     jaeger    traces that a real Jaeger has taken; the first build of Jaeger takes about 5 minutes
#     stores    object stores: moto for S3, Azurite for Azure, fake-gcs-server for Google
#     page      the pages of runs in Chromium: sections, console, sorting, filtering, faults for people who cannot see; installs it, and axe-core with npm
#     examples  every example while its workers, its loaders and the run itself are killed
#     outside   the programs of the library's guide as a crate outside of the workspace, and the documentation of the library
#     serve     `orchestra serve`: conformance, clients that are slow, idle or gone, workers that are killed, 1,000 reloads
#     storms    tests with many items, many kills and many damaged files
#     fuzz      every reader of untrusted bytes for 40 seconds, with AddressSanitizer
#
# Default: all, in this order. `build`, the program of the end-to-end tests, goes first where a part needs it. Tests have their full size here
# (`ORCHESTRA_TESTS_SIZE=full`), and a skipped test fails. A part has at most 15 minutes and all together have 60.
#
# Missing packages are installed where this runs as root on Debian. A table at the end says what became of each part: `ok`, `failed`, or `missing`,
# where the message of the part names a tool that cannot be had. Exits with 1 unless all are `ok`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
source scripts/lib.sh

PARTS=(loom miri kernels jaeger stores page examples outside serve storms fuzz)
PART_SECONDS=900 ALL_SECONDS=3600
target=${CARGO_TARGET_DIR:-target}
end_to_end=(cargo test --locked -p orchestra-cli --test e2e)

# ## Parts

# Loom and Miri have target folders of their own, because their flags are for all crates. Loom is optimised: it runs each test some thousand times.
part_loom() {
    CARGO_TARGET_DIR=$target/loom RUSTFLAGS="--cfg loom" cargo test --locked --release -p orchestra-core --test slot_claims_loom
}

part_miri() {
    cargo +nightly miri --version >/dev/null 2>&1 ||
        missing "Miri: rustup toolchain install nightly --profile minimal --component miri,rust-src"
    # What writes rows; the arithmetic of the others would take hours.
    CARGO_TARGET_DIR=$target/miri MIRIFLAGS=-Zmiri-strict-provenance cargo +nightly miri test --locked -p orchestra-media --lib -- \
        kernels raster reduction resample warp --skip blending
}

part_build() {
    need_command cc build-essential
    "${end_to_end[@]}" --no-run
}

# Runs the end-to-end tests of these modules. A name that selects no test is an error, since the module has another name now.
run_modules() {
    local listed module
    need_python
    listed=$("${end_to_end[@]}" -- --list)
    for module in "$@"; do grep -q "^$module::" <<<"$listed" || fail "there is no end-to-end test in a module \`$module\`"; done
    "${end_to_end[@]}" -- "${@/%/::}"
}

part_kernels() {
    [[ $(uname -m) == x86_64 ]] || missing "User-mode Linux, which runs on x86_64 alone"
    need_command linux.uml user-mode-linux
    run_modules no_landlock memory_ceiling tasks_groups
}

part_jaeger() {
    need_command go golang-go
    scripts/jaeger.sh build
    scripts/jaeger-check.py "$target/debug/orchestra"
}

part_stores() {
    need_command npm npm
    need_venv
    for name in moto gcs pyarrow reference tables; do scripts/python-env.sh "$name"; done
    scripts/azurite.sh
    run_modules objects other_stores kills::bucket part_kills retry
}

part_page() {
    need_command chromium chromium
    need_command npm npm
    need_python
    local out
    out=$(mktemp -d)
    cargo build --locked --bin orchestra
    for example in digits pages embeddings refine hundred-commands hundred-tasks; do
        "$target/debug/orchestra" run "examples/$example/workflow.toml" --output "$out/$example" --report --quiet || [[ $? == 65 ]]
    done
    "$target/debug/orchestra" report "$out/digits" "$out/pages"
    scripts/page-check.sh "$out"/*/report.html "$out/pages/compare.html"
    mkdir "$out/many"
    for copy in {1..10}; do cp -r examples/digits/images "$out/many/images$copy"; done
    sed "s|images/|images*/|; s|\.\./\.\./models|$PWD/models|" examples/digits/workflow.toml >"$out/many/workflow.toml"
    scripts/page-check.sh --live "All 4,000 items are done." "$target/debug/orchestra" run "$out/many/workflow.toml" --page
    rm -rf "$out"
}

part_examples() {
    need_venv
    scripts/python-env.sh pyarrow
    run_modules examples_checked
}

part_outside() {
    cargo test --locked -p orchestra --test it -- outside
    RUSTDOCFLAGS="-D warnings" cargo doc --locked -p orchestra --no-deps --features half,ndarray,telemetry,testing,tower
}

part_serve() {
    need_venv
    scripts/python-env.sh oip
    run_modules serve
}

part_storms() {
    run_modules kills parent_killed_anywhere crash_loop chaos huge_records flipped_bits edited_sources
}

part_fuzz() {
    need_command c++ g++
    scripts/fuzz.sh --sanitizer address --seconds 40
}

# ## Table

case ${1:-} in
    -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    # One part of a run below: `timeout` takes a program.
    --only) export ORCHESTRA_TESTS=strict ORCHESTRA_TESTS_SIZE=full; "part_$2"; exit ;;
esac
parts=()
for part in "${@:-${PARTS[@]}}"; do
    [[ " ${PARTS[*]} " == *" $part "* ]] || fail "there is no part \`$part\`: choose of ${PARTS[*]}"
    if [[ $part =~ ^(kernels|jaeger|stores|examples|serve|storms)$ && " ${parts[*]} " != *" build "* ]]; then parts+=(build); fi
    parts+=("$part")
done
command -v cargo >/dev/null || fail "cargo is missing: install a Rust toolchain (1.92 or later)"

# `timeout` and what it runs are a group of their own, which no Ctrl-C of a terminal reaches.
running=''
trap '[[ -z $running ]] || kill "$running" 2>/dev/null || true' EXIT
table='' all_ok=1
for part in "${parts[@]}"; do
    step "$part"
    began=$SECONDS limit=$((ALL_SECONDS - SECONDS < PART_SECONDS ? ALL_SECONDS - SECONDS : PART_SECONDS)) status=124
    if ((limit > 0)); then
        timeout --kill-after 30 "$limit" "${BASH_SOURCE[0]}" --only "$part" &
        running=$! status=0
        wait "$running" || status=$?
        running=''
    fi
    case $status in
        0) result=ok ;;
        "$MISSING") result=missing ;;
        124 | 137) result="failed: out of time" ;;
        *) result=failed ;;
    esac
    [[ $result == ok ]] || all_ok=''
    table+=$(printf '%-10s %-20s %5d s' "$part" "$result" $((SECONDS - began)))$'\n'
done
step "parts"
printf '%s' "$table"
[[ -n $all_ok ]]
