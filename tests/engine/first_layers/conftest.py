"""Tests of tokens that need no sense: at the small size they run the real model's first 8 layers.

Blocks, chunks and preemption are the same in each layer, and the tokens are compared with those of
Hugging Face as before. The whole model is compared in `test_generate.py`, in the lessons, and at
full size here, too.

The fixtures have the names of those in `tests/conftest.py`, and are not those: a session has
each fixture once, and it would keep the model of the test that asked first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from tests.engine.conftest import SharedAnswers, generate_greedily
from tests.scale import FULL, SCALE
from utils.engine import LLM
from utils.hub import load_hf_model
from utils.pipeline.studies.first_layers import save_first_layers

NUM_LAYERS = 8


@pytest.fixture(scope="session")
def model_path(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if SCALE == FULL:
        return model_path
    return save_first_layers(model_path, tmp_path_factory.mktemp("first_layers"), NUM_LAYERS)


@pytest.fixture(scope="session")
def hf_model(model_path: Path) -> PreTrainedModel:
    return load_hf_model(model_path, dtype=torch.float32)


@pytest.fixture(scope="session")
def llm(model_path: Path) -> LLM:
    return LLM(model=model_path, dtype="float32")


@pytest.fixture(scope="session")
def hf_greedy(
    hf_model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[list[list[int]], int], list[list[int]]]:
    file = tmp_path_factory.mktemp("answers") / "first_layers.json"
    return SharedAnswers(file, partial(generate_greedily, hf_model))
