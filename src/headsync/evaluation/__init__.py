"""Evaluation of recognisers and language models.

error_rate, formatting, normalise   errors of words, characters, case and punctuation
latency, stability                  delays of words, and erased text
reference_times, alignment, exports files of word times, forced alignment, formats of other tools
timed_session, evaluate             a measured session, and the report of a manifest
tuning, perplexity                  error rate against delay, language models
plots, delay_figures, figure_files  figures
"""
