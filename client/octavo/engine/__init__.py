"""Offline use: an engine is the SDK over a private service that it starts itself."""
