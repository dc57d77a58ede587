#!/usr/bin/env bash
# Reads rendered pages with the example `read-text` and with RapidOCR itself, side by side in turns on the same cores, and prints the pages per second of
# both, their ratio, and the share of words that are equal.
#
#     scripts/bench-read-text.sh [--pages N] [--rounds N] [--orchestra PATH] [--folder DIR]
#
#     --pages      pages (default 200)
#     --rounds     rounds; each reads all pages once with either (default 3)
#     --orchestra  the binary; default: `cargo build --release`
#     --folder     where pages and results lie (default: target/bench-read-text)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(dirname "$here")
example=$repository/examples/read-text

fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 2; }

pages=200 rounds=3 orchestra='' folder=${CARGO_TARGET_DIR:-$repository/target}/bench-read-text
while (($#)); do
    case $1 in
        -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
        --pages | --rounds | --orchestra | --folder)
            (($# > 1)) || fail "\`$1\` needs a value"
            declare "${1#--}=$2"
            shift 2 ;;
        *) fail "unknown argument \`$1\`; --help lists them" ;;
    esac
done

python=$("$here/python-env.sh" rapidocr)
python3 "$example/fetch.py" >&2
if [[ -z $orchestra ]]; then
    cargo build --release --locked --bin orchestra --manifest-path "$repository/Cargo.toml" >&2
    orchestra=${CARGO_TARGET_DIR:-$repository/target}/release/orchestra
fi
[[ -x $orchestra ]] || fail "\`$orchestra\` is no program"

exec "$python" "$here/peers/read_text.py" --orchestra "$orchestra" --folder "$folder" --pages "$pages" --rounds "$rounds"
