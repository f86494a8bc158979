"""A PDF at which the parser's process crashed, read by a parser that is slower and stops in time."""

from lnk.documents.pdf import read_again as read

__all__ = ["read"]
