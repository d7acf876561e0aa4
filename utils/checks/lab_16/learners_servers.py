"""Two vLLM servers with a learner's connector inside: the end of lab 16, without points."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cloudpickle

from utils.checks.lab_16.learners_parts import Parts
from utils.disaggregation.valkey import ValkeyServer
from utils.disaggregation.vllm_servers import cache_counts, complete, connected_servers

LENGTH, BLOCK_SIZE, MAX_TOKENS = 334, 32, 12


def try_in_vllm(make_parts: Callable[[], Parts]) -> None:
    """Let one vLLM server compute a prompt, and another one find it; print what both say.

    The last check has passed, so the parts are right. The learner's store and scheduler's side stay
    here: vLLM's processes share a Valkey server, and the course's connector keeps the books.
    """
    parts = make_parts()
    dice = random.Random(0)
    prompt = [dice.randrange(1000, 30000) for _ in range(LENGTH)]
    with ValkeyServer() as store, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "parts.pickle"
        # Functions of a notebook have no module that another process could import.
        kept = replace(parts, store=dict, scheduler_side=dict, matched_tokens=dict)  # type: ignore[arg-type]
        file.write_bytes(cloudpickle.dumps(kept))
        first, second = connected_servers(
            store.port,
            connector="LearnersConnector",
            module="utils.checks.lab_16.inside_vllm",
            extra_config={"parts": str(file)},
        )
        with first, second:
            one = complete(first, prompt, MAX_TOKENS)
            before = cache_counts(second)
            other = complete(second, prompt, MAX_TOKENS)
            gained = cache_counts(second) - before
    predicted = (LENGTH - 1) // BLOCK_SIZE * BLOCK_SIZE
    print(f"vLLM's counter: {gained.external_hits} of {LENGTH} prompt tokens came from the first")
    print(f"server, through your bytes under your keys; predicted: {predicted}")
    print(f"the same {MAX_TOKENS} tokens from both: {one.token_ids == other.token_ids}")
