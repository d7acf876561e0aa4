"""What the archived tools get wrong on a CPU, and the cure. Applied at run time, one by one.

No third-party file is edited or copied. Each patch is a function that says what is wrong, where,
and why the cure is right; tests/pipeline/quantizers/test_quantize_routes.py shows that it cures.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


@contextlib.contextmanager
def cloned_state_dict(module: nn.Module) -> Iterator[None]:
    """Let `module.state_dict()` return copies while the context is open."""
    original = module.state_dict

    def state_dict(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in original(*args, **kwargs).items()}

    object.__setattr__(module, "state_dict", state_dict)
    try:
        yield
    finally:
        object.__delattr__(module, "state_dict")


def restore_weights_in_autoawq() -> None:
    """Make autoawq's scale search restore the weights that it tries scales on.

    Wrong: `AwqQuantizer._compute_best_scale` saves the weights with `.cpu()`, multiplies them in
    place by a trial scale, and loads the saved ones back. On a CPU `.cpu()` returns the very same
    tensor, so the first trial scale stays in the weights. The model that comes out is garbage.
    Cure: the saved weights are copies.
    """
    from awq.quantize.quantizer import AwqQuantizer

    original = AwqQuantizer._compute_best_scale

    def compute_best_scale(
        self: Any, x: Tensor, w_mean: Tensor, x_mean: Tensor, module2inspect: nn.Module, *rest: Any
    ) -> Tensor:
        with cloned_state_dict(module2inspect):
            result: Tensor = original(self, x, w_mean, x_mean, module2inspect, *rest)
        return result

    AwqQuantizer._compute_best_scale = compute_best_scale


def use_fast_clip_search_in_autoawq() -> None:
    """Replace autoawq's clipping search by `best_clip`, which chooses the same and is faster."""
    from awq.quantize.quantizer import AwqQuantizer
    from clip_search import best_clip  # beside the worker script, hence on its path

    def compute_best_clip(self: Any, w: Tensor, input_feat: Tensor) -> Tensor:
        def round_trip(weight: Tensor) -> Tensor:
            rounded: Tensor = self.pseudo_quantize_tensor(weight)[0]
            return rounded

        return best_clip(w, input_feat, self.group_size, round_trip)

    AwqQuantizer._compute_best_clip = compute_best_clip


def let_auto_gptq_use_the_cpu() -> None:
    """Let auto-gptq quantize without a GPU. Its algorithm is untouched.

    Wrong: `quantize` moves each layer to `CUDA_0` whatever there is, and `fasterquant` calls
    `torch.cuda.synchronize`, which raises without CUDA. (`torch.cuda.empty_cache` does not.)
    Cure: that device is the CPU, and there is nothing to wait for.
    """
    import auto_gptq.modeling._base as base

    base.CUDA_0 = torch.device("cpu")
    torch.cuda.synchronize = lambda device=None: None
