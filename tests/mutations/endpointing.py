"""Faults in the endpointer."""

from __future__ import annotations

from mutations.mutation import Mutation

ENDPOINTER = ("tests/endpointing/test_endpointer.py",)

MUTATIONS: list[Mutation] = [
    Mutation(
        "spikes of an utterance are counted in the stream",
        "endpointing/ctc_spikes.py",
        "return self._replace(frames=tuple(spike - frame for spike in self.frames))",
        "return self",
        ("tests/endpointing/test_ctc_spikes.py",),
    ),
    Mutation(
        "a token that is cut through spikes again",
        "endpointing/endpointer.py",
        "return EndpointState(state.frames, start=end, idle_from=state.frames, label=state.label, last_speech=end - 1)",
        "return EndpointState(state.frames, start=end, idle_from=state.frames, last_speech=end - 1)",
        ENDPOINTER,
    ),
    Mutation(
        "a pause ends an utterance one frame late",
        "endpointing/endpointer.py",
        'return "pause" if state.silence >= self.pause_frames else None',
        'return "pause" if state.silence > self.pause_frames else None',
        ENDPOINTER,
    ),
    Mutation(
        "an utterance reaches into the one before",
        "endpointing/endpointer.py",
        "return max(state.start, spike - self.lead_frames)",
        "return max(0, spike - self.lead_frames)",
        ENDPOINTER,
    ),
    Mutation(
        "silence is counted from the end of the utterance, not from the endpoint",
        "endpointing/endpointer.py",
        "return EndpointState(state.frames, start=end, idle_from=state.frames, label=state.label, last_speech=end - 1)",
        "return EndpointState(state.frames, start=end, idle_from=end, label=state.label, last_speech=end - 1)",
        ENDPOINTER,
    ),
    Mutation(
        "faint spikes count across a pause",
        "endpointing/endpointer.py",
        "if state.silence >= self.pause_frames:",
        "if False:",
        ENDPOINTER,
    ),
]
