"""On a real card: the tokens of Hugging Face and of vLLM, every feature, and the memory foretold.

Skipped where there is none. `python -m pytest -m gpu tests/device` runs these alone. With
COURSE_CARD=cpu they run on the processor, to see that the tests themselves are right.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.device.cases import Case, engine_cases, form_cases, model_cases, problems, training_cases
from tests.engine.tiny_engines import gaps_below_best, tiny_llama
from utils.engine import LLM, SamplingParams
from utils.hub import load_hf_model, load_tokenizer, resolve_model
from utils.model_folder import ModelError

pytestmark = pytest.mark.gpu
DEVICE = os.environ.get("COURSE_CARD", "cuda")
TEXTS = [
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time there was a little girl who",
    "The capital of Italy is Rome. The capital of Spain is Madrid. The capital of Poland is",
    '{"name": "Ada", "age":',
    "One, two, three, four, five, six, seven, eight, nine, ten, eleven,",
]
MAX_TOKENS = 48
NEAR_TIE = 1e-3  # float32 on a card adds in another order than the oracle


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    try:
        tokenizer = load_tokenizer()
    except ModelError as error:
        pytest.skip(f"the bundled model is not here: {error}")
    return [tokenizer.encode(text) for text in TEXTS]


@pytest.fixture(scope="module")
def hf(prompts: list[list[int]]) -> Any:
    torch.backends.cuda.matmul.allow_tf32 = False  # float32 means float32
    return load_hf_model(dtype=torch.float32, device=DEVICE)


def unexplained(hf: Any, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> list[str]:
    """Tokens that are not Hugging Face's choice after the same text, ties left aside."""
    found = []
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        found += [
            f"prompt {number}, token {place}: {gap:.4f} below the best"
            for place, gap in enumerate(gaps_below_best(hf, prompt, answer).tolist())
            if gap > NEAR_TIE
        ]
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kernels": "cuda_graph"},
        {"kernels": "triton"},
        {"kernels": "triton", "max_num_batched_tokens": 16, "max_num_seqs": 4},
        {"max_num_batched_tokens": 16, "max_num_seqs": 4},
        {"num_gpu_blocks_override": 12, "block_size": 8, "max_model_len": 96},
        {
            "speculative_config": {
                "method": "ngram",
                "num_speculative_tokens": 4,
                "prompt_lookup_min": 1,
                "prompt_lookup_max": 3,
            }
        },
    ],
    ids=[
        "plain",
        "on graphs",
        "Triton",
        "Triton, in chunks",
        "in chunks",
        "little memory",
        "with guesses",
    ],
)
def test_tokens_are_hugging_faces(
    options: dict[str, Any], hf: Any, prompts: list[list[int]]
) -> None:
    if DEVICE == "cpu" and "kernels" in options:
        pytest.skip("for a card")
    llm = LLM(device=DEVICE, **({"max_model_len": 512} | options))
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    for _ in range(2):  # the second time from the prefix cache
        outputs = llm.generate(prompts, params, use_tqdm=False)
        answers = [output.outputs[0].token_ids for output in outputs]
        assert all(answers)
        assert unexplained(hf, prompts, answers) == []


def test_tokens_are_vllms(hf: Any, prompts: list[list[int]]) -> None:
    pytest.importorskip("vllm", reason="no vLLM here")
    from utils.vllm.answers import vllm_answers

    theirs = vllm_answers(resolve_model(), prompts, ["float32"], MAX_TOKENS).token_ids["float32"]
    assert unexplained(hf, prompts, theirs) == []


def wrong(cases: dict[str, Case]) -> dict[str, str]:
    """What is not on the card as on the CPU, by the case's name."""
    found = problems(cases, DEVICE, lambda name: cases[name].run("cpu"))
    return {name: problem for name, problem, _ in found if problem}


def test_every_feature_of_the_engine_gives_the_same_on_the_card(tmp_path: Path) -> None:
    assert wrong(engine_cases(tmp_path)) == {}


@pytest.mark.skipif(DEVICE == "cpu", reason="for a card")
def test_every_feature_gives_the_same_with_triton(tmp_path: Path) -> None:
    assert wrong(engine_cases(tmp_path, "triton")) == {}


def test_answers_in_a_form_are_the_same_on_the_card(
    tmp_path: Path, prompts: list[list[int]]
) -> None:
    pytest.importorskip("llguidance", reason="no llguidance here")
    assert wrong(form_cases(tmp_path)) == {}


def test_quantizers_and_measures_give_the_same_on_the_card() -> None:
    assert wrong(model_cases()) == {}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("method", ["LoRA", "QLoRA"])
def test_gradients_are_those_of_float32(method: str, dtype: str, tmp_path: Path) -> None:
    """Backward in 16 bits on the card, beside the CPU's."""
    pytest.importorskip("peft", reason="no peft here")
    if method == "QLoRA":
        pytest.importorskip("bitsandbytes", reason="no bitsandbytes here")
    if dtype == "bfloat16" and DEVICE == "cuda" and not torch.cuda.is_bf16_supported(False):
        pytest.skip("this card knows no bfloat16")
    assert training_cases(tmp_path)[f"{method}, {dtype}"](DEVICE) > 0.99


@pytest.mark.skipif(DEVICE == "cpu", reason="for a card")
def test_cpp_kernels_are_refused_in_words(tmp_path: Path) -> None:
    tiny_llama(tmp_path, 1)
    with pytest.raises(ValueError, match="kernels='cpp' on cuda: expected"):
        LLM(tmp_path, device="cuda", kernels="cpp")


@pytest.mark.skipif(DEVICE == "cpu", reason="memory of a card")
def test_the_kv_cache_takes_what_the_formula_says() -> None:
    torch.cuda.empty_cache()
    before, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    llm = LLM(device="cuda", dtype="float16", max_model_len=512)
    taken = torch.cuda.memory_allocated() - before
    weights = sum(parameter.nbytes for parameter in llm.model.parameters())
    tokens = llm.config.num_gpu_blocks * llm.config.block_size
    cache = tokens * llm.model_config.kv_bytes_per_token(torch.float16)
    assert taken == pytest.approx(weights + cache, rel=0.02)
    assert free - torch.cuda.mem_get_info()[0] < 1.2 * taken + 5e8  # CUDA's own beside it
