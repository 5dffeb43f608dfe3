"""Grammars of outputs: compiled before a request is accepted, followed token by token, as masks.

All of it runs in threads of the core's process; llguidance computes without Python's lock.
"""
