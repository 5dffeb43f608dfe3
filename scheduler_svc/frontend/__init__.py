"""The text world: gRPC, validation, tokenizer, streams. Never schedules, knows no block id."""
