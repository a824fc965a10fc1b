"""Comparisons of systems (`headsync compare`).

plan             the comparison file
runs, reuse      training and evaluation, and the reuse of earlier runs
statistics       differences between systems, and how heads share attention
report, figures  the output
"""
