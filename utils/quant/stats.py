"""What GPTQ and AWQ want to know about a layer's inputs, summed up token by token.

The squared error of a layer's output is a quadratic form in the error of its weight:

    mean over tokens of |D x|^2 = sum over outputs of d S d^T      S = X^T X / n, d a row of D

So the matrix S replaces all the calibration inputs, however many there were.
"""

from __future__ import annotations

import torch
from torch import Tensor


class InputStats:
    """Running sums over the inputs of one linear layer.

    Args:
        width: input channels.
        device: where the sums are kept.
    """

    def __init__(self, width: int, device: torch.device | str = "cpu") -> None:
        self.num_tokens = 0
        self._outer = torch.zeros(width, width, device=device)
        self._magnitude = torch.zeros(width, device=device)

    @classmethod
    def of(cls, inputs: Tensor) -> InputStats:
        """The sums over one tensor of inputs, [..., width]."""
        stats = cls(inputs.shape[-1], inputs.device)
        stats.add(inputs)
        return stats

    @torch.no_grad()
    def add(self, inputs: Tensor) -> None:
        """Add tokens: [..., width].

        Raises:
            ValueError: the width is another, or an input is not finite.
        """
        width = len(self._magnitude)
        if inputs.shape[-1] != width:
            raise ValueError(f"Expected inputs of {width} channels; got {inputs.shape[-1]}.")
        x = inputs.detach().reshape(-1, width).to(self._outer.device, torch.float32)
        if not torch.isfinite(x).all():
            raise ValueError("Calibration inputs are not finite (inf or nan). Check the model.")
        self._outer.addmm_(x.t(), x)
        self._magnitude += x.abs().sum(0)
        self.num_tokens += len(x)

    def __add__(self, other: InputStats) -> InputStats:
        """The sums over the tokens of both.

        Raises:
            ValueError: the widths differ.
        """
        if len(self._magnitude) != len(other._magnitude):
            raise ValueError(
                f"Statistics of {len(self._magnitude)} and of {len(other._magnitude)} channels are "
                "not of the same layer."
            )
        both = InputStats(len(self._magnitude), self._outer.device)
        both.num_tokens = self.num_tokens + other.num_tokens
        both._outer = self._outer + other._outer
        both._magnitude = self._magnitude + other._magnitude
        return both

    @property
    def second_moment(self) -> Tensor:
        """S = X^T X / n, [width, width]."""
        return self._outer / self._count()

    @property
    def hessian(self) -> Tensor:
        """Of the squared output error with respect to one row of the weight: 2 S."""
        return 2 * self.second_moment

    @property
    def mean_abs(self) -> Tensor:
        """The mean magnitude of each input channel, [width]."""
        return self._magnitude / self._count()

    def _count(self) -> int:
        if self.num_tokens == 0:
            raise ValueError("No calibration inputs were added yet.")
        return self.num_tokens


def output_error(delta: Tensor, second_moment: Tensor) -> Tensor:
    """The mean over tokens of |delta x|^2, for each output: [out].

    Args:
        delta: the error of a weight, [out, in].
        second_moment: see `InputStats`, [in, in].
    """
    return ((delta @ second_moment) * delta).sum(-1)


def relative_error(weight: Tensor, quantized: Tensor, stats: InputStats) -> float:
    """The squared error of a layer's output on the calibration inputs, relative to its square.

    Args:
        weight, quantized: the weight before, and after it was read back; [out, in].
    """
    moment = stats.second_moment
    weight = weight.detach().float()
    error = output_error(quantized.detach().float() - weight, moment).sum()
    return float(error / output_error(weight, moment).sum())
