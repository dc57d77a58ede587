#!/usr/bin/env bash
# Fuzzes everything that reads untrusted bytes, with libFuzzer: a stable Rust toolchain and a C++ compiler are enough.
#
#     scripts/fuzz.sh [--seconds N] [--runs N] [--seed N] [--jobs N] [--sanitizer none|address] [--keep] [TARGET ...]
#     scripts/fuzz.sh --unpack|--pack [TARGET ...]
#
#     --seconds    how long each target runs (default 20)
#     --runs       inputs after which each target ends, if that is sooner (default: no such bound)
#     --seed       from which chance decides; the same runs then come in the same order, from the same inputs (default: the day, as YYYYMMDD)
#     --jobs       how many targets run at a time (default: one per core)
#     --sanitizer  `address` also finds what unsafe code and C libraries do to memory; half as fast (default none)
#     --keep       afterwards replace the kept inputs by the fewest that reach as much code; inputs with a name of their own stay
#     --unpack     only unpack the kept inputs, `fuzz/corpus/TARGET.tar.gz`, into `fuzz/target/corpus/TARGET`, as every run does first
#     --pack       only write `fuzz/corpus/TARGET.tar.gz` from `fuzz/target/corpus/TARGET`
#     TARGET       default: all of `fuzz/fuzz_targets`
#
# What a run finds interesting is kept in `fuzz/target/inputs` for the next one. An input that breaks a promise is written to `fuzz/artifacts`.
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$repository"

fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 2; }

seconds=20 runs=-1 seed=$(date -u +%Y%m%d) jobs=$(getconf _NPROCESSORS_ONLN) sanitizer=none keep='' only=''
targets=()
while (($#)); do
    case $1 in
        -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
        --keep) keep=1; shift ;;
        --unpack | --pack) only=${1#--}; shift ;;
        --seconds | --runs | --seed | --jobs | --sanitizer)
            (($# > 1)) || fail "\`$1\` needs a value"
            printf -v "${1#--}" '%s' "$2"
            shift 2 ;;
        -*) fail "unknown argument \`$1\`; --help lists them" ;;
        *)
            [[ -e fuzz/fuzz_targets/$1.rs ]] || fail "there is no target \`$1\`; fuzz/fuzz_targets has them"
            targets+=("$1"); shift ;;
    esac
done
if ((!${#targets[@]})); then
    for file in fuzz/fuzz_targets/*.rs; do file=${file##*/}; targets+=("${file%.rs}"); done
fi
[[ $seconds =~ ^[1-9][0-9]*$ && $jobs =~ ^[1-9][0-9]*$ ]] || fail "\`--seconds\` and \`--jobs\` are numbers from 1"
[[ $runs =~ ^(-1|[1-9][0-9]*)$ ]] || fail "\`--runs\` is a number from 1"
[[ $seed =~ ^[0-9]+$ ]] || fail "\`--seed\` is a number"

# ## Kept inputs

unpack() {
    local archive=fuzz/corpus/$1.tar.gz folder=fuzz/target/corpus/$1
    rm -rf "$folder"
    mkdir -p "$folder"
    # A new target has none yet.
    if [[ -e $archive ]]; then tar --no-same-owner -xzf "$archive" -C "$folder"; fi
}

# The same inputs give the same archive: sorted, without times and owners.
pack() {
    local archive=fuzz/corpus/$1.tar.gz folder=fuzz/target/corpus/$1
    [[ -d $folder ]] || fail "there is no \`$folder\`: \`--unpack $1\` makes it"
    find "$folder" -type f -printf '%P\0' | LC_ALL=C sort -z |
        tar -C "$folder" --format=ustar --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=644 --null --verbatim-files-from -T - -cf - |
        gzip -9n >"fuzz/target/$1.tar.gz"
    mv "fuzz/target/$1.tar.gz" "$archive"
}

if [[ -n $only ]]; then
    for target in "${targets[@]}"; do "$only" "$target"; done
    exit
fi
command -v c++ >/dev/null || fail "a C++ compiler (c++) is missing: apt-get install g++"

# ## Build

# The flags of `cargo fuzz`, but without `--cfg fuzzing`: with that some decoders look at no checksum, and are not what users run.
flags='-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4'
for part in inline-8bit-counters pc-table trace-compares; do flags+=" -Cllvm-args=-sanitizer-coverage-$part"; done
case $sanitizer in
    none) ;;
    # Unstable by name alone: every toolchain brings its library. Tables that live as long as the process are no leaks.
    address) flags+=' -Zsanitizer=address'; export RUSTC_BOOTSTRAP=1 ASAN_OPTIONS=detect_odr_violation=0:detect_leaks=0:${ASAN_OPTIONS:-} ;;
    *) fail "\`--sanitizer\` is \`none\` or \`address\`, not \`$sanitizer\`" ;;
