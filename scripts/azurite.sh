#!/usr/bin/env bash
# Azurite, a server that speaks Azure Blob Storage, for tests: installed once with npm and kept in the cache, ${XDG_CACHE_HOME:-~/.cache}/orchestra/azurite (370 MB).
#
#   scripts/azurite.sh          install it if need be, and print the path of its program
#   scripts/azurite.sh path     print the path if it is there, else fail
set -euo pipefail

version=3.37.0
cache=${ORCHESTRA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/orchestra}/azurite
folder=$cache/$version

fail() { printf 'azurite: %s\n' "$*" >&2; exit 1; }

# The stamp is written last: what was cut off while it was installed is installed again.
is_made() { [[ -e $folder/done ]]; }

case ${1:-make} in
    path) is_made || fail "it is not installed: scripts/azurite.sh" ;;
    make)
        command -v npm >/dev/null || fail "there is no npm: apt-get install npm"
        mkdir -p "$cache"
        # Two starts at once would install over each other. The lock is the kernel's and goes with this process.
        exec 9>"$cache/lock"
        flock 9
        if ! is_made; then
            echo "azurite: installing it in $folder" >&2
            rm -rf "$folder"
            npm install --silent --no-audit --no-fund --prefix "$folder" "azurite@$version" >&2 || fail "npm could not install azurite@$version; its words are above"
            touch "$folder/done"
        fi
        ;;
    *) fail "unknown command \`$1\`: there are \`make\` and \`path\`" ;;
esac
printf '%s\n' "$folder/node_modules/.bin/azurite-blob"
