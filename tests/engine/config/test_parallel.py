"""Layouts that cannot be are refused with the reason."""

from __future__ import annotations

import pytest
import torch

from utils.engine import EngineArgs, ModelConfig
from utils.engine.config.parallel import MoEConfig, ParallelConfig

MODEL = ModelConfig(99, 48, 80, 3, 6, 3, 8)
CPU = torch.device("cpu")


def test_keyword_arguments_are_split():
    args = EngineArgs(tensor_parallel_size=3)
    assert args.create_parallel_config() == ParallelConfig(tensor_parallel_size=3)
    assert args.create_parallel_config().world_size == 3
    assert ParallelConfig(2, 3).world_size == 6


def test_what_fits_is_accepted():
    ParallelConfig(3, 3).check(MODEL, CPU)
    ParallelConfig().check(MODEL, torch.device("cuda"))


@pytest.mark.parametrize(
    ("parallel", "device", "message"),
    [
        (ParallelConfig(4), "cpu", "more than the model's 3 KV heads"),
        (ParallelConfig(1, 4), "cpu", "more than the model's 3 layers"),
        (ParallelConfig(2), "cuda", "Several processes run on the CPU here.*device='cpu'"),
        (ParallelConfig(1, 1, 2), "cuda:0", "Several processes run on the CPU here"),
    ],
)
def test_what_does_not_fit_is_refused(parallel, device, message):
    with pytest.raises(ValueError, match=message):
        parallel.check(MODEL, torch.device(device))


def test_options_that_exclude_each_other_are_refused():
    with pytest.raises(ValueError, match="must be 1 with it"):
        ParallelConfig(2, upcycle=MoEConfig())
    with pytest.raises(ValueError, match="engines to spread them over"):
        ParallelConfig(enable_expert_parallel=True, upcycle=MoEConfig())
    with pytest.raises(ValueError, match="4 experts cannot be divided among"):
        ParallelConfig(
            data_parallel_size=3, enable_expert_parallel=True, upcycle=MoEConfig(num_experts=4)
        )
