"""Figures of attention weights, as in Figure 1 of the paper.

The weights are those of the search: the recording is streamed through a recogniser whose engine records every step, and
the steps of the final text are drawn.

Shapes: N layers, H heads, L output steps, T encoder frames.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headsync.engine import IntArray
from headsync.errors import ConfigError
from headsync.evaluation.figure_files import save_figure
from headsync.events import Final
from headsync.frontend.audio import Piece
from headsync.model_folder import ModelFolder, find, load_folder
from headsync.recognizer import Recognizer
from headsync.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from headsync.engine.tracing import TracedStep

END = "⟨eos⟩"
INK, HALT = "Blues", "#c8102e"


@dataclass(frozen=True)
class AttentionMaps:
    mechanism: str
    text: str
    labels: tuple[str, ...]  # the token of each step
    weights_NHLT: npt.NDArray[np.float32]
    end_NHL: IntArray  # frames consumed
    first_frame: int  # of the utterance, counted in the recording
    frame_seconds: float


def attention_of(model: str | None, pieces: Iterable[Piece], threads: int = 1) -> list[AttentionMaps]:
    """Recognise a recording and return the attention of each utterance with text."""
    from headsync.engine.tracing import TracingEngine

    folder = load_folder(find(model))
    engine = TracingEngine.load(folder, threads)
    assert isinstance(engine, TracingEngine)
    session = Recognizer(folder, engine, folder.config.decoding).session()
    events = [event for samples, rate in pieces for event in session.push(samples, rate)] + session.finish()
    finals = [event for event in events if isinstance(event, Final) and event.text]
    keys = _keys_of(finals, engine.steps, folder.vocabulary)
    return [_attention(folder, final, key, engine.steps) for final, key in zip(finals, keys, strict=True)]


def draw(attention: AttentionMaps, path: Path, layer: int | None = None) -> None:
    """Draw the heads of a layer side by side (time to the right, output steps downwards) as PNG or SVG.

    `layer` counts from 1 among the layers with cross-attention; None is the top layer.
    """
    layers = len(attention.weights_NHLT)
    if layer is not None and not 1 <= layer <= layers:
        raise ConfigError(f"layer {layer} does not exist; the layers with cross-attention are 1 to {layers}")
    save_figure(lambda: picture(attention, layer or layers), path)


def picture(attention: AttentionMaps, layer: int) -> Figure:
    from matplotlib.figure import Figure

    layers, heads, steps, _ = attention.weights_NHLT.shape
    figure = Figure(figsize=(0.6 + 2.2 * heads, 1.0 + 0.24 * (steps + 1)), layout="constrained")
    axes = figure.subplots(1, heads, sharey=True, squeeze=False)[0]
    for head, axis in enumerate(axes):
        _draw_head(axis, attention, layer - 1, head)
    figure.suptitle(f"{attention.mechanism}, decoder layer {layer} of {layers}", fontsize="medium")
    figure.supxlabel("time, s", fontsize="medium")
    return figure


def _keys_of(
    finals: list[Final], steps: dict[tuple[int, ...], TracedStep], vocabulary: Vocabulary
) -> list[tuple[int, ...]]:
    """Utterance and tokens of each final text: the first later utterance with this text."""
    keys: list[tuple[int, ...]] = []
    for final in finals:
        after = keys[-1][0] if keys else 0
        later = (key for key in steps if key[0] > after and len(key) == len(final.halts) + 1)
        keys.append(min((key for key in later if vocabulary.decode(key[1:]) == final.text), key=lambda key: key[0]))
    return keys


def _attention(
    folder: ModelFolder, final: Final, key: tuple[int, ...], steps: dict[tuple[int, ...], TracedStep]
) -> AttentionMaps:
    """The steps of a text in order, and the end step."""
    looked = [steps[key[: length + 1]] for length in range(len(key))]
    frames = max(one.weights_NHT.shape[2] for one in looked)
    rows = [np.pad(one.weights_NHT, ((0, 0), (0, 0), (0, frames - one.weights_NHT.shape[2]))) for one in looked]
    labels = tuple(folder.vocabulary.tokens[token - 1] for token in key[1:])
    end_NHL = np.stack([one.end_NH for one in looked], 2)
    config = folder.config
    return AttentionMaps(
        config.decoder.attention,
        final.text,
        (*labels, END),
        np.stack(rows, 2),
        end_NHL,
        final.halts[0] - int(end_NHL[:, :, 0].max()),
        config.frame_rate.seconds,
    )


def _draw_head(axis: Axes, attention: AttentionMaps, layer: int, head: int) -> None:
    """Weights in blue, all heads of the layer on one scale; in red the last frame that each step consumed."""
    weights_HLT = attention.weights_NHLT[layer]
    end_L = attention.end_NHL[layer, head]
    _, steps, frames = weights_HLT.shape
    first = attention.first_frame * attention.frame_seconds
    extent = (first, first + frames * attention.frame_seconds, steps - 0.5, -0.5)
    most = float(weights_HLT.max()) or 1.0
    axis.imshow(weights_HLT[head], cmap=INK, vmin=0.0, vmax=most, aspect="auto", interpolation="nearest", extent=extent)
    halts = first + (end_L - 0.5) * attention.frame_seconds
    looked = end_L > 0
    axis.plot(halts[looked], np.flatnonzero(looked), "|", color=HALT, markersize=9, markeredgewidth=1.5)
    axis.set_title(f"head {head + 1}", fontsize="medium")
    axis.set_yticks(range(steps), labels=attention.labels)
    axis.tick_params(length=2, color="0.6")
