"""`python -m headsync` is the command `headsync`."""

from headsync.cli import main

main()
