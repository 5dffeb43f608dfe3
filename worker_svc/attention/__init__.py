"""Attention over the paged cache, one file per backend."""
