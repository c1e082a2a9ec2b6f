"""The command line: one file per group of commands, errors in one line with the fix.

A shell around the other rooms; nothing imports it.
"""

__all__ = ["main"]
