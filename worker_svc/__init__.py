"""The worker: one process per tensor-parallel rank. Obeys plans, owns tensors, knows no text."""
