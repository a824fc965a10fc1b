"""The command line: a thin shell around the package, one file for each command.

Commands import what they run inside their functions, so that `headsync --help` answers at once.
"""

from headsync.cli.app import main

__all__ = ["main"]
