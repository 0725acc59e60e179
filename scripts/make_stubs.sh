#!/usr/bin/env bash
# Generates the protobuf stubs that are committed. grpcio-tools 1.62.3 on purpose: its stubs run on protobuf 4.25 to 7.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools"
"$tools/bin/pip" install -q grpcio-tools==1.62.3 'setuptools<81'
for proto in $(git ls-files '*.proto'); do
  "$tools/bin/python" -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. "$proto" 2>/dev/null || "$tools/bin/python" -m grpc_tools.protoc -I. --python_out=. --pyi_out=. "$proto"
done
# a proto without a service needs no service stubs
find elasticdl -name '*_pb2_grpc.py' -size -400c -delete
