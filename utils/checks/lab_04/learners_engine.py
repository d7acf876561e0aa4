"""The engine with a learner's blocks and attention in it: the last check of lab 04."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit import block_pictures
from utils.checks.kit.block_pictures import count
from utils.checks.kit.reference import greedy, hf_greedy, reference_prompts
from utils.checks.kit.runner import Mismatch, Passed, call, describe
from utils.checks.lab_04.learners_parts import Parts, PartsManager
from utils.checks.lab_04.paged_attention_cases import one_token
from utils.engine.attention.paged_attention import paged_attention as engine_attention
from utils.engine.beam_search import BeamSearchParams
from utils.engine.core.block_pool import BlockPool
from utils.engine.llm import LLM
from utils.engine.llm_engine import LLMEngine
from utils.engine.models.llama import LlamaOps
from utils.engine.sampling_params import SamplingParams

N, WIDTH, MAX_TOKENS = 4, 4, 20
SHORT_POOL = {"max_model_len": 64, "num_gpu_blocks": 7}  # four answers would take 10 blocks
TOLERANCE = 0.02  # of a log probability; rounding changes it by less than a hundredth of this


def run(parts: Parts) -> Passed:
    """Check that the engine speaks as Hugging Face with the learner's parts, and that answers that
    share blocks are as probable as without any sharing or paging."""
    _written(parts)
    prompts = reference_prompts()
    attend: list[Callable[..., Tensor]] = [parts.attend]
    llm = LLM(
        enable_prefix_caching=False, ops=LlamaOps(paged_attention=lambda *args: attend[0](*args))
    )
    managers: dict[str, PartsManager] = {}

    def judge(name: str, run: Callable[[LLM], str], **settings: Any) -> None:
        def problem() -> str:
            config = replace(llm.config, **settings)
            managers[name] = PartsManager(parts, config)
            llm.llm_engine = LLMEngine(llm.model, llm.tokenizer, config, managers[name])
            return run(llm)

        if found := problem():
            attend[0] = engine_attention
            guilty = (
                "With the engine's own attention and your blocks it is wrong as well: look at the "
                "blocks. Do two requests write into the same one?"
                if problem()
                else "With the engine's own attention and your blocks it is right: look at "
                "`paged_attention`."
            )
            raise Mismatch(f"{name}: {found} {guilty}", look="Run the checks above again.")
        _judge_pool(name, managers[name])

    judge("Greedy", _greedy)
    judge(f"Parallel sampling, n={N}", _sampled)
    judge(f"Beam search, {WIDTH} beams", _beams)
    judge("A short pool", _sampled, **SHORT_POOL)
    if not managers["A short pool"].num_refused:
        raise Mismatch(
            f"A short pool: {N} answers fit into {SHORT_POOL['num_gpu_blocks']} blocks? Your code "
            "never says that there is no room."
        )
    shared = {name: m for name, m in managers.items() if name.startswith(("Parallel", "Beam"))}
    figure = block_pictures.blocks_over_steps(
        {name: (manager.used, manager.copies) for name, manager in shared.items()}
    )
    counted = "; ".join(
        f"{name}: at most {max(m.used)} blocks in use, {max(m.copies)} without sharing, "
        f"{m.num_copied} copied on write"
        for name, m in shared.items()
    )
    return Passed(
        f"Token for token what Hugging Face generates, on {len(prompts)} prompts. Answers that "
        "share blocks are as probable, token by token, as in a clean pass without blocks, also "
        f"when the pool is too small for all of them. {counted}. Every block came back.",
        figure, "Blocks in use after each step, and what copies would have taken.",
    )  # fmt: skip


def _greedy(llm: LLM) -> str:
    """What is wrong with the greedy answers; nothing if they are Hugging Face's."""
    prompts = reference_prompts()
    outputs = call(greedy, llm, prompts, given=f"the prompt {prompts[0]!r}")
    for output, expected in zip(outputs, hf_greedy(prompts), strict=True):
        if list(output.outputs[0].token_ids) != expected:
            return (
                f"the engine says {output.outputs[0].text!r}, Hugging Face "
                f"{llm.tokenizer.decode(expected)!r}."
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


def _written(parts: Any) -> None:
    """Call each part once on next to nothing: one that is not written yet answers at once."""
    if not isinstance(parts, Parts):
        raise Mismatch(
            f"`engine` was given {describe(parts)}; expected the parts of this lab.",
            look="`check.Parts(BlockPool, allocate_slots, fork, copy_on_write, paged_attention)`.",
        )
    if parts.BlockPool is BlockPool or parts.paged_attention is engine_attention:
        raise Mismatch("These are the engine's own parts.", look="Pass those that you wrote.")
    pool = call(parts.BlockPool, 4)
    table = list(call(pool.get_new_blocks, 1))
    call(parts.allocate_slots, pool, table, 5, 4)
    call(parts.fork, pool, table)
    call(parts.copy_on_write, pool, table, 5, 6, 4)
    call(parts.paged_attention, *one_token())


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
        )  # fmt: skip
