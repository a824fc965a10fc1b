"""Corpora: each module prepares one public corpus into manifests (`manifest.py`), the only form training reads."""
