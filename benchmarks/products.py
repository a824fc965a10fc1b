"""The matrix products of a training step: recorded while the step runs, then repeated alone with allocated operands.

A convolution counts as the product with its unfolded input (im2col), and so do its gradients. Nothing else is repeated:
no bias, norm, softmax, dropout or copy. Requires only PyTorch, so that it can record any network in any environment.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
PLACES = {aten.mm: 0, aten.bmm: 0, aten.addmm: 1, aten.baddbmm: 1}  # index of the first factor among the arguments


class Factor(NamedTuple):
    """A matrix, or several of one size, and whether it is stored column-major."""

    shape: tuple[int, ...]
    turned: bool = False

    @classmethod
    def of(cls, x: Tensor) -> Factor:
        return cls(tuple(x.shape), x.stride(-1) != 1 and x.stride(-2) == 1)

    def in_memory(self, room: Tensor) -> Tensor:
        """A matrix of this shape and layout, from allocated memory."""
        *many, rows, columns = self.shape
        flat = room[: torch.Size(self.shape).numel()]
        return flat.view(*many, columns, rows).transpose(-1, -2) if self.turned else flat.view(self.shape)


Product = tuple[Factor, Factor]


class Products(TorchDispatchMode):
    """Records all matrix products inside the context, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[Product] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outcome = func(*args, **(kwargs or {}))
        if (place := PLACES.get(func.overloadpacket)) is not None:
            self.done.append((Factor.of(args[place]), Factor.of(args[place + 1])))
        elif func is aten.convolution.default:
            self.done.append(_unfolded(outcome, args[1])[0])
        elif func is aten.convolution_backward.default:
            wanted = args[-1]  # gradients of input, weight, bias
            gradients = _unfolded(args[0], args[2])[1:]
            self.done += [product for product, asked in zip(gradients, wanted, strict=False) if asked]
        return outcome

    @property
    def operations(self) -> float:
        """Multiplications and additions."""
        return sum(2.0 * torch.Size(left.shape).numel() * right.shape[-1] for left, right in self.done)

    def ready(self) -> Callable[[], float]:
        """A function that repeats all products and returns CPU seconds."""
        sizes = [[torch.Size(factor.shape).numel() for factor in product] for product in self.done]
        results = [(*left.shape[:-1], right.shape[-1]) for left, right in self.done]
        rooms = [torch.randn(max(column)) for column in zip(*sizes, strict=True)]
        out = torch.empty(max(torch.Size(shape).numel() for shape in results))
        calls = [
            (left.in_memory(rooms[0]), right.in_memory(rooms[1]), out[: torch.Size(shape).numel()].view(shape))
            for (left, right), shape in zip(self.done, results, strict=True)
        ]

        def seconds() -> float:
            began = time.process_time()
            with torch.no_grad():
                for left, right, result in calls:
                    torch.matmul(left, right, out=result)
            return time.process_time() - began

        return seconds


def _unfolded(output: Tensor, weight: Tensor) -> tuple[Product, Product, Product]:
    """A convolution as a product, and the products of its gradients: of the input, of the weight."""
    kernels, taps = weight.shape[0], weight[0].numel()
    places = output.numel() // kernels
    unfolded, kernel, grown = Factor((places, taps)), Factor((taps, kernels), True), Factor((places, kernels))
    return (
        (unfolded, kernel),
        (grown, Factor((kernels, taps))),
        (Factor((kernels, places), True), unfolded),
    )


def watched(step: Callable[[], Any]) -> Products:
    """Run a step once and return its products."""
    with Products() as products:
        step()
    return products


class Times(NamedTuple):
    """CPU seconds, medians of all rounds; and the peak memory before the products allocate theirs."""

    gradient: float
    adam: float
    products: float
    operations: float
    peak_mb: float


def measure(gradient: Callable[[], Any], adam: Callable[[], Any], rounds: int) -> Times:
    """Alternate between steps and their products. Two steps warm up; the first of them is recorded."""
    products = watched(gradient)
    adam()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    ready = products.ready()
    gradient()  # warms up the allocator beside the memory of the products
    ready()
    turns = [(seconds(gradient), seconds(adam), ready()) for _ in range(rounds)]
    step, update, product = (statistics.median(column) for column in zip(*turns, strict=True))
    return Times(step, update, product, products.operations, peak_mb)


def seconds(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began
