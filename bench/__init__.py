"""Measurements of speed and size: one command each, one JSON object each; see README.md."""
