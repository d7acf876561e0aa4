"""`LLM(kernels=...)`: what fits the device is taken, anything else is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.tiny_engines import tiny_llama, tiny_medusa
from utils.engine import LLM, LlamaOps, SamplingParams, SpeculativeConfig
from utils.engine.kernels.choice import choose_ops
from utils.engine.kernels.fast_ops import load_fast_ops
from utils.engine.models.llama import DEFAULT_OPS, LlamaForCausalLM, rms_norm


def test_plain_functions_run_everywhere() -> None:
    mine = LlamaOps(rms_norm=lambda x, weight, eps: rms_norm(x, weight, eps))
    for device in ("cpu", "cuda"):
        assert choose_ops("torch", device) is DEFAULT_OPS
        assert choose_ops("torch", device, mine) is mine


def test_a_card_gets_graphs_and_otherwise_the_plain_functions() -> None:
    assert choose_ops("cuda_graph", "cuda") is DEFAULT_OPS


class Unasked(LlamaForCausalLM):
    """Knows by which way it went."""

    def forward(self, *args, all_layers=None):
        self.ways.append(type(all_layers).__name__)
        return super().forward(*args, all_layers=all_layers)


@pytest.mark.skipif(load_fast_ops() is None, reason="no C++ compiler")
def test_the_runner_chooses_for_each_batch(tmp_path: Path) -> None:
    """What a fast way does not take goes layer after layer, and says the same."""
    tiny_llama(tmp_path, 0)
    tiny_medusa(tmp_path / "heads", 2)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    prompt, ways, answers = [3, 4, 5, 6, 7, 8], {}, []
    tree = {
        "speculative_config": SpeculativeConfig(
            "medusa", model=tmp_path / "heads", tree_widths=(2, 2)
        )
    }
    for name, kernels, changes in (
        ("plain", "torch", {}),
        ("fast", "cpp", {}),
        ("tree", "cpp", tree),
    ):
        llm = LLM(tmp_path, kernels=kernels, max_model_len=64, device="cpu")
        llm.model.__class__, llm.model.ways = Unasked, []
        llm.llm_engine = llm.new_engine(changes)
        [output] = llm.generate([prompt], params, use_tqdm=False)
        ways[name] = llm.model.ways
        answers.append(output.outputs[0].token_ids)
    assert answers == 3 * answers[:1]
    assert set(ways["plain"]) == {"NoneType"} and set(ways["fast"]) == {"FusedLayers"}
    assert set(ways["tree"]) == {"FusedLayers", "NoneType"}  # prompts have no guesses yet


@pytest.mark.parametrize(
    ("kernels", "device"), [("cpp", "cuda"), ("cuda_graph", "cpu"), ("triton", "cpu")]
)
def test_what_does_not_fit_is_refused(kernels: str, device: str) -> None:
    with pytest.raises(ValueError, match=rf"'{kernels}' on {device}: expected torch; or.*cpp on"):
        choose_ops(kernels, device)


def test_own_functions_and_kernels_exclude_each_other(tmp_path: Path) -> None:
    tiny_llama(tmp_path, 0)
    mine = LlamaOps(rms_norm=lambda x, weight, eps: rms_norm(x, weight, eps))
    with pytest.raises(ValueError, match="without ops of your own"):
        LLM(tmp_path, ops=mine, kernels="cpp", max_model_len=64)
