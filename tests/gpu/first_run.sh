#!/usr/bin/env bash
# Everything that needs a GPU, in one go, for a machine that is there for minutes: each part runs on its own and leaves
# a log, a failure ends no other. From the repository's root, PYTHONPATH holding . and client and what the worker needs.
#   OUT=FOLDER tests/gpu/first_run.sh [PART ...]     parts: check, tests, ranks, all_reduce, steps, steps8b,
#     serve, serve8b, tp2, tp4, tp8 (TP_MODEL=8B), faults; those of several GPUs only where named
set -uo pipefail
export OUT=${OUT:-bench/results} PYTHONUNBUFFERED=1 TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-/tmp/triton}
mkdir -p "$OUT"
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(check tests ranks steps steps8b serve serve8b)

# no configuration: the machine may lack the plugins that it names
PYTEST=(python3 -m pytest -c /dev/null --rootdir=. --import-mode=importlib -p no:cacheprovider -q
        -W ignore --log-level=INFO -rA --tb=short)

run() { # NAME LIMIT_S COMMAND...
  local name=$1 limit=$2 began=$SECONDS
  shift 2
  timeout "$limit" "$@" > "$OUT/$name.log" 2>&1
  echo "== $name: exit $? after $((SECONDS - began)) s"
}

serve() { # NAME MODEL POISSON_RATE POISSON_COUNT CLIENTS...
  local name=$1 model=$2 rate=$3 count=$4 port=50071 pid
  shift 4
  python3 -m bench.random_model "$model" "/tmp/model-$model"
  python3 -m scheduler_svc --model "/tmp/model-$model" --device cuda --load-format random --port $port \
    --admin-port 0 --metrics-port 9470 --max-model-len 4096 --frontends 4 --run-dir "/tmp/run-$model" ${SERVE_FLAGS:-} > "$OUT/$name-service.log" 2>&1 &
  pid=$!
  for _ in $(seq 600); do
    python3 -c 'import urllib.request as u; u.urlopen("http://127.0.0.1:9470/readyz", timeout=2)' 2> /dev/null && break
    kill -0 $pid 2> /dev/null || break
    sleep 0.2
  done
  kill -0 $pid 2> /dev/null || { echo "the service ended before it was ready"; return; }
  echo "ready after $SECONDS s of the script"
  timeout 60 python3 -m bench.first_token --target 127.0.0.1:$port --json "$OUT/$name-idle.json"
  timeout 60 python3 -m bench.slow_streams --target 127.0.0.1:$port --rate "$rate"
  timeout 150 python3 -m bench.serving --target 127.0.0.1:$port --vocab-size 256 --rounds 1 \
    --prompt-tokens 128 --output-tokens 256 --processes 4 --clients "$@" --json "$OUT/$name.json"
  timeout 120 python3 -m bench.serving --target 127.0.0.1:$port --vocab-size 256 --rounds 2 \
    --workload nano --processes 8 --json "$OUT/$name-nano.json"
  timeout 120 python3 -m bench.serving --target 127.0.0.1:$port --vocab-size 256 --rounds 1 --warm-up-rounds 0 \
    --workload poisson --rate "$rate" --count "$count" --processes 8 --json "$OUT/$name-poisson.json"
  python3 -c 'import urllib.request as u; print(u.urlopen("http://127.0.0.1:9470/metrics", timeout=5).read().decode())' > "$OUT/$name-metrics.txt"
  kill $pid
  wait $pid
}

for part in "${parts[@]}"; do
  case $part in
    check) run check 60 python3 -c '
import torch, triton, flash_attn_3._C, grpc, zmq, transformers
print(torch.__version__, triton.__version__, torch.cuda.get_device_name(), transformers.__version__)
print(torch.ops.flash_attn_3.fwd.default._schema)'; cat "$OUT/check.log" ;;
    tests)
      run tests "${TESTS_LIMIT:-240}" "${PYTEST[@]}" -n 6 tests/gpu --ignore tests/gpu/test_gpu_faults.py \
        --ignore tests/gpu/test_gpu_rank_sum.py --ignore tests/gpu/test_gpu_ranks.py tests/model/gpu_runner/test_filter_rows.py &
      run kernels "${TESTS_LIMIT:-240}" "${PYTEST[@]}" -n 8 tests/model/kernels --ignore tests/model/kernels/test_hopper.py &
      wait
      grep -hE "INFO.*(error|margin)|^(FAILED|ERROR)|^E  |passed|failed" "$OUT/tests.log" "$OUT/kernels.log" | cut -c1-250 | head -n 70 ;;
    # one after the other: ranks that wait for each other spin on their GPUs
    ranks) run ranks "${RANKS_LIMIT:-400}" "${PYTEST[@]}" tests/gpu/test_gpu_rank_sum.py tests/gpu/test_gpu_ranks.py
      grep -hE "^(FAILED|ERROR|SKIPPED)|^E  |passed|failed" "$OUT/ranks.log" | cut -c1-250 | head -n 40 ;;
    all_reduce) run all_reduce 150 python3 -m bench.all_reduce ${ALL_REDUCE_FLAGS:---blocks 32 64 128} --json "$OUT/all_reduce.json"
      cut -c1-220 "$OUT/all_reduce.log" | tail -n 60 ;;
    faults) tests/gpu/faults.sh ;;
    tp2 | tp4 | tp8) SERVE_FLAGS="${SERVE_FLAGS:-} --tensor-parallel-size ${part#tp}" serve "$part" "${TP_MODEL:-8B}" 12 240 1 8 64 \
        2>&1 | tee "$OUT/$part.log"; tail -n 30 "$OUT/$part-service.log" | cut -c1-220 ;;
    steps) run steps "${STEPS_LIMIT:-150}" python3 -m bench.gpu_step --models 0.6B ${STEPS_FLAGS:---backends fa3 triton --contexts 1024 4096} \
        --json "$OUT/steps.json" --profile "$OUT"
      cut -c1-200 "$OUT/steps.log" ;;
    steps8b) run steps8b 120 python3 -m bench.gpu_step --models 8B --contexts 1024 4096 --rows 1 8 64 256 --json "$OUT/steps8b.json"
      cut -c1-200 "$OUT/steps8b.log" ;;
    serve) serve serve 0.6B 16 400 1 8 64 2>&1 | tee "$OUT/serve.log"; tail -n 30 "$OUT/serve-service.log" | cut -c1-220 ;;
    serve8b) serve serve8b 8B 12 240 1 8 64 2>&1 | tee "$OUT/serve8b.log"; tail -n 30 "$OUT/serve8b-service.log" | cut -c1-220 ;;
  esac
done
gzip -f "$OUT"/step-*.json 2> /dev/null
echo "all parts after $SECONDS s"
