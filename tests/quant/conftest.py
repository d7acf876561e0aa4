"""Fixtures of the quantizers' tests: real layers of the bundled model with their real inputs."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

CALIBRATION_TOKENS, HELD_OUT_TOKENS = 2048, 512


@dataclass(frozen=True)
class RealLayer:
    """A linear layer's weight, its calibration inputs and held-out inputs, both [tokens, in]."""

    weight: Tensor
    inputs: Tensor
    held_out: Tensor

    def error(self, read_back: Tensor, held_out: bool = True) -> float:
        """The squared error of the layer's output, relative to its square."""
        x = self.held_out if held_out else self.inputs
        wanted = x @ self.weight.t()
        return float((x @ read_back.t() - wanted).square().sum() / wanted.square().sum())


def import_gptqmodel() -> None:
    """Import it without what it leaves in the environment and in `sys.path` for later tests."""
    with mock.patch.dict(os.environ), mock.patch.object(sys, "path", [*sys.path]):
        os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")
        import gptqmodel.looper.awq_processor  # noqa: F401


def in_blocks(hessian: Tensor, size: int = 64) -> Tensor:
    """A Hessian for a broken GPTQ: what a block's rounding costs is made up within it alone."""
    blocks = [hessian[i : i + size, i : i + size] for i in range(0, len(hessian), size)]
    return torch.block_diag(*blocks)


@pytest.fixture(scope="session")
def token_windows(tokenizer) -> Tensor:
    """Windows of a novel, [5, 512]: four to calibrate, one to measure on."""
    from utils.pipeline.stages.perplexity import load_text

    ids = tokenizer(load_text("emma")[:20000])["input_ids"]
    return torch.tensor(ids[: CALIBRATION_TOKENS + HELD_OUT_TOKENS]).view(-1, 512)


@pytest.fixture(scope="session")
def real_layers(hf_model, token_windows: Tensor) -> dict[str, RealLayer]:
    """Linear layers of the second decoder layer."""
    layer = hf_model.model.layers[1]
    names = ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
    inputs: dict[str, Tensor] = {}

    def keep(name: str) -> object:
        def hook(_: nn.Module, args: tuple[Tensor]) -> None:
            inputs[name] = args[0].detach().flatten(0, 1)

        return layer.get_submodule(name).register_forward_pre_hook(hook)

    hooks = [keep(name) for name in names]
    with torch.inference_mode():
        # Only as deep as needed: hidden states after two layers.
        layers, hf_model.model.layers = hf_model.model.layers, hf_model.model.layers[:2]
        try:
            hf_model.model(token_windows, use_cache=False)
        finally:
            hf_model.model.layers = layers
            for hook in hooks:
                hook.remove()
    return {
        name: RealLayer(
            layer.get_submodule(name).weight.detach().float().clone(),
            x[:CALIBRATION_TOKENS].clone(),
            x[CALIBRATION_TOKENS:].clone(),
        )
        for name, x in inputs.items()
    }
