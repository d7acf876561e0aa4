"""What a pass costs, timed alone, and in turns with engines that race."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, median

import numpy as np
import torch

from utils.engine import LLM, LLMEngine, SamplingParams, SpeculativeConfig
from utils.engine.attention.batch import Span, paged_batch
from utils.engine.worker.forward_pass import forward_pass
from utils.timing import median_seconds
from utils.viz.spec_decode.clock import decode_steps


class PassPrices:
    """A price list of passes over n tokens of one request, which follow `before` cached ones.

    The sizes take turns, so that a disturbance hits all alike.
    """

    def __init__(self, llm: LLM, sizes: Sequence[int], before: int = 256) -> None:
        kv_cache = llm.new_engine().kv_cache
        assert kv_cache is not None
        self.model, self.kv_cache, self.before = llm.model, kv_cache, before
        self.block_ids = list(range(-(-(before + max(sizes)) // kv_cache.block_size)))
        vocabulary, device = len(llm.get_tokenizer()), llm.config.device
        self.token_ids = torch.randint(vocabulary, (max(sizes),), device=device)
        self.seconds: dict[int, list[float]] = {n: [] for n in sorted(sizes)}
        self._one_pass(max(sizes))  # a warm-up

    @torch.inference_mode()
    def _one_pass(self, n: int) -> None:
        positions = torch.arange(self.before, self.before + n, device=self.token_ids.device)
        batch = paged_batch(self.kv_cache, [Span(self.block_ids, self.before, n)])
        hidden = forward_pass(self.model, self.token_ids[:n], positions, batch)  # as the engine's
        assert hidden is not None
        self.model.compute_logits(hidden)

    def time_next(self) -> None:
        """Time one pass, of the size that was timed the fewest times."""
        n = min(self.seconds, key=lambda size: len(self.seconds[size]))
        self.seconds[n].append(median_seconds(lambda: self._one_pass(n), repeats=1, warmup=0))

    def __call__(self, num_tokens: float) -> float:
        """Median seconds of a pass over so many tokens; between two sizes, by a straight line."""
        return float(
            np.interp(num_tokens, list(self.seconds), [median(s) for s in self.seconds.values()])
        )


def fastest_passes(llm: LLM, sizes: Sequence[int], repeats: int = 9) -> list[float]:
    """Seconds of the fastest of `repeats` passes over n tokens of one request, for each size."""
    prices = PassPrices(llm, sizes)
    for _ in range(repeats * len(sizes)):
        prices.time_next()
    return [min(prices.seconds[n]) for n in sizes]


def priced_race(
    llm: LLM,
    prompts: Sequence[list[int]],
    methods: Mapping[str, SpeculativeConfig],
    batch: int,
    params: SamplingParams,
    prices: PassPrices,
) -> tuple[dict[str, LLMEngine], dict[str, list[list[int]]]]:
    """Engines that guess by these methods and one without, "none": a step of each in turn.

    After each round, `prices` times a pass, so that the price list is of the same minutes.

    Returns:
        By method: the engine, whose trace has the steps in which all `batch` seats are taken, and
        its answers.
    """
    engines: dict[str, LLMEngine] = {}
    written: dict[str, dict[str, list[int]]] = {}
    for method, spec in {"none": None, **methods}.items():
        changes = {"speculative_config": spec, "max_num_seqs": batch}
        engines[method], written[method] = llm.new_engine(changes=changes), {}
        engines[method].step_trace = []
        for number, prompt in enumerate(prompts):
            engines[method].add_request(str(number), {"prompt_token_ids": prompt}, params)
    while running := {m: e for m, e in engines.items() if e.has_unfinished_requests()}:
        for method, engine in running.items():
            for output in engine.step():
                written[method][output.request_id] = output.outputs[0].token_ids
        prices.time_next()
    while not all(prices.seconds.values()):
        prices.time_next()
    for engine in engines.values():
        engine.step_trace = [step for step in engine.step_trace or [] if len(step.tokens) == batch]
    order = [str(number) for number in range(len(prompts))]
    return engines, {m: [texts[number] for number in order] for m, texts in written.items()}


def gained_per_pass(engine: LLMEngine) -> float:
    """Mean tokens that a request gained in a decode step of the engine's trace."""
    return mean(
        tokens.num_sampled for step in decode_steps(engine) for tokens in step.tokens.values()
    )
