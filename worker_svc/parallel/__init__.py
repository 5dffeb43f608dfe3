"""The ranks of one model and what they exchange. Knows nothing of layers."""
