#!/usr/bin/env bash
# Makes the model, the images and the workflow files that are measured: scripts/make-bench-data.py in a private Python environment.
#
#     scripts/make-bench-data.sh [--output DIR] [--digits N] [--repeat N]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$("$here/bench-env.sh")
exec "$python" "$here/make-bench-data.py" "$@"
