"""Fuzzing of every parser of bytes from outside: `run.py` drives the harnesses."""
