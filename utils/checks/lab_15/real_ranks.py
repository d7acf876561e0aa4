"""Exercise 11: the learner's ring and row-parallel layer in the engine, on two real processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from utils.checks.kit.reference import is_hf_greedy
from utils.checks.kit.runner import Mismatch, describe
from utils.engine.distributed.layers import ParallelOps
from utils.engine.llm import LLM
from utils.engine.sampling_params import SamplingParams
from utils.hub import BUNDLED
from utils.processes.ranks import RankError
from utils.timing import one_thread

NUM_RANKS = 2  # the model's 3 KV heads do not divide by it
PROMPTS = ("The capital of France is", "Once upon a time")
MAX_TOKENS = 6
PATIENCE_S = 90.0


@dataclass(frozen=True)
class Parts:
    """The answers of lab 15 that run the engine."""

    all_reduce: Callable[..., Any]
    row_parallel_linear: Any
    sent_bytes: Callable[..., int]


@dataclass(frozen=True)
class Outcome:
    """What came of a run: texts, their token ids, tokens computed, and bytes sent by each rank."""

    texts: list[str]
    token_ids: list[list[int]]
    num_computed: int
    sent: list[int]


def run(**options: Any) -> Outcome:
    """Let an engine answer the prompts greedily, in float32."""
    llm = LLM(
        BUNDLED,
        dtype="float32",
        device="cpu",
        max_model_len=256,
        kv_cache_memory_bytes=64 << 20,
        enable_prefix_caching=False,
        **options,
    )
    try:
        params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
        outputs = llm.generate(list(PROMPTS), params, use_tqdm=False)
        answers = [list(output.outputs[0].token_ids) for output in outputs]
        # A request's last token is not computed: nothing is asked after it.
        computed = sum(
            len(output.prompt_token_ids) + len(ids) - 1
            for output, ids in zip(outputs, answers, strict=True)
        )
        counts = [] if "parallel_ops" not in options else llm.collective_rpc("sent_bytes")
        sent = [
            sum(count for name, count in rank["tp"].items() if name != "gather") for rank in counts
        ]
        return Outcome([o.outputs[0].text for o in outputs], answers, computed, sent)
    finally:
        llm.shutdown()


def against_one_process(parts: Parts) -> str:
    """Two processes with the learner's parts must give one's tokens, and the bytes predicted."""
    with one_thread():  # as many as a rank has
        alone = run()
    ops = ParallelOps(parts.all_reduce, parts.row_parallel_linear)
    try:
        together = run(tensor_parallel_size=NUM_RANKS, parallel_ops=ops, rank_timeout=PATIENCE_S)
    except RankError as error:
        raise Mismatch(
            "On real processes a rank failed, although it did not on simulated ones.",
            got=str(error)[-1500:],
            look="Does your code keep something from call to call, or read what stands in another "
            "cell? A rank is a process of its own: it gets your function, and no variables that "
            "change.",
        ) from None
    for prompt, want, got in zip(PROMPTS, alone.token_ids, together.token_ids, strict=True):
        # Two halves that are added round otherwise than one sum.
        if not is_hf_greedy(prompt, got, want):
            raise Mismatch(
                "The tokens differ from those of one process.",
                input=f"`{prompt}`",
                expected=f"`{want}`",
                got=f"`{got}`",
                look="Run the checks of exercises 3 and 6 again.",
            )
    layers, hidden, itemsize = 30, 576, 4
    predicted = parts.sent_bytes(layers, hidden, together.num_computed, itemsize, NUM_RANKS, 1, 0)
    if any(sent != predicted for sent in together.sent):
        raise Mismatch(
            "The bytes that your ring sends are not those of your formula.",
            input=f"{together.num_computed} tokens, {NUM_RANKS} ranks",
            expected=f"{predicted:,} by each rank",
            got=describe(together.sent),
            look="The formula is right: exercise 10's check says so. Does your ring "
            "send more than it must?",
        )
    text = together.texts[0].strip().splitlines()[0]
    return (
        f"Two processes, one model: the same {sum(map(len, alone.token_ids))} tokens as in one "
        f"process. For {together.num_computed} tokens your ring sent {predicted:,} bytes from each "
        f"rank, to the byte what your formula said. {PROMPTS[0]!r} goes on: {text!r}."
    )
