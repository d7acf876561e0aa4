"""Steps are recorded as they ran, and told apart; a checkpoint's bytes are those of its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from utils.engine import LLM
from utils.planning.measured import Step, Steps, checkpoint_parts, run_steps, vllm_step_seconds


@pytest.fixture(scope="module")
def llm(model_path: Path) -> LLM:
    return LLM(model_path, device="cpu", max_model_len=128)


def test_the_steps_of_a_run(llm: LLM) -> None:
    steps = run_steps(llm, [[5, 6, 7], [8, 9, 10, 11]], num_out=3)
    assert [step.tokens for step in steps.steps] == [[3, 4], [1, 1], [1, 1]]
    assert steps.seconds >= steps.longest > 0
    assert steps.per_token_in == pytest.approx(steps.steps[0].seconds / 7)


def test_what_is_known_is_not_computed(llm: LLM) -> None:
    prefix = list(range(100, 132))
    first, again = (run_steps(llm, [[*prefix, 7, 8]], 2, known=known) for known in (None, prefix))
    assert (first.steps[0].tokens, again.steps[0].tokens) == ([34], [2])
    off = run_steps(llm, [[*prefix, 7, 8]], 2, known=prefix, enable_prefix_caching=False)
    assert off.steps[0].tokens == [34]


def test_prices_of_a_token() -> None:
    steps = Steps([Step([4, 1], 1.0), Step([1, 1], 0.2), Step([1, 1], 0.4), Step([1], 0.3)])
    assert steps.per_token_in == pytest.approx(0.2)
    assert steps.decode_step == pytest.approx(0.3)
    with pytest.raises(ValueError, match="just one token"):
        _ = Steps([Step([4], 1.0)]).decode_step
    with pytest.raises(ValueError, match="No step reads"):
        _ = Steps([Step([1], 1.0)]).per_token_in


class Session:
    """A session whose step takes a quarter of a second, and whose first runs are slow."""

    def __init__(self) -> None:
        self.runs = 0

    def generate(self, prompts: Any, max_tokens: int, ignore_eos: bool) -> Any:
        self.runs += 1
        seconds = 1.0 + 0.25 * max_tokens + (5.0 if self.runs % 3 == 1 else 0.0)
        return type("Answers", (), {"seconds": seconds})


def test_a_step_of_vllm() -> None:
    session: Any = Session()
    assert vllm_step_seconds(session, [[1]], num_out=5) == pytest.approx(0.25)
    assert session.runs == 6
    with pytest.raises(ValueError, match="at least 2, got 1"):
        vllm_step_seconds(session, [[1]], num_out=1)


def test_parts_of_a_checkpoint(tmp_path: Path) -> None:
    layer = "model.layers.0.mlp.up_proj"
    tensors = {
        "model.embed_tokens.weight": torch.zeros(10, 4, dtype=torch.bfloat16),
        f"{layer}.qweight": torch.zeros(3, dtype=torch.int32),
        f"{layer}.scales": torch.zeros(2, dtype=torch.float16),
        "model.norm.weight": torch.zeros(4, dtype=torch.bfloat16),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    assert list(checkpoint_parts(tmp_path).values()) == [80, 12, 4 + 8]
