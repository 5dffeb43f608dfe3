"""What a model is (its spec, read from config.json) and the one decoder built from it."""
