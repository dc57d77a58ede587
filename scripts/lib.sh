# shellcheck shell=bash disable=SC2015 # `missing` and `fail` end the program
# Functions that `.ci/run` and `scripts/deep-check.sh` source: messages, and tools that are installed where they are missing.

# Exit status for a tool that is missing and cannot be installed: EX_UNAVAILABLE.
readonly MISSING=69

step() { printf '\n== %s\n' "$*"; }
fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }
missing() { printf '%s: missing: %s\n' "${0##*/}" "$*" >&2; exit "$MISSING"; }

# A component of the Rust toolchain.
need_component() {
    local component=$1 command=$2
    if cargo "$command" --version >/dev/null 2>&1; then return; fi
    command -v rustup >/dev/null || missing "\`cargo $command\`, and there is no rustup to install it with"
    rustup component add "$component"
}

# Installs a Debian package. Fails without apt-get, and where this does not run as root.
install_package() {
    [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || return 1
    apt-get install -y --no-install-recommends "$1" || { apt-get update && apt-get install -y --no-install-recommends "$1"; }
}

# A command, and the package that has it.
need_command() {
    local command=$1 package=$2
    if command -v "$command" >/dev/null; then return; fi
    install_package "$package" && command -v "$command" >/dev/null || missing "\`$command\`: apt-get install $package"
}

# Python with pip, which fetches ONNX Runtime once, unless a library is named.
need_python() {
    need_command python3 python3
    if [[ -n ${ORT_DYLIB_PATH:-} ]] || python3 -m pip --version >/dev/null 2>&1; then return; fi
    install_package python3-pip && python3 -m pip --version >/dev/null ||
        missing "python3 has no pip, which fetches ONNX Runtime: apt-get install python3-pip, or set ORT_DYLIB_PATH"
}

# Python that makes environments, a package of its own in Debian.
need_venv() {
    need_command python3 python3
    if python3 -c 'import ensurepip, venv' 2>/dev/null; then return; fi
    install_package python3-venv && python3 -c 'import ensurepip, venv' || missing "python3 makes no environments: apt-get install python3-venv"
}
