"""Comparisons of systems (`headsync compare`).

plan, schema   the comparison file
runs, reuse    training and evaluation, and the reuse of earlier runs
statistics     differences between systems, and how heads share attention
report, tables, figures   the output
"""
