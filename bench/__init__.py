"""Measurements of speed, size and what is found: one command each, one JSON object each; see README.md."""
