#!/usr/bin/env bash
# Run each notebook by itself: from an empty folder, with only the built wheel installed, offline.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

.venv/bin/python -m build --wheel --no-isolation --outdir "$work/dist" . > /dev/null
wheel=$(ls "$work"/dist/*.whl)
"${PYTHON:-python3}" -m venv "$work/venv"
# The pins keep torch the build that the tests use; pip takes only what the wheel asks for.
"$work/venv/bin/python" -m pip install --quiet --constraint requirements/dev.txt \
  "$wheel[notebooks]" ipykernel nbclient
site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cp scripts/offline.py "$site/sitecustomize.py"
export OFFLINE=1
if "$work/venv/bin/python" -c 'import socket; socket.create_connection(("192.0.2.1", 9), 3)' 2> "$work/log" \
  || ! grep -q "offline: refused" "$work/log"; then
  echo "the network is not blocked" >&2
  exit 1
fi

for notebook in notebooks/*.ipynb; do
  mkdir "$work/empty"
  cp "$notebook" "$work/empty"
  echo "$(basename "$notebook")"
  (cd "$work/empty" && "$work/venv/bin/jupyter-execute" --timeout=600 --kernel_name=python3 ./*.ipynb)
  rm -r "$work/empty"
done
