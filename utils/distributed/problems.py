"""What breaks in a layout, each as a sentence that says what and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from utils.distributed.hardware import GIB, Cluster
from utils.distributed.layouts import Layout, fullest
from utils.distributed.shapes import Shape
from utils.distributed.step_time import StepTime, decode_step

Kind = Literal["refused", "does not fit", "waste", "slow"]


@dataclass(frozen=True)
class Problem:
    """One thing that breaks.

    Attributes:
        kind: "refused" by vLLM (or by the course's engine, with `uneven`); "does not fit" into the
            card; "waste" of memory or work; "slow", because a link is.
        sentence: what and why, with the numbers.
    """

    kind: Kind
    sentence: str


def find_problems(
    shape: Shape,
    layout: Layout,
    cluster: Cluster,
    requests: int = 1,
    context: int = 1024,
    itemsize: int = 2,
) -> list[Problem]:
    """What breaks if a model runs like this, the worst first. Empty: nothing does.

    Args:
        requests: of one replica at the same time.
        context: tokens of each request.
        itemsize: bytes of a number.
    """
    refused = [Problem("refused", sentence) for sentence in _refused(shape, layout)]
    if refused:
        return refused  # of a layout that cannot be, there is nothing more to say
    found = _does_not_fit(shape, layout, cluster, requests, context, itemsize)
    found += [Problem("waste", sentence) for sentence in _waste(shape, layout, requests)]
    if not any(problem.kind == "does not fit" for problem in found):
        step = decode_step(shape, layout, cluster, requests, context, itemsize)
        found += _slow(layout, cluster, step)
    return found


def _refused(shape: Shape, layout: Layout) -> list[str]:
    tp, pp, ranks = (
        layout.tensor_parallel_size,
        layout.pipeline_parallel_size,
        layout.expert_ranks,
    )
    heads, kv_heads = shape.num_attention_heads, shape.num_key_value_heads
    found = []
    if layout.uneven and tp > kv_heads:
        found.append(f"{kv_heads} KV heads cannot be dealt out to {tp} ranks: one gets none.")
    if not layout.uneven:
        if heads % tp:
            found.append(f"{heads} query heads cannot be divided by TP={tp}.")
        elif not shape.is_mla and kv_heads % tp and tp % kv_heads:
            found.append(f"{kv_heads} KV heads can be neither divided by TP={tp} nor copied to it.")
        if shape.intermediate_size % tp:
            found.append(
                f"The MLP's {shape.intermediate_size} columns cannot be divided by TP={tp}."
            )
    if pp > shape.num_hidden_layers:
        found.append(f"{shape.num_hidden_layers} layers are fewer than PP={pp} stages.")
    if shape.num_experts and layout.enable_expert_parallel and ranks > shape.num_experts:
        found.append(
            f"{shape.num_experts} experts are fewer than the {ranks} ranks (TP x DP) they go to."
        )
    if shape.num_experts and not layout.enable_expert_parallel:
        width = shape.moe_intermediate_size
        if width % ranks:
            found.append(f"An expert's {width} columns cannot be divided by TP x DP={ranks}.")
    if layout.enable_expert_parallel and not shape.num_experts:
        found.append(f"{shape.name} has no experts, so there is nothing for EP to deal out.")
    return found


def _does_not_fit(
    shape: Shape, layout: Layout, cluster: Cluster, requests: int, context: int, itemsize: int
) -> list[Problem]:
    memory = fullest(shape, layout, cluster.gpu, itemsize)
    usable = f"the {memory.usable / GIB:.0f} GiB that an engine may take of a {cluster.gpu.name}"
    if not memory.fits:
        return [
            Problem(
                "does not fit",
                f"{memory.weights / GIB:.0f} GiB of weights on one card: more than {usable}.",
            )
        ]
    needed = requests * context
    if needed <= memory.tokens:
        return []
    fit = memory.tokens // context
    return [
        Problem(
            "does not fit",
            f"The KV cache of {requests} x {context:,} tokens: beside the weights there is room "
            f"for {memory.tokens:,} tokens, which is {fit} of the requests. The others wait.",
        )
    ]


def _waste(shape: Shape, layout: Layout, requests: int) -> list[str]:
    tp, pp, ranks = (
        layout.tensor_parallel_size,
        layout.pipeline_parallel_size,
        layout.expert_ranks,
    )
    kv_heads = shape.num_key_value_heads
    found = []
    if shape.is_mla and tp > 1:
        found.append(
            f"MLA has one cached vector for all heads, so all {tp} TP ranks keep the same KV "
            f"cache. DP for attention, with EP for the experts, does not."
        )
    elif tp > kv_heads and not layout.uneven:
        found.append(
            f"{kv_heads} KV heads for {tp} ranks: each head is kept {tp // kv_heads} times, and "
            f"the KV cache of a rank shrinks no further."
        )
    elif layout.uneven and kv_heads % tp:
        most = -(-kv_heads // tp)
        found.append(
            f"{kv_heads} KV heads on {tp} ranks: some have {most}, some {most - 1}, and all wait "
            f"for the first."
        )
    if shape.num_hidden_layers % pp:
        most = -(-shape.num_hidden_layers // pp)
        found.append(
            f"{shape.num_hidden_layers} layers in {pp} stages: some have {most}, some {most - 1}, "
            f"and all wait for the first."
        )
    if layout.enable_expert_parallel and shape.num_experts % ranks:
        most = -(-shape.num_experts // ranks)
        found.append(
            f"{shape.num_experts} experts on {ranks} ranks: some have {most}, some {most - 1}, and "
            f"all wait for the first."
        )
    if requests < pp:
        found.append(
            f"{requests} request{'s' if requests > 1 else ''} for {pp} stages: the bubble. A stage "
            f"works at most {requests / pp:.0%} of the time."
        )
    return found


def _slow(layout: Layout, cluster: Cluster, step: StepTime) -> list[Problem]:
    spans = {
        "tp": layout.tensor_parallel_size,
        "pp": layout.tensor_parallel_size * layout.pipeline_parallel_size,
        "ep": layout.world_size,
    }
    what = {"tp": "Adding up", "pp": "Passing on", "ep": "Sending tokens to experts and back"}
    found = []
    for group, seconds in step.communication.items():
        if seconds > step.work:
            link = cluster.link(spans[group])
            found.append(
                Problem(
                    "slow",
                    f"{what[group]} over {link.name} takes {1e3 * seconds:.1f} ms of a decode "
                    f"step, longer than all work of the GPUs ({1e3 * step.work:.1f} ms).",
                )
            )
    return found
