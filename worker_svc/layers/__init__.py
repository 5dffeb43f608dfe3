"""Layers: pure functions of their arguments and weights. They know no batch, no message, no global."""
