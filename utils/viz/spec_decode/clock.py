"""Clocks for guessing ahead: the price of a pass, and engines that run side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean, median

import torch

from utils.engine import LLM, LLMEngine, SamplingParams, SpeculativeConfig
from utils.engine.attention.batch import Span, paged_batch
from utils.engine.core.step_record import StepRecord
from utils.timing import fastest_seconds, median_seconds
from utils.viz.model.roofline import Machine

BEFORE = 256  # tokens that those of a timed pass follow


def measure_machine(device: torch.device) -> Machine:
    """As in notebook 01: a product that only calculates, and one that only reads."""
    square, tall = torch.randn(2048, 2048, device=device), torch.randn(49152, 2048, device=device)
    flops = 2 * 2048**3 / fastest_seconds(lambda: square @ square)
    return Machine(flops, tall.nbytes / fastest_seconds(lambda: tall @ square[0]))


@torch.inference_mode()
def pass_seconds(llm: LLM, sizes: Sequence[int], repeats: int = 5) -> list[float]:
    """Median seconds of a pass over n tokens of one request, for each n of `sizes`.

    The tokens follow 256 others. The sizes take turns, so that a disturbance hits all alike.
    """
    kv_cache, device = llm.new_engine().kv_cache, llm.config.device
    assert kv_cache is not None
    block_ids = list(range(-(-(BEFORE + max(sizes)) // kv_cache.block_size)))
    tokens = torch.randint(len(llm.get_tokenizer()), (max(sizes),), device=device)

    def one_pass(n: int) -> None:
        positions = torch.arange(BEFORE, BEFORE + n, device=device)
        batch = paged_batch(kv_cache, [Span(block_ids, BEFORE, n)])
        llm.model.compute_logits(llm.model(tokens[:n], positions, batch))

    one_pass(max(sizes))
    rounds = [
        [median_seconds(partial(one_pass, n), repeats=1, warmup=0) for n in sizes]
        for _ in range(repeats)
    ]
    return [median(of_size) for of_size in zip(*rounds, strict=True)]


def run(
    llm: LLM,
    prompts: Sequence[list[int]],
    spec: SpeculativeConfig | None = None,
    batch: int = 1,
    max_tokens: int = 32,
) -> tuple[list[list[int]], LLMEngine]:
    """Greedy answers of an engine that guesses by `spec`, `batch` requests at a time.

    Returns:
        The answers, and the engine, which has traced its steps.
    """
    changes = {"speculative_config": spec, "max_num_seqs": batch}
    llm.llm_engine = engine = llm.new_engine(changes=changes)
    engine.step_trace = []
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    outputs = llm.generate(list(prompts), params, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs], engine


def race(
    llm: LLM,
    prompts: Sequence[list[int]],
    methods: Mapping[str, SpeculativeConfig],
    batch: int = 1,
    max_tokens: int = 32,
) -> tuple[dict[str, LLMEngine], dict[str, list[list[int]]]]:
    """Engines that guess by these methods and one without, "none": a step of each in turn.

    So a disturbance hits all alike. They decode greedily, `batch` requests at a time.

    Returns:
        By method: the engine, which has traced its steps, and its answers.
    """
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    engines: dict[str, LLMEngine] = {}
    written: defaultdict[str, dict[str, list[int]]] = defaultdict(dict)
    for method, spec in {"none": None, **methods}.items():
        changes = {"speculative_config": spec, "max_num_seqs": batch}
        engines[method] = engine = llm.new_engine(changes=changes)
        engine.step_trace = []
        for number, prompt in enumerate(prompts):
            engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
    while running := {m: e for m, e in engines.items() if e.has_unfinished_requests()}:
        for method, engine in running.items():
            for output in engine.step():
                written[method][output.request_id] = output.outputs[0].token_ids
    order = [str(number) for number in range(len(prompts))]
    return engines, {m: [texts[number] for number in order] for m, texts in written.items()}


def decode_steps(engine: LLMEngine) -> list[StepRecord]:
    """The traced steps in which each request had one token to compute, and its guesses."""
    return [
        step
        for step in engine.step_trace or []
        if all(tokens.num_new - tokens.num_draft == 1 for tokens in step.tokens.values())
    ]


def seconds_per_token(engine: LLMEngine) -> float:
    """Of the decode steps. Each counts as the median of those of its size, against noise."""
    seconds, gained = defaultdict(list), 0
    for step in decode_steps(engine):
        size = sum(tokens.num_new for tokens in step.tokens.values())
        seconds[size].append(step.end - step.start)
        gained += sum(tokens.num_sampled for tokens in step.tokens.values())
    return sum(len(values) * median(values) for values in seconds.values()) / gained


def guess_seconds(engine: LLMEngine) -> float:
    """Median seconds from when a step's new tokens are booked to when the next guesses are made."""
    return median(step.end - step.processed for step in decode_steps(engine))


@dataclass(frozen=True)
class StepParts:
    """What a step of the engine is made of, in seconds.

    Args:
        verification: the model's pass over the new tokens and the guesses.
        drafting: making the next guesses.
        rest: everything else: scheduling, booking the new tokens.
    """

    verification: float
    drafting: float
    rest: float

    def __str__(self) -> str:
        """In milliseconds."""
        named = {"verification": self.verification, "drafting": self.drafting, "rest": self.rest}
        return ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in named.items()) + " ms"


def step_parts(engine: LLMEngine) -> StepParts:
    """Mean parts of an engine's decode steps.

    Each time counts as the median of those of steps of its size, against noise.
    """
    of_size = defaultdict(list)
    for step in decode_steps(engine):
        verification, drafting = step.executed - step.started, step.end - step.processed
        rest = step.end - step.start - verification - drafting
        size = sum(tokens.num_new for tokens in step.tokens.values())
        of_size[size].append((verification, drafting, rest))
    typical = [
        tuple(median(part) for part in zip(*steps, strict=True))
        for steps in of_size.values()
        for _ in steps
    ]
    return StepParts(*(mean(part) for part in zip(*typical, strict=True)))
