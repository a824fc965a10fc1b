"""Faults in the engines, their state and model folders."""

from __future__ import annotations

from mutations.mutation import Mutation

ONNX = "tests/engine/test_onnx.py"
FOLDER = "tests/test_model_folder.py"

MUTATIONS: list[Mutation] = [
    Mutation(
        "a step reads slots of other hypotheses",
        "engine/kv_pool.py",
        "return np.union1d(self.slots_BL, [EMPTY])",
        "return np.arange(self.pool.used)",
        (f"{ONNX}::test_decoding_is_a_function_of_its_arguments",),
    ),
    Mutation(
        "the empty slot is visible",
        "engine/kv_pool.py",
        "hidden_BP[:, EMPTY] = HIDDEN",
        "pass",
        (ONNX,),
    ),
    Mutation(
        "pools are never compacted",
        "engine/kv_pool.py",
        "if self.pool.used <= 2 * self.slots_BL.shape[1] + SPARE_SLOTS:",
        "if self.pool.used:",
        (f"{ONNX}::test_slots_that_no_hypothesis_names_are_dropped",),
    ),
    Mutation(
        "joined rows keep the slots of their own pool",
        "engine/kv_pool.py",
        "moved_BL = np.where(slots_BL == EMPTY, EMPTY, slots_BL + offset)",
        "moved_BL = slots_BL",
        (f"{ONNX}::test_states_survive_pickling_and_joining",),
    ),
    Mutation(
        "two continuations share a buffer of frames",
        "engine/frame_buffer.py",
        "fits = self._used == have and self._array is not None and end <= self._array.shape[axis]",
        "fits = self._array is not None and end <= self._array.shape[axis]",
        ("tests/engine/test_frame_buffer.py",),
    ),
    Mutation(
        "checksums are not compared",
        "model_folder.py",
        "if sha256(path / name) != expected:",
        "if False:",
        (FOLDER,),
    ),
    Mutation(
        "files meant to be edited have checksums",
        "model_folder.py",
        "names = sorted(file.name for file in path.iterdir() if file.is_file() and file.name not in EDITABLE)",
        "names = sorted(file.name for file in path.iterdir() if file.is_file())",
        (FOLDER,),
    ),
]
