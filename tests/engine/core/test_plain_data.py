"""What goes between scheduler and model runner is plain data: it may take any way, and arrives."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.engine.tiny_engines import (
    nothing_is_held,
    tiny_eagle,
    tiny_llama,
    tiny_medusa,
    tiny_speaker,
)
from utils.engine import LLM, SamplingParams, SpeculativeConfig, StructuredOutputsParams

PROMPTS = [[3 + (i * 7 + j * j) % 10 for j in range(5 + 4 * i)] for i in range(6)]
KINDS = [
    {"temperature": 0, "logprobs": 2},
    {"temperature": 0.9, "seed": 4, "n": 3},
    {"temperature": 1.0, "top_k": 5},  # the engine's own random numbers
    {"temperature": 0, "prompt_logprobs": 1},
    {"temperature": 0, "min_tokens": 6},
    {"temperature": 0.8, "seed": 1, "stop_token_ids": [5]},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Path:
    path: Path = tmp_path_factory.mktemp("plain")
    tiny_eagle(path / "eagle", tiny_llama(path, seed=3))
    tiny_llama(path / "draft", seed=4, layers=1)
    tiny_medusa(path / "heads", 2)
    tiny_speaker(path / "speaker", model_path)
    return path


def by_post(llm: LLM) -> None:
    """Every step travels to the runner as bytes, and so does what comes of it."""
    runner = llm.llm_engine.executor
    execute = runner.execute_model

    def execute_there(output: Any) -> Any:
        return pickle.loads(pickle.dumps(execute(pickle.loads(pickle.dumps(output)))))

    runner.execute_model = execute_there


@pytest.mark.parametrize("method", ["none", "ngram", "draft", "tree", "eagle"])
def test_a_step_can_be_sent(folder: Path, method: str) -> None:
    spec = {
        "none": None,
        "ngram": SpeculativeConfig("ngram", 3, prompt_lookup_min=1),
        "draft": SpeculativeConfig("draft_model", 3, model=folder / "draft"),
        "tree": SpeculativeConfig("medusa", model=folder / "heads", tree_widths=(2, 2)),
        "eagle": SpeculativeConfig("eagle", 3, model=folder / "eagle"),
    }[method]
    llm = LLM(
        folder,
        max_model_len=64,
        num_gpu_blocks_override=30,
        block_size=4,
        max_num_seqs=5,
        max_num_batched_tokens=9,
        swap_space=1e-5,
        speculative_config=spec,
        device="cpu",
    )
    params = [SamplingParams(max_tokens=12, **kind) for kind in KINDS]
    here = llm.generate(PROMPTS, params, use_tqdm=False)
    llm.llm_engine = llm.new_engine()
    by_post(llm)
    there = llm.generate(PROMPTS, params, use_tqdm=False)
    assert [o.outputs for o in here] == [o.outputs for o in there]
    assert [o.prompt_logprobs for o in here] == [o.prompt_logprobs for o in there]
    assert here[3].prompt_logprobs and len(here[3].prompt_logprobs) == len(PROMPTS[3])
    assert nothing_is_held(llm)


def test_a_form_can_be_sent(folder: Path) -> None:
    spec = SpeculativeConfig("ngram", 2)
    llm = LLM(folder / "speaker", max_model_len=64, speculative_config=spec, device="cpu")
    form = StructuredOutputsParams(regex="( ?w[0-9]+)+")
    params = SamplingParams(temperature=0, max_tokens=15, structured_outputs=form)
    here = llm.generate(PROMPTS[:3], params, use_tqdm=False)
    llm.llm_engine = llm.new_engine()
    by_post(llm)
    there = llm.generate(PROMPTS[:3], params, use_tqdm=False)
    assert [o.outputs for o in here] == [o.outputs for o in there]
    assert all(output.outputs[0].text.startswith(("w", " w")) for output in here)
