"""The command line: a thin shell around the package, one module for each command.

Commands import the package inside their functions, so that `headsync --help` starts quickly.
"""

from headsync.cli.app import main as main
