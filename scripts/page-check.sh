#!/usr/bin/env bash
# Looks at pages of `orchestra report` in Debian's Chromium, without a network: sections, the console, sorting, filtering, faults that axe-core finds, the
# request for anything. The script of the page is judged by the compiler of TypeScript. What does it is installed once with npm and kept in the cache (60 MB).
#
#   scripts/page-check.sh PAGE ...
#   scripts/page-check.sh --live END COMMAND ...                 a run with `--page`, up to the end that its page says
#   scripts/page-check.sh --picture FILE.webp PAGE SELECTOR      a picture of what the selector finds first, and no check
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

puppeteer=24.8.2 axe=4.14.1 typescript=5.8.3
cache=${ORCHESTRA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/orchestra}/page-check
folder=$cache/$puppeteer-$axe-$typescript

fail() { printf 'page-check: %s\n' "$*" >&2; exit 1; }

command -v npm >/dev/null || fail "there is no npm: apt-get install npm"
command -v chromium >/dev/null || fail "there is no chromium: apt-get install chromium"
mkdir -p "$cache"
# Two starts at once would install over each other. The lock is the kernel's and goes with this process.
exec 9>"$cache/lock"
flock 9
if [[ ! -e $folder/done ]]; then
    rm -rf "$folder"
    npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$folder" "puppeteer-core@$puppeteer" "axe-core@$axe" "typescript@$typescript" >&2 ||
        fail "npm could not install puppeteer-core, axe-core and typescript; its words are above"
    touch "$folder/done"
fi
flock -u 9
[[ ${1:-} == --* ]] || "$folder/node_modules/.bin/tsc" --noEmit --checkJs --strict --noUnusedLocals --noUnusedParameters --noImplicitReturns \
    --noFallthroughCasesInSwitch --target es2022 --lib es2022,dom,dom.iterable crates/orchestra-report/assets/page.js
MODULES=$folder/node_modules node scripts/page-check.mjs "$@"
