"""From text to token ids and back. Knows nothing of gRPC, requests or scheduling."""
