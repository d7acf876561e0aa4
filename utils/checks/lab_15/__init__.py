"""The checks of lab 15.

Oracles: sums and products in one place, torch's own way of dealing out, a clock, one message after
the other. Ranks are simulated in this process; the last exercise starts real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from utils.checks.kit.runner import Passed, exercise
from utils.checks.lab_15 import (
    experts,
    parallel_layers,
    pipelines,
    real_ranks,
    rings,
    shards,
    wire_bytes,
)


@exercise("Exercise 1: ring_reduce_scatter", points=3)
def ring_reduce_scatter(function: Callable[..., Any]) -> str | Passed:
    """Check `ring_reduce_scatter(group, chunks)`."""
    return rings.REDUCE_SCATTER.check(function)


@exercise("Exercise 2: ring_all_gather", points=2)
def ring_all_gather(function: Callable[..., Any]) -> str | Passed:
    """Check `ring_all_gather(group, own, like)`."""
    return rings.ALL_GATHER.check(function)


@exercise("Exercise 3: ring_all_reduce", points=2)
def ring_all_reduce(function: Callable[..., Any]) -> str | Passed:
    """Check `ring_all_reduce(group, tensor)`."""
    return rings.ALL_REDUCE.check(function)


@exercise("Exercise 4: shard_heads", points=2)
def shard_heads(function: Callable[..., Any]) -> str | Passed:
    """Check `shard_heads(num_heads, num_kv_heads, tp_rank, tp_size)`."""
    return shards.HEADS.check(function)


@exercise("Exercise 5: shard_mlp", points=2)
def shard_mlp(function: Callable[..., Any]) -> str | Passed:
    """Check `shard_mlp(gate_up, down, tp_rank, tp_size)`."""
    return shards.MLP.check(function)


@exercise("Exercise 6: RowParallelLinear", points=2)
def row_parallel_linear(cls: Any) -> str | Passed:
    """Check the class `RowParallelLinear(input_size, output_size, group)`."""
    return parallel_layers.ROW.check(cls)


@exercise("Exercise 7: vocab_parallel_embedding", points=3)
def vocab_parallel_embedding(function: Callable[..., Any]) -> str | Passed:
    """Check `vocab_parallel_embedding(input_ids, weight, vocabulary, group)`."""
    return parallel_layers.EMBEDDING.check(function)


@exercise("Exercise 8: pipeline_idle_share", points=3)
def pipeline_idle_share(function: Callable[..., float]) -> str | Passed:
    """Check `pipeline_idle_share(stage_seconds, num_micro_batches)`."""
    return pipelines.PIPELINE.check(function)


@exercise("Exercise 9: expert_parallel", points=4)
def expert_parallel(function: Callable[..., Any]) -> str | Passed:
    """Check `expert_parallel(x, expert_ids, weights, run_expert, experts_per_rank, group)`."""
    return experts.EXPERTS.check(function)


@exercise("Exercise 10: sent_bytes", points=2)
def sent_bytes(function: Callable[..., int]) -> str | Passed:
    """Check `sent_bytes(num_layers, hidden_size, num_tokens, itemsize, tp_size, ...)`."""
    return wire_bytes.BYTES.check(function)


@exercise("Exercise 11: your ring runs the engine", points=4)
def engine(make_parts: Callable[[], real_ranks.Parts]) -> str | Passed:
    """Check `make_parts()` on simulated ranks, then on two processes with the real model."""
    return real_ranks.against_one_process(real_ranks.rehearse(make_parts))
