"""Seeded faults, one module per package of src/headsync, each with a list `MUTATIONS`.

A new module needs no registration: the runner, tests/mutants.py, reads every module of this folder.
"""
