#!/usr/bin/env bash
# install.sh LOCK PYTHON: makes .venv, with everything in locks/LOCK.txt and this project.
# pip checks every hash, and takes what it needs from its own settings and caches.
set -euo pipefail
cd "$(dirname "$0")/.."
lock=locks/$1.txt python=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Bare Debian has pip and lacks ensurepip: its own pip then installs into the new environment.
"$python" -m venv .venv > /dev/null 2>&1 || "$python" -m venv --without-pip .venv
if [ -x .venv/bin/pip ]; then
  pip=(.venv/bin/pip)
else
  pip=("$python" -m pip --python .venv/bin/python)
fi

# One pip downloads or unpacks one package at a time, so three share the list. The lock is complete
# (--no-deps), so none of them waits for another's packages.
streams=3
awk -v streams=$streams -v to="$scratch/part" \
  '/^[A-Za-z0-9]/ { part = count++ % streams } { print > (to part) }' "$lock"
pids=()
for part in "$scratch"/part*; do
  "${pip[@]}" install -qq --no-compile --no-deps --require-hashes -r "$part" &
  pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
if [ $failed = 1 ]; then
  echo "Is torch==…+cpu what was not found? Its index has to be named: see README.md," \
    "'Machines without a GPU'." >&2
  exit 1
fi

# Two thirds of the code is imported by nobody here; what is missing is compiled at its first import.
unused='/tests?/|/testing/|/transformers/models/|/model_executor/models/|/ray/rllib/'
unused+='|/site-packages/(anthropic|graphql|hypothesis|mesonbuild|mypy|mypyc|pip|schemathesis|sentry_sdk)/'
.venv/bin/python -m compileall -qq -j 0 -x "$unused" .venv/lib || true
"${pip[@]}" install -qq --no-deps --no-build-isolation -e .
