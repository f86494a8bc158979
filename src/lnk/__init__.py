"""Link Memory: a folder of text made searchable for a person's AI agents."""

# A constant, since asking the installed metadata costs 60 ms at every start.
__version__ = "0.1.0"
