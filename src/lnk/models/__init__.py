"""Embedding models in runtimes on this machine: their names, what is known of them, where they are, and serving one.

Knows nothing of memory, agents or what vectors are for. Nothing but this machine's own addresses is ever contacted.
"""
