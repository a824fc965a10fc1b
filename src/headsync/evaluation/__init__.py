"""Evaluation of recognisers and language models.

error_rate, formatting, normalise   errors of words, characters, case and punctuation
latency, stability                  delays of words, and erased text
reference_times, exports            files of word times; CTM and trn
timed_session, evaluate             a measured session, and the report of a manifest
speed, perplexity, plots            cost of a stream, language models, figures of attention
"""
