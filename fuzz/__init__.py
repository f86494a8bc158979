"""Longer runs than the tests have time for: real files, broken by chance."""
