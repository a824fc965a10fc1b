"""Faults in the measures."""

from __future__ import annotations

from mutations.mutation import Mutation

MUTATIONS: list[Mutation] = [
    Mutation(
        "cached word times outlive the audio file",
        "evaluation/alignment.py",
        'return hashlib.sha256(f"{name}\\n{audio}\\n{utterance.text}".encode()).hexdigest()',
        'return hashlib.sha256(f"{name}\\n{utterance.text}".encode()).hexdigest()',
        ("tests/evaluation/test_alignment.py",),
    ),
    Mutation(
        "points that are equally good exclude each other",
        "evaluation/tuning.py",
        "return one.figures != other.figures and all(a <= b for a, b in zip(one.figures, other.figures, strict=True))",
        "return one is not other and all(a <= b for a, b in zip(one.figures, other.figures, strict=True))",
        ("tests/evaluation/test_tuning.py::test_the_front_has_the_points_that_no_other_beats",),
    ),
    Mutation(
        "the length of measured audio depends on its cutting",
        "evaluation/timed_session.py",
        "return self._samples / self._rate",
        "return self._samples / self._rate + 1e-9 * len(self.wall_seconds)",
        ("tests/evaluation/test_exports.py",),
    ),
    Mutation(
        "a recording without reference times has a first-token delay by its own word times",
        "evaluation/latency.py",
        "starts = [one.word.start_seconds for one in shown] if reference is None else [one.start for one in reference]",
        "starts = [word.start for word in reference] if reference else [one.word.start_seconds for one in shown]",
        ("tests/evaluation/test_latency.py",),
    ),
    Mutation(
        "text that disappears without a Final is not erased",
        "evaluation/stability.py",
        "for texts in stream.utterances():",
        "for texts in stream.finished():",
        ("tests/evaluation/test_stability.py",),
    ),
    Mutation(
        "a CTM in the order of the manifest, which sclite refuses",
        "evaluation/exports.py",
        "for one in sorted(results, key=lambda one: _name(one.id))",
        "for one in results",
        ("tests/evaluation/test_exports.py",),
    ),
]
