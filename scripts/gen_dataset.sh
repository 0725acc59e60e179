#!/usr/bin/env bash
# Makes the data of the examples under DIR: DIR/mnist/train and DIR/mnist/test, as RecordIO files.
# Works in a clone (with the Python of `make demo`, or PYTHON=…) and in the development image.
# usage: scripts/gen_dataset.sh DIR
set -euo pipefail

directory="${1:?usage: gen_dataset.sh DIR}"
case "$directory" in
  /*) ;;
  *) directory="$PWD/$directory" ;;
esac

cd "$(dirname "${BASH_SOURCE[0]}")/.."
for python in ${PYTHON:-python3 .venv/bin/python}; do
  if "$python" -c "import elasticdl.data.mnist" 2>/dev/null; then
    exec "$python" -m elasticdl data mnist "$directory/mnist"
  fi
done
echo "gen_dataset.sh: no Python with ElasticDL's packages. Run make demo first, or pip install . and try again." >&2
exit 1
