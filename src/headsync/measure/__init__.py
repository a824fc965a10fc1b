"""How good, how late and how costly: measured around a recogniser, never inside it.

errors    words wrong, with an interval
latency   how long after its end a word appears and stays
cost      the paper's ratio r, eq. (10)
timing    a session with a stopwatch
evaluate  all of it over a manifest
"""
