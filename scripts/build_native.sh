#!/bin/sh
# Builds the native row store into elasticdl/ps/, so that the package runs from the tree.
#   scripts/build_native.sh [PYTHON] [CMAKE OPTIONS...]     for example: -DELASTICDL_SANITIZE=ON
# PYTHON needs nanobind; cmake and ninja may come from PyPI into the same environment.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
python=${1:-python3}
[ $# -gt 0 ] && shift
PATH="$("$python" -c 'import os, sys; print(os.path.dirname(sys.executable))'):$PATH"
build="$root/build/native-$("$python" -c 'import sys; print(sys.implementation.cache_tag)')"
generator=
if command -v ninja >/dev/null 2>&1; then generator="-G Ninja"; fi
# shellcheck disable=SC2086
cmake -S "$root/native" -B "$build" $generator -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE="$("$python" -c 'import sys; print(sys.executable)')" "$@" >"$build.log" 2>&1 || { cat "$build.log" >&2; exit 1; }
cmake --build "$build"
cp "$build"/_native*.so "$root/elasticdl/ps/"
