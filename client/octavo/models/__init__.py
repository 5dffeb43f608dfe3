"""How a model's name becomes a folder on disk. Knows nothing of services, gRPC or inference."""
