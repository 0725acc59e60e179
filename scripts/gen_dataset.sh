#!/usr/bin/env bash
# Makes the data of the examples under DIR: DIR/mnist/train and DIR/mnist/test, as RecordIO files.
# usage: scripts/gen_dataset.sh DIR
set -euo pipefail

directory="${1:?usage: gen_dataset.sh DIR}"
cd_back="$PWD"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
case "$directory" in
  /*) ;;
  *) directory="$cd_back/$directory" ;;
esac

cd "$root"
exec "${PYTHON:-python3}" -m elasticdl data mnist "$directory/mnist"
