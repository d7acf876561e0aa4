"""The engine with a learner's blocks and attention in it: the last exercise of lab 04."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from utils.checks.kit.pictures.blocks import count
from utils.checks.kit.reference import greedy, hf_greedy, is_hf_greedy, reference_prompts
from utils.checks.kit.runner import Mismatch, call
from utils.checks.lab_04.parts import Parts, PartsManager
from utils.engine.beam_search import BeamSearchParams
from utils.engine.llm import LLM
from utils.engine.models.llama import LlamaOps
from utils.engine.sampling_params import SamplingParams

N, WIDTH, MAX_TOKENS = 4, 4, 20
SHORT_POOL = {"max_model_len": 64, "num_gpu_blocks": 7}  # four answers would take 10 blocks
TOLERANCE = 0.02  # of a log probability; rounding changes it by less than a hundredth of this


class Trial:
    """Runs scenes in the engine, each with the learner's parts and, if need be, right ones.

    Args:
        parts: the learner's.
        right: by part, one to put in the place of the learner's, to see whether that one is to
            blame; the part that computes first is the last.
    """

    def __init__(self, parts: Parts, right: Mapping[str, Any]) -> None:
        self.parts = self.now = parts
        self.right = right
        attention = LlamaOps(paged_attention=lambda *args: self.now.attend(*args))
        self.llm = LLM(enable_prefix_caching=False, ops=attention)
        self.managers: dict[str, PartsManager] = {}

    def run(self) -> dict[str, PartsManager]:
        self._judge("Greedy", _greedy)
        self._judge(f"Parallel sampling, n={N}", _sampled)
        self._judge(f"Beam search, {WIDTH} beams", _beams)
        short = self._judge("A short pool", _sampled, **SHORT_POOL)
        if not short.num_refused:
            raise Mismatch(
                f"A short pool: {N} answers fit into {SHORT_POOL['num_gpu_blocks']} blocks? Your "
                "code never says that there is no room."
            )
        return self.managers

    def _judge(self, name: str, scene: Callable[[LLM], str], **settings: Any) -> PartsManager:
        found, manager = self._play(self.parts, scene, settings)
        if found:
            order = reversed(list(self.right))
            guilty = next((p for p in order if not self._with_right(p, scene, settings)), None)
            says = (
                f"With another `{guilty}` in place of yours it is right: look there, at what the "
                "engine does and its exercise does not."
                if guilty
                else "No part alone is to blame: with a right one in place of any single one of "
                "yours it is still wrong."
            )
            raise Mismatch(f"{name}: {found} {says}")
        self.managers[name] = manager
        _judge_pool(name, manager)
        return manager

    def _play(
        self, parts: Parts, scene: Callable[[LLM], str], settings: dict[str, Any]
    ) -> tuple[str, PartsManager]:
        """What is wrong in a scene, in one sentence; nothing if all is right."""
        config = replace(self.llm.config, **settings)
        self.now, manager = parts, PartsManager(parts, config)
        self.llm.llm_engine = self.llm.new_engine(settings, kv_cache_manager=lambda _: manager)
        return scene(self.llm), manager

    def _with_right(self, part: str, scene: Callable[[LLM], str], settings: dict[str, Any]) -> str:
        """What is still wrong with a right one in place of this part of the learner's."""
        try:
            return self._play(replace(self.parts, **{part: self.right[part]}), scene, settings)[0]
        except Mismatch as wrong:
            return wrong.headline


def _greedy(llm: LLM) -> str:
    """What is wrong with the greedy answers, the first of them; nothing if they are Hugging
    Face's."""
    prompts = reference_prompts()
    outputs = call(greedy, llm, prompts, given=f"the prompt {prompts[0]!r}")
    for prompt, output, expected in zip(prompts, outputs, hf_greedy(prompts), strict=True):
        got = list(output.outputs[0].token_ids)
        if not is_hf_greedy(prompt, got, expected):
            pairs = enumerate(zip(got, expected, strict=False))
            place = next((i for i, (mine, right) in pairs if mine != right), len(got))
            return (
                f"after the prompt {prompt!r} the engine says {output.outputs[0].text!r}, Hugging "
                f"Face {llm.tokenizer.decode(expected)!r}; the first difference is token {place}."
            )
    return ""


def _sampled(llm: LLM) -> str:
    """What is wrong with the answers to one prompt; nothing if each saw its own tokens only."""
    params = SamplingParams(n=N, seed=0, max_tokens=MAX_TOKENS, ignore_eos=True, logprobs=0)
    (output,) = call(llm.generate, reference_prompts()[:1], params, use_tqdm=False)
    for answer in output.outputs:
        clean = _clean_log_probs(llm, output.prompt_token_ids, answer.token_ids)
        for place, (token, at) in enumerate(zip(answer.token_ids, answer.logprobs, strict=True)):
            if abs(at[token].logprob - clean[place]) > TOLERANCE:
                return (
                    f"answer {answer.index} read keys and values that are not its own. Its token "
                    f"number {place} has log probability {at[token].logprob:.2f} with your code, "
                    f"and {clean[place]:.2f} in a clean pass without blocks."
                )
    return ""


def _beams(llm: LLM) -> str:
    """What is wrong with the beams; nothing if each saw its own tokens only."""
    params = BeamSearchParams(beam_width=WIDTH, max_tokens=MAX_TOKENS)
    prompt = reference_prompts()[1]
    (output,) = call(llm.beam_search, prompt, params)
    prompt_token_ids = llm.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    for beam in output.sequences:
        answer = beam.tokens[len(prompt_token_ids) :]
        clean = sum(_clean_log_probs(llm, prompt_token_ids, answer))
        if abs(beam.cum_logprob - clean) > TOLERANCE:
            return (
                f"a beam read keys and values that are not its own. Its log probability is "
                f"{beam.cum_logprob:.2f} with your code, and {clean:.2f} in a clean pass without "
                "blocks."
            )
    return ""


@torch.inference_mode()
def _clean_log_probs(llm: LLM, prompt: list[int], answer: list[int]) -> list[float]:
    """Log probability of each token of an answer: one pass over all of it, without any cache."""
    ids = torch.tensor([*prompt, *answer], device=llm.config.device)
    positions = torch.arange(len(ids), device=ids.device)
    logits = llm.model.compute_logits(llm.model(ids, positions)[len(prompt) - 1 : -1])
    log_probs = logits.float().log_softmax(dim=-1)  # [answer, vocab_size]
    return log_probs.gather(1, ids[len(prompt) :, None])[:, 0].tolist()


def _judge_pool(name: str, manager: PartsManager) -> None:
    """When all requests are done, every block must be free again."""
    total = manager.block_pool.num_gpu_blocks
    num_free = manager.block_pool.get_num_free_blocks()
    if num_free != total:
        leaked = total - num_free
        raise Mismatch(
            f"{name}: all requests are done, and {count(leaked, 'block')} of {total} did not come "
            "back. That is a leak: after some hours, the pool would be empty.",
            look="Every reference that is taken (get_new_blocks, touch) must be dropped once: by "
            "the end of the request, or by copy_on_write when the table leaves a block.",
        )
