#!/usr/bin/env bash
# The same calls with grpcurl, which learns the API from the service's reflection.
# Usage: ./grpcurl.sh [TARGET], with `octavo serve` running.
set -euo pipefail
target=${1:-127.0.0.1:50051}

echo "# what is there"
grpcurl -plaintext "$target" list
grpcurl -plaintext "$target" describe octavo.v1.InferenceService.Generate

echo "# is it ready"
grpcurl -plaintext "$target" grpc.health.v1.Health/Check

echo "# which model"
grpcurl -plaintext -d '{}' "$target" octavo.v1.InferenceService/GetModelInfo

echo "# a streamed answer: one message for each piece of news"
grpcurl -plaintext -d '{
  "generation": {
    "prompt": {"chat": {"messages": [{"role": "user", "content": "What is the capital of France?"}]}},
    "sampling": {"temperature": 0},
    "stopping": {"max_tokens": 50}
  }
}' "$target" octavo.v1.InferenceService/Generate

echo "# the whole answer in one message, from plain text"
grpcurl -plaintext -d '{
  "generation": {
    "prompt": {"text": "1, 2, 3,"},
    "sampling": {"temperature": 0},
    "stopping": {"max_tokens": 8}
  }
}' "$target" octavo.v1.InferenceService/GenerateUnary
