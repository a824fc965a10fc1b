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
        "state.frames, start=end, idle_from=state.frames, label=state.label, last_speech=end - 1, noise=state.noise",
        "state.frames, start=end, idle_from=state.frames, last_speech=end - 1, noise=state.noise",
        ENDPOINTER,
    ),
    Mutation(
        "the first spike of a pair is not remembered",
        "endpointing/endpointer.py",
        "pair_first = spikes.frames[-1] if probability >= pair else pair_first",
        "pair_first = spikes.frames[0] if probability >= pair else pair_first",
        ENDPOINTER,
    ),
    Mutation(
        "a pair may be further apart",
        "endpointing/endpointer.py",
        "is_pair = spikes.frames[0] <= pair_first < spikes.frames[-1] <= pair_first + self.pair_frames",
        "is_pair = spikes.frames[0] <= pair_first < spikes.frames[-1] <= pair_first + self.pair_frames + 1",
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
        "state.frames, start=end, idle_from=state.frames, label=state.label, last_speech=end - 1, noise=state.noise",
        "state.frames, start=end, idle_from=end, label=state.label, last_speech=end - 1, noise=state.noise",
        ENDPOINTER,
    ),
    Mutation(
        "faint spikes count across a pause",
        "endpointing/endpointer.py",
        "if state.silence >= self.pause_frames:",
        "if False:",
        ENDPOINTER,
    ),
    Mutation(
        "the noise floor takes in frames that a step has not taken",
        "endpointing/endpointer.py",
        "now = now._replace(noise=now.noise.add(level_T[:frames]))",
        "now = now._replace(noise=now.noise.add(level_T))",
        ENDPOINTER,
    ),
    Mutation(
        "pitch counts in the level of a frame",
        "frontend/features.py",
        "decibels: FloatArray = frames[:, :NUM_MEL].mean(1, dtype=np.float64) * (10 / np.log(10))",
        "decibels: FloatArray = frames.mean(1, dtype=np.float64) * (10 / np.log(10))",
        ("tests/endpointing/test_noise_floor.py::test_levels_are_decibels",),
    ),
]
