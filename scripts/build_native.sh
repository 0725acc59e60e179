#!/bin/sh
# Builds the native row store into elasticdl/ps/, so that the package runs from the tree.
#   scripts/build_native.sh [PYTHON] [CMAKE OPTIONS...]
# PYTHON's environment must have nanobind; cmake (and ninja, if at hand) may come from it or from the system.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
python=${1:-python3}
[ $# -gt 0 ] && shift
PATH="$(dirname "$("$python" -c 'import sys; print(sys.executable)')"):$PATH"
if ! command -v cmake >/dev/null 2>&1 || ! "$python" -c 'import nanobind' 2>/dev/null; then
  echo "build_native.sh: needs cmake and nanobind: $python -m pip install cmake ninja nanobind" >&2
  exit 1
fi
build="$root/build/native-$("$python" -c 'import sys; print(sys.implementation.cache_tag)')"
mkdir -p "$build"
generator=
if command -v ninja >/dev/null 2>&1; then generator="-GNinja"; fi
cmake -S "$root/native" -B "$build" $generator -DCMAKE_BUILD_TYPE=Release \
  -DPython_EXECUTABLE="$("$python" -c 'import sys; print(sys.executable)')" "$@" >"$build.log" 2>&1 &&
  cmake --build "$build" >>"$build.log" 2>&1 || { cat "$build.log" >&2; exit 1; }
# Renamed into place: a process that has the old library open keeps it.
for library in "$build"/_native*.so; do
  name=$(basename "$library")
  cp "$library" "$root/elasticdl/ps/.$name"
  mv -f "$root/elasticdl/ps/.$name" "$root/elasticdl/ps/$name"
  echo "elasticdl/ps/$name"
done
