"""Triton kernels for GPUs, each beside the torch function that it must equal.

The modules import triton at the top, and the worker runs without it: import them only where a
device has been chosen that needs them, after `support.require_triton`.
"""
