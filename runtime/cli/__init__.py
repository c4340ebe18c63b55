"""The command line: one verb, one module."""
