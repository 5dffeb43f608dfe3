#!/usr/bin/env bash
# Makes a virtual environment with pinned versions: tools/install.sh VENV EXTRAS [CONSTRAINTS]
# Knows nothing of what the environment is for. Safe to run again: a broken or foreign environment is rebuilt.
set -euo pipefail
venv=$1 extras=$2 constraints=${3:-constraints.txt}

new_enough='import sys; sys.exit(sys.version_info < (3, 11))'

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
    if "$candidate" -c "$new_enough" 2>/dev/null; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  echo "octavo needs Python 3.11 or newer; none of these is one: ${PYTHON:-python3 python3.13 python3.12 python3.11 python}." \
    "Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2
  return 1
}

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  python=$(find_python)
  echo "Making $venv with $("$python" --version)"
  "$python" -m venv --clear "$venv" || {
    echo "$python cannot make virtual environments; on Debian: apt-get install python3-venv" >&2
    exit 1
  }
fi

# A person sees the downloads move; a log does not need them.
quiet=(-q)
if [ -t 1 ]; then quiet=(); fi
echo "Installing octavo[$extras] into $venv (the first time takes some minutes)"
"$venv/bin/python" -m pip install "${quiet[@]}" --disable-pip-version-check \
  -c "$constraints" -e ".${extras:+[$extras]}"
