"""Layers: pure functions of their arguments and weights. They know no message and no global."""
