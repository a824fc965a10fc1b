"""The reference engine: the trained network, run by PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
from safetensors import SafetensorError

from headsync.engine import Decoded, Encoded, IntArray, Memory, State, Window, graphs_of
from headsync.errors import ConfigError, ModelError
from headsync.frontend.audio import FloatArray
from headsync.model_folder import ModelFolder

try:
    import torch
    from safetensors.torch import load_file
except ModuleNotFoundError:
    raise ModelError("this engine requires PyTorch, which is not installed; pip install 'headsync[train]'") from None

from headsync.attention import base
from headsync.nn import decoder
from headsync.nn.model import Model


class TorchEngine:
    """Wraps a `Model`; every call is a pure function of its arguments."""

    def __init__(self, model: Model) -> None:
        self.model = model.eval()

    @classmethod
    def load(cls, folder: ModelFolder, threads: int) -> TorchEngine:
        torch.set_num_threads(threads)
        if graphs_of(folder).get("int8"):  # its weights belong to its graphs
            raise ModelError(f"{folder.path}: PyTorch does not run int8; use the model that this one was made from")
        try:
            model = Model(folder.config, folder.config.columns, folder.vocabulary.size)
            model.load_state_dict(load_file(folder.weights))
        except ConfigError as error:
            raise ModelError(f"{folder.path}: {error}; copy or train the model again") from None
        except (SafetensorError, RuntimeError, OSError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ModelError(
                f"{folder.weights}: damaged or of another model ({reason}); copy or train it again"
            ) from None
        return cls(model)

    def start_front(self, batch: int) -> State:
        return _arrays(self.model.encoder.start_front(batch))

    @torch.inference_mode()
    def embed(self, features_BTF: FloatArray, state: State) -> tuple[FloatArray, State]:
        features = torch.from_numpy(features_BTF).to(next(self.model.parameters()).dtype)
        embedded, after = self.model.encoder.embed(features, _tensors(state))
        return _array(embedded), _arrays(after)

    def start_encoder(self, batch: int) -> State:
        return _arrays(self.model.encoder.start(batch))

    @torch.inference_mode()
    def encode(self, x_BWE: FloatArray, length_B: IntArray, state: State, centre: int) -> Encoded:
        x, length = torch.from_numpy(x_BWE), torch.from_numpy(length_B)
        frames, after = self.model.encoder.step(x, length, _tensors(state), centre)
        memory = self.model.decoder.project(frames)
        log_ctc = self.model.ctc(frames).log_softmax(-1)
        return Encoded(_array(log_ctc), Memory(*_arrays(memory)), _arrays(after))

    @torch.inference_mode()
    def place(self, memory: Memory, first: int) -> Memory:
        return Memory(*_arrays(self.model.decoder.place(decoder.ProjectedFrames(*_tensors(memory)), first)))

    def start_decoder(self, batch: int, threshold: float | None = None) -> State:
        own = self.model.decoder.attending[0].cross.mechanism.threshold
        threshold_B = np.full(batch, own if threshold is None else threshold, np.float32)
        return _arrays(self.model.decoder.start(batch)), threshold_B

    @torch.inference_mode()
    def decode(self, tokens_B: IntArray, memory: Memory, state: State, window: Window) -> Decoded:
        inner, threshold_B = state
        stepped = self.model.decoder.step(
            torch.from_numpy(tokens_B),
            decoder.ProjectedFrames(*_tensors(memory)),
            decoder.DecoderState(*_tensors(inner)),
            base.AttentionWindow(*_tensors((*window, threshold_B))),
        )
        log_p = stepped.logits_BV.log_softmax(-1)
        ready, weights = _array(stepped.ready_B), _array(stepped.weights_BHT)
        return Decoded(_array(log_p), _array(stepped.end_BNH), ready, weights, (_arrays(stepped.state), threshold_B))


def _array(tensor: torch.Tensor) -> Any:
    return tensor.detach().numpy()


def _arrays(tree: Any) -> Any:
    return _array(tree) if isinstance(tree, torch.Tensor) else tuple(_arrays(part) for part in tree)


def _tensors(tree: Any) -> Any:
    return torch.from_numpy(tree) if isinstance(tree, np.ndarray) else tuple(_tensors(part) for part in tree)
