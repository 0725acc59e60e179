#!/usr/bin/env bash
# Generates the protobuf stubs that are committed; with --check only says whether they are current.
# grpcio-tools 1.62.3 on purpose: its stubs run on protobuf 4.25 to 7. It is installed for the run, so this needs a
# package index; tests/wire/test_stubs.py compares stubs and proto files without one.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
  "" | --check) ;;
  *)
    echo "usage: scripts/make_stubs.sh [--check]" >&2
    exit 2
    ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check grpcio-tools==1.62.3 'setuptools<81'
mkdir "$work/out"

for proto in $(git ls-files '*.proto'); do
  "$work/venv/bin/python" -m grpc_tools.protoc -I. "--python_out=$work/out" "--pyi_out=$work/out" "$proto"
  # Offsets, two lines a message, which only copies of descriptors read, and only without protobuf's C library.
  sed -i '/_serialized_\(start\|end\)=/d' "$work/out/${proto%.proto}_pb2.py"
done

stale=0
while read -r file; do
  if [ "${1:-}" != --check ]; then
    cp "$work/out/$file" "$file"
  elif ! cmp -s "$work/out/$file" "$file"; then
    echo "$file is not what its proto file gives: run scripts/make_stubs.sh" >&2
    stale=1
  fi
done < <(cd "$work/out" && find . -type f)
exit "$stale"
