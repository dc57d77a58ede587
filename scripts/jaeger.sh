#!/usr/bin/env bash
# A Jaeger on this machine, without a container: built with Go from tools/jaeger, once, and started on loopback.
#
#   scripts/jaeger.sh                 build it if need be, and run it until Ctrl-C: OTLP on 4317 (gRPC) and 4318 (HTTP), queries on 16686
#   scripts/jaeger.sh --free-ports    the same on ports that are free, which it prints first
#   scripts/jaeger.sh build           only build it, and print the path of the program
#   scripts/jaeger.sh path            print the path of the program if it has been built, else fail
#   scripts/jaeger.sh tree [...]      print a run's traces as trees: scripts/jaeger-tree.py
#
# The program is kept in the cache, ${XDG_CACHE_HOME:-~/.cache}/orchestra/jaeger, and built anew only when tools/jaeger/go.mod or go.sum change.
# The first build takes about 5 minutes on two cores, and 400 MB of downloads into Go's own cache.
set -euo pipefail

source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/../tools/jaeger" && pwd)
key=$(cat "$source_dir/go.mod" "$source_dir/go.sum" | sha256sum | cut -c1-16)
program=${ORCHESTRA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/orchestra}/jaeger/$key/jaeger

fail() { printf 'jaeger: %s\n' "$*" >&2; exit 1; }

build() {
    if [[ -x $program ]]; then return; fi
    command -v go >/dev/null || fail "Go is missing (apt-get install golang-go, or https://go.dev/dl); any other Jaeger on port 4318 does as well"
    mkdir -p "$(dirname "$program")"
    echo "jaeger: building it, which takes some minutes the first time" >&2
    # Two builds at once must not write one file.
    local part=$program.$$
    trap 'rm -f "$part"' EXIT
    (cd "$source_dir" && go build -trimpath -ldflags='-s -w' -o "$part" github.com/jaegertracing/jaeger/cmd/jaeger) >&2 ||
        fail "it could not be built; Go 1.25.4 or newer and the network are needed: $(go version)"
    mv "$part" "$program"
    trap - EXIT
}

# As many ports as asked for, each free a moment ago.
free_ports() {
    python3 -c '
import socket, sys
sockets = [socket.socket() for _ in range(int(sys.argv[1]))]
for s in sockets: s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in sockets))' "$1"
}

start() {
    local arguments=(--config "$source_dir/config.yaml")
    if [[ ${1:-} == --free-ports ]]; then
        local grpc http query query_grpc health
        read -r grpc http query query_grpc health <<<"$(free_ports 5)"
        arguments+=(
            --set "receivers.otlp.protocols.grpc.endpoint=127.0.0.1:$grpc"
            --set "receivers.otlp.protocols.http.endpoint=127.0.0.1:$http"
            --set "extensions.jaeger_query.http.endpoint=127.0.0.1:$query"
            --set "extensions.jaeger_query.grpc.endpoint=127.0.0.1:$query_grpc"
            --set "extensions.healthcheckv2.http.endpoint=127.0.0.1:$health"
        )
        echo "otlp_grpc=http://127.0.0.1:$grpc otlp_http=http://127.0.0.1:$http query=http://127.0.0.1:$query health=http://127.0.0.1:$health/status"
    else
        echo "jaeger: traces come in at http://localhost:4317 (gRPC) and http://localhost:4318 (HTTP), queries at http://localhost:16686" >&2
    fi
    exec "$program" "${arguments[@]}"
}

case ${1:-start} in
    start | --free-ports) build; start "${1:-}" ;;
    build) build; echo "$program" ;;
    path) [[ -x $program ]] || fail "it has not been built: scripts/jaeger.sh build"; echo "$program" ;;
    tree) shift; exec python3 "$(dirname "${BASH_SOURCE[0]}")/jaeger-tree.py" "$@" ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" ;;
    *) fail "unknown command \`$1\`: see scripts/jaeger.sh --help" ;;
esac
