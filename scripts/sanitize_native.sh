#!/bin/sh
# Runs the row store's tests on a build with the address and undefined-behaviour sanitizers.
#   scripts/sanitize_native.sh [PYTHON]
# In that build memory comes from the heap and slabs are tiny, so the tests about how much there is do not apply.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
python=${1:-python3}
build="$root/build/sanitize"
tree="$build/tree"
mkdir -p "$tree/elasticdl" "$tree/tests"
cmake -S "$root/native" -B "$build" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DELASTICDL_SANITIZE=ON \
  -DPython_EXECUTABLE="$("$python" -c 'import sys; print(sys.executable)')" >"$build.log"
cmake --build "$build" >>"$build.log" || { cat "$build.log" >&2; exit 1; }
# A copy of the tree: the package's own library stays as it is.
cp -r "$root/elasticdl/." "$tree/elasticdl"
cp -r "$root/tests/." "$tree/tests"
rm -f "$tree"/elasticdl/ps/_native*.so
cp "$build"/_native*.so "$tree/elasticdl/ps/"
cd "$tree"
LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so) $(g++ -print-file-name=libstdc++.so)" \
  ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
  "$python" -m pytest -q -p no:cacheprovider tests/ps/test_row_*.py tests/ps/test_optimizers.py \
  -k "not resident_bytes and not out_of_memory and not goes_back and not beyond_their_bound and not little_memory"