esac
# With the host named, the flags are not for build scripts.
host=$(rustc -vV | sed -n 's/^host: //p')
output=fuzz/target/$sanitizer
bins=()
for target in "${targets[@]}"; do bins+=(--bin "$target"); done
RUSTFLAGS=$flags cargo build --quiet --release --locked --manifest-path fuzz/Cargo.toml --target "$host" --target-dir "$output" "${bins[@]}"

# ## Run

# Folders beside the kept corpus that hold good starts.
more_inputs() {
    case $1 in
        image | image_header) echo crates/orchestra-media/tests/golden ;;
        machine_file) echo configs/machines ;;
        workflow_file) echo configs crates/orchestra-plan/tests/cases ;;
    esac
}

# Longest input that is tried.
max_len() {
    case $1 in
        image | image_header) echo 16384 ;;
        journal) echo 1024 ;;
        listing) echo 16384 ;;
        pattern) echo 256 ;;
        *) echo 4096 ;;
    esac
}

options() {
    printf '%s\n' -timeout=20 -rss_limit_mb=2048 -len_control=10 "-max_len=$(max_len "$1")" -print_final_stats=1
    local words=fuzz/dictionaries/${1%_header}.dict
    if [[ -e $words ]]; then echo "-dict=$words"; fi
}

# Files that targets write go into memory where that is to be had, and are removed at the end whatever becomes of a target.
scratch=$(mktemp -d -p "$([[ -w /dev/shm ]] && echo /dev/shm || echo "${TMPDIR:-/tmp}")" orchestra-fuzz.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
mkdir -p fuzz/target/logs

run() {
    local target=$1 log=fuzz/target/logs/$1.log inputs=fuzz/target/inputs/$1 artifacts=fuzz/artifacts/$1 arguments
    mkdir -p "$inputs" "$artifacts"
    unpack "$target"
    mapfile -t arguments < <(options "$target")
    # shellcheck disable=SC2046 # these paths are ours, and have no spaces
    if ! TMPDIR=$scratch RUST_BACKTRACE=${RUST_BACKTRACE:-0} nice -n 10 "$output/$host/release/$target" "${arguments[@]}" \
        "-max_total_time=$seconds" "-runs=$runs" "-seed=$seed" "-artifact_prefix=$artifacts/" "$inputs" "fuzz/target/corpus/$target" $(more_inputs "$target") >"$log" 2>&1; then
        printf '%-16s FAILED, the end of %s says:\n' "$target" "$log"
        grep -v '^#' "$log" | tail -n 40
        return 1
    fi
    awk -v target="$target" '
        /^#.*cov: / { for (i = 1; i < NF; i++) { if ($i == "cov:") cov = $(i + 1); if ($i == "ft:") ft = $(i + 1); if ($i == "corp:") corp = $(i + 1) } }
        /^stat::number_of_executed_units/ { runs = $2 }
        /^stat::average_exec_per_sec/ { rate = $2 }
        /^stat::peak_rss_mb/ { rss = $2 }
        END { printf "%-16s %11d runs, %7d/s, %6d edges, %6d features, %s inputs, %d MB\n", target, runs, rate, cov, ft, corp, rss }' "$log"
}

# What a run finds is found again with it.
printf 'seed %s, sanitizer %s\n' "$seed" "$sanitizer"
for target in "${targets[@]}"; do
    while (($(jobs -rp | wc -l) >= jobs)); do wait -n || true; done
    { run "$target" || touch "$scratch/failed"; } &
done
wait
[[ ! -e $scratch/failed ]] || exit 1

# ## Keep

if [[ -n $keep ]]; then
    for target in "${targets[@]}"; do
        kept=$scratch/kept corpus=fuzz/target/corpus/$target
        mkdir "$kept"
        mapfile -t arguments < <(options "$target")
        # Code that is reached counts, and not how often: a tenth of the inputs.
        TMPDIR=$scratch "$output/$host/release/$target" "${arguments[@]}" -set_cover_merge=1 -use_counters=0 "$kept" \
            "$corpus" "fuzz/target/inputs/$target" >"fuzz/target/logs/$target.keep.log" 2>&1
        # libFuzzer names an input by its SHA-1.
        find "$corpus" -type f -regextype posix-extended -regex '.*/[0-9a-f]{40}' -delete
        for input in "$kept"/*; do
            named=$(find "$corpus" -type f -size "$(stat -c %s "$input")c" -exec cmp -s {} "$input" \; -print -quit)
            [[ -n $named ]] || cp "$input" "$corpus/"
        done
        rm -r "$kept"
        pack "$target"
        printf '%-16s %s inputs kept, %s\n' "$target" "$(find "$corpus" -type f | wc -l)" "$(du -sh --apparent-size "fuzz/corpus/$target.tar.gz" | cut -f1)"
    done
fi
