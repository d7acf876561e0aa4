"""`LLM(kernels=...)`: what fits the device is taken, anything else is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.tiny_engines import tiny_llama
from utils.engine import LLM, LlamaOps
from utils.engine.kernels.choice import choose_ops
from utils.engine.models.llama import DEFAULT_OPS, rms_norm
from utils.engine.worker.cuda_graph import CudaGraphs


def test_plain_functions_run_everywhere() -> None:
    mine = LlamaOps(rms_norm=lambda x, weight, eps: rms_norm(x, weight, eps))
    for device in ("cpu", "cuda"):
        assert choose_ops("torch", device) is DEFAULT_OPS
        assert choose_ops("torch", device, mine) is mine


def test_a_card_gets_graphs_and_otherwise_the_plain_functions() -> None:
    ops = choose_ops("cuda_graph", "cuda")
    assert isinstance(ops.decoder_layers, CudaGraphs)
    assert replace(ops, decoder_layers=None) == DEFAULT_OPS
    assert choose_ops("cuda_graph", "cuda").decoder_layers is not ops.decoder_layers


@pytest.mark.parametrize(
    ("kernels", "device"), [("cpp", "cuda"), ("cuda_graph", "cpu"), ("triton", "cuda")]
)
def test_what_does_not_fit_is_refused(kernels: str, device: str) -> None:
    with pytest.raises(ValueError, match=rf"'{kernels}' on {device}: expected torch; or.*cpp on"):
        choose_ops(kernels, device)


def test_own_functions_and_kernels_exclude_each_other(tmp_path: Path) -> None:
    tiny_llama(tmp_path, 0)
    mine = LlamaOps(rms_norm=lambda x, weight, eps: rms_norm(x, weight, eps))
    with pytest.raises(ValueError, match="without ops of your own"):
        LLM(tmp_path, ops=mine, kernels="cpp", max_model_len=64)
