"""Sampling with a learner's guesses and verification, from a tiny model whose law is known."""

from __future__ import annotations

import functools
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from transformers.utils import logging

from utils.checks.kit.runner import Mismatch
from utils.checks.kit.tiny_model import TinyModel
from utils.checks.lab_07 import pictures
from utils.checks.lab_07.sampler.many_steps import too_far
from utils.engine.config.speculative import SpeculativeConfig
from utils.engine.llm import LLM
from utils.engine.outputs import RequestOutput
from utils.engine.sampling_params import SamplingParams
from utils.hub import load_tokenizer

SAMPLES = 2000
CHECKED = 4  # tokens of each sampled answer that are compared with the exact law


class _FiveTokens(TinyModel):
    vocab_size = 5


# Every pair of tokens occurs in it, so there is always something to propose.
PROMPT = [0, 0, 1, 0, 2, 0, 3, 0, 4, 1, 1, 2, 1, 3, 1, 4, 2, 2, 3, 2, 4, 3, 3, 4, 4, 0]
TEMPERATURE = 2.0


@functools.cache
def exact_answers() -> dict[tuple[int, ...], float]:
    """The probability of each answer of `CHECKED` tokens: Hugging Face, over all of them."""
    tiny = _FiveTokens()
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(CHECKED):
        texts = torch.tensor([[*PROMPT, *answer] for answer in law])
        with torch.no_grad():
            logits = tiny.hf(texts, use_cache=False).logits[:, -1]
        probs = (logits / TEMPERATURE).softmax(-1).tolist()
        law = {
            (*answer, token): before * p
            for (answer, before), row in zip(law.items(), probs, strict=True)
            for token, p in enumerate(row)
        }
    return law


def _draft_weights(tiny: TinyModel) -> None:
    """A draft that is like the target, but not equal: the same weights with some noise."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in tiny.hf.parameters():
            weight += 0.15 * torch.randn(weight.shape, generator=generator)


@functools.cache
def _tiny_llm() -> tuple[LLM, tempfile.TemporaryDirectory[str]]:
    """The tiny target in the engine, and the folder with the draft model, which lives as long."""
    folder = tempfile.TemporaryDirectory()
    logging.disable_progress_bar()  # of saving
    target, draft = _FiveTokens(), _FiveTokens()
    _draft_weights(draft)
    for tiny, part in ((target, "target"), (draft, "draft")):
        tiny.hf.save_pretrained(Path(folder.name, part))
        load_tokenizer().save_pretrained(Path(folder.name, part))
    llm = LLM(
        Path(folder.name, "target"),
        max_model_len=64,
        max_num_seqs=250,
        num_gpu_blocks_override=2000,
        device="cpu",
    )
    return llm, folder


def _sampled(sampler: Any, spec: SpeculativeConfig) -> tuple[list[RequestOutput], float]:
    """Answers of the tiny model, and the part of the guesses that was accepted."""
    llm, _ = _tiny_llm()
    llm.llm_engine = llm.new_engine(changes={"speculative_config": spec}, rejection_sampler=sampler)
    params = SamplingParams(temperature=TEMPERATURE, max_tokens=CHECKED + 1, ignore_eos=True)
    outputs = llm.generate([list(PROMPT)] * SAMPLES, params, use_tqdm=False)
    stats = llm.llm_engine.spec_decoding_stats
    assert stats is not None
    return outputs, stats.acceptance_rate


def run_sampled(proposer: Any, sampler: Any) -> tuple[str, Figure]:
    """Thousands of sampled answers against the exact law, with n-grams and with a draft model."""
    _, folder = _tiny_llm()
    words = []
    for kind, spec in (
        ("n-gram proposer", SpeculativeConfig("custom_class", 3, proposer=proposer)),
        ("draft model", SpeculativeConfig("draft_model", 3, model=Path(folder.name, "draft"))),
    ):
        outputs, rate = _sampled(sampler, spec)
        figure = _compare_with_law(outputs, kind)
        words.append(f"{rate:.0%} with the {kind}")
    return (
        f"Sampled: {SAMPLES:,} answers are distributed as Hugging Face's probabilities say. "
        f"Guesses accepted: {' and '.join(words)}.",
        figure,
    )


def _compare_with_law(outputs: Sequence[RequestOutput], kind: str) -> Figure:
    law = exact_answers()
    answers = [tuple(output.outputs[0].token_ids)[:CHECKED] for output in outputs]
    panels = []
    for place in range(CHECKED):
        came, expected = [0.0] * 5, [0.0] * 5
        for answer in answers:
            came[answer[place]] += 1 / SAMPLES
        for answer, p in law.items():
            expected[answer[place]] += p
        panels.append((f"token {place} of the answer", None, expected, came))
    figure = pictures.distributions(
        panels, f"{SAMPLES:,} sampled answers ({kind}), beside the exact probabilities"
    )
    if too_far(Counter(answers), {answer: SAMPLES * p for answer, p in law.items()}):
        raise Mismatch(
            f"Sampled with guesses ({kind}), the answers are distributed otherwise than the "
            "model's probabilities say, although your sampler is right step by step.",
            input=f"{SAMPLES:,} answers of a tiny model with 5 tokens, temperature {TEMPERATURE}",
            expected="the distribution that Hugging Face computes, answer by answer",
            look="Is something kept from call to call? Each request has a generator of its own.",
            figure=figure,
            alt="For each token: the exact and the obtained distribution.",
        )
    return figure
