#!/usr/bin/env bash
# Every static check, all of them even when one fails. Expects the environment's programs on PATH.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=()

check() {
  local name=$1 output
  shift
  if output=$("$@" 2>&1); then
    printf '  ok    %s\n' "$name"
  else
    printf '  FAIL  %s: %s\n%s\n' "$name" "$*" "$output"
    failed+=("$name")
  fi
}

# The contracts may not break what the last release promised; before a first release there is no promise.
breaking() {
  local release
  release=$(git tag --list 'v[0-9]*' --sort=-v:refname | head -n 1)
  if [ -n "$release" ]; then buf breaking --against ".git#tag=$release"; fi
}

check format ruff format --check .
check ruff ruff check .
check types mypy
check imports lint-imports --no-cache
check protos buf lint
check compatibility breaking
check stubs python tools/generate_protos.py --check
check docs python tools/generate_docs.py --check

if [ "${#failed[@]}" -gt 0 ]; then
  printf 'lint failed: %s\n' "${failed[*]}"
  exit 1
fi
