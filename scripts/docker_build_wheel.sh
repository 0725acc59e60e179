#!/usr/bin/env bash
# Builds this tree's wheel inside an image, so that it fits every image of the same base, and puts it into DIR, where
# `elasticdl zoo init --local_pkg_dir=DIR` takes it from.
# usage: [BASE_IMAGE=…] [EXTRA_PYPI_INDEX=…] scripts/docker_build_wheel.sh [DIR]     (default: build)
set -euo pipefail
directory="$(mkdir -p "${1:-build}" && cd "${1:-build}" && pwd)"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

docker build --target wheel -t elasticdl:wheel -f elasticdl/docker/Dockerfile \
  --build-arg BASE_IMAGE="${BASE_IMAGE:-python:3.11-slim}" --build-arg EXTRA_PYPI_INDEX="${EXTRA_PYPI_INDEX:-}" .
# Copied out, not mounted: the engine may be on another machine.
container=$(docker create elasticdl:wheel true)
trap 'docker rm "$container" >/dev/null' EXIT
rm -f "$directory"/elasticdl-*.whl
docker cp "$container:/wheels/." "$directory"
ls -l "$directory"/elasticdl-*.whl
