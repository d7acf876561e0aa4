"""Fixtures shared by all tests. Each model is loaded at most once per process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from utils.engine.llm import LLM


@pytest.fixture(scope="session", autouse=True)
def _quiet_figures_and_few_threads() -> None:
    """Draw figures into memory and cap torch's threads: beyond a few, a small model gets slower.

    Not by environment variables: the kernels that run the notebooks would inherit them, and with
    `MPLBACKEND=Agg` a notebook shows no figure.
    """
    import matplotlib

    matplotlib.use("Agg")
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(min(4, torch.get_num_threads()))


@pytest.fixture(scope="session")
def model_path() -> Path:
    """Folder of the bundled model; converted on first use."""
    from utils.hub import resolve_model

    return resolve_model("bundled")


@pytest.fixture(scope="session")
def tokenizer(model_path: Path) -> PreTrainedTokenizerBase:
    """The bundled model's tokenizer."""
    from utils.hub import load_tokenizer

    return load_tokenizer(model_path)


@pytest.fixture(scope="session")
def hf_model(model_path: Path) -> PreTrainedModel:
    """The bundled model in Hugging Face transformers, float32: the oracle. Do not modify it."""
    import torch

    from utils.hub import load_hf_model

    return load_hf_model(model_path, dtype=torch.float32)


@pytest.fixture(scope="session")
def llm(model_path: Path) -> LLM:
    """The course's engine on the bundled model, float32."""
    from utils.engine.llm import LLM

    return LLM(model=model_path, dtype="float32")
