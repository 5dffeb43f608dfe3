#!/usr/bin/env bash
# What goes wrong on a GPU, against real services: each part bounded in time, a summary last. Needs what first_run.sh
# needs; parts that want two GPUs are skipped with one.
#   OUT=FOLDER tests/gpu/faults.sh [PART ...]     parts: kill, stop, spin, memory, taken, poison, two_instances
set -uo pipefail
export OUT=${OUT:-bench/results} PYTHONUNBUFFERED=1 TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-/tmp/triton}
mkdir -p "$OUT"
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(kill stop spin memory taken poison two_instances)

declare -A TESTS=(
  [kill]=killed_rank [stop]=stopped_rank [spin]=never_ends [memory]=without_memory [taken]=others_took
  [poison]=poisoned [two_instances]=two_instances
)
summary=()
failed=0
for part in "${parts[@]}"; do
  began=$SECONDS log="$OUT/fault-$part.log"
  # no configuration: the machine may lack the plugins that it names
  # at the limit pytest is interrupted, and says what failed before
  timeout -s INT -k 10 "${FAULT_LIMIT:-300}" python3 -m pytest -x -c /dev/null --rootdir=. --import-mode=importlib \
    -p no:cacheprovider -q -W ignore --log-level=INFO -rA --tb=short tests/gpu/test_gpu_faults.py \
    -k "${TESTS[$part]:-$part}" > "$log" 2>&1
  status=$?
  [ $status -eq 0 ] || failed=1
  summary+=("$(printf '%-14s exit %3d after %4d s: %s' "$part" $status $((SECONDS - began)) "$(tail -n 1 "$log" | cut -c1-90)")")
  grep -hE "INFO +tests.*(silence|margin)|^(FAILED|ERROR)|^E  " "$log" | cut -c1-200 | head -n 12
done
printf '%s\n' "${summary[@]}" | tee "$OUT/faults.txt"
exit $failed
