"""The checks of lab 15: what is drawn, and what is right.

Oracles: sums and products in one place, torch's own way of dealing out, a clock, one message after
the other. Ranks are simulated in this process; the last exercise starts real ones.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from utils.checks.kit.contracts import Choices, Fault, Given, Returns
from utils.checks.kit.contracts.differences import difference
from utils.checks.kit.contracts.inputs import tensor
from utils.checks.kit.lab.engine import speaks_first
from utils.checks.kit.lab.lab import Lab
from utils.checks.kit.runner import Mismatch, call
from utils.checks.lab_15 import answers, real_ranks
from utils.checks.lab_15.judging import OnRanks, ThroughRun, on_ranks, results_of_ranks

LAB = Lab(__file__)
VALUES = ("plain", "plain", "large", "ties")
PLAIN = ("plain", "plain", "ties")
DTYPES = (torch.float32, torch.float32, torch.float64)
SHORT = 120  # characters: longer lists of numbers are left out of the words for an input

# Exercises 1 to 3: a ring that adds up, a ring that tells everybody, and both together


def draw_size(c: Choices) -> int:
    return c.pick((2, 3, 2, 3, 4, 5, 1))


def draw_chunks(c: Choices) -> Given:
    """Each rank has a chunk for each rank; chunk `i` has the same shape everywhere."""
    size, tail = draw_size(c), ((3,) if c.rarely(4) else ())
    shapes = [(c.size(0, 6), *tail) for _ in range(size)]
    dtype = c.pick(DTYPES)
    per_rank = [[tensor(c, s, values=VALUES).to(dtype) for s in shapes] for _ in range(size)]
    return Given(per_rank, c.integer(0, 3))


def added_chunks(chunks: list[list[Tensor]], order: int) -> list[Tensor]:
    """Rank `r` gets the sum of everybody's chunk `r`."""
    return [torch.stack(of_all).sum(0) for of_all in zip(*chunks, strict=True)]


def run_reduce_scatter(answer: Callable[..., Any], chunks: list[list[Tensor]], order: int) -> Any:
    return on_ranks(answer, [(mine,) for mine in chunks], order, bare=True)


def all_but_own(expected: list[Tensor], got: OnRanks, given: Given) -> Fault | None:
    chunks = given.args[0]

    def most(rank: int) -> int:
        return sum(chunk.nbytes for i, chunk in enumerate(chunks[rank]) if i != rank)

    return results_of_ranks(expected, got, most, ring=True)


def tell_ranks(given: Given) -> str:
    """Sizes of what the ranks have; numbers only where there are few."""
    per_rank = given.args[0]
    shapes = [tuple(t.shape) for t in (per_rank[0] if isinstance(per_rank[0], list) else per_rank)]
    numbers = [
        [rounded(t) for t in mine] if isinstance(mine, list) else rounded(mine) for mine in per_rank
    ]
    return f"{len(per_rank)} ranks, shapes {shapes}" + if_short(f", {numbers}")


def rounded(tensor: Tensor) -> Any:
    return (tensor.double() * 100).round().div(100).tolist()


def if_short(text: str) -> str:
    return text if len(text) < SHORT else ""


ring_reduce_scatter = LAB.check(
    answers.ring_reduce_scatter,
    draw_chunks,
    ThroughRun(added_chunks, run_reduce_scatter, wrong=all_but_own),
    tell=tell_ranks,
    examples=60,
)


def draw_owned(c: Choices) -> Given:
    """A tensor of each rank's own, of different sizes."""
    size, tail, dtype = draw_size(c), ((2,) if c.rarely(4) else ()), c.pick(DTYPES)
    owned = [tensor(c, (c.size(0, 6), *tail), values=VALUES).to(dtype) for _ in range(size)]
    like = [[torch.full_like(t, 7) for t in owned] for _ in owned]  # only shape and dtype count
    return Given(owned, like, c.integer(0, 3))


def all_tensors(owned: list[Tensor], like: list[list[Tensor]], order: int) -> list[list[Tensor]]:
    return [list(owned) for _ in owned]


def run_all_gather(
    answer: Callable[..., Any], owned: list[Tensor], like: list[list[Tensor]], order: int
) -> Any:
    return on_ranks(answer, list(zip(owned, like, strict=True)), order, bare=True)


def all_but_next(expected: list[list[Tensor]], got: OnRanks, given: Given) -> Fault | None:
    owned = given.args[0]

    def most(rank: int) -> int:
        return sum(t.nbytes for i, t in enumerate(owned) if i != (rank + 1) % len(owned))

    return results_of_ranks(expected, got, most, ring=True)


ring_all_gather = LAB.check(
    answers.ring_all_gather,
    draw_owned,
    ThroughRun(all_tensors, run_all_gather, wrong=all_but_next),
    tell=tell_ranks,
    examples=60,
)


def draw_tensors(c: Choices) -> Given:
    """Each rank's summand: any shape, none included, and any place in memory."""
    size, dtype = draw_size(c), c.pick(DTYPES)
    shape = [c.size(0, 9)] + [c.size(0, 3) for _ in range(c.integer(0, 2))]
    if c.rarely(12):
        shape = []
    tensors = [tensor(c, shape, values=VALUES).to(dtype) for _ in range(size)]
    if c.rarely(6):  # whole numbers that no float32 holds
        tensors = [(t * 100).long() * 12_345_679 for t in tensors]
    return Given(tensors, c.integer(0, 3))


def sums(tensors: list[Tensor], order: int) -> list[Tensor]:
    return [torch.stack(tensors).sum(0)] * len(tensors)


def run_all_reduce(answer: Callable[..., Any], tensors: list[Tensor], order: int) -> Any:
    return on_ranks(answer, [(mine,) for mine in tensors], order, bare=True)


def twice_the_share(expected: list[Tensor], got: OnRanks, given: Given) -> Fault | None:
    size, mine = len(given.args[0]), given.args[0][0]
    largest = math.ceil(mine.numel() / size)
    most = 2 * (size - 1) * largest * mine.element_size()
    return results_of_ranks(expected, got, lambda _: most, ring=True, same_bits=True)


ring_all_reduce = LAB.check(
    answers.ring_all_reduce,
    draw_tensors,
    ThroughRun(sums, run_all_reduce, wrong=twice_the_share),
    tell=tell_ranks,
    examples=60,
)

# Exercises 4 and 5: which heads, and which rows and columns, a rank gets


def draw_heads(c: Choices) -> Given:
    """Ranks that divide the KV heads, that do not, and now and then too many."""
    kv_heads, group_size = c.size(1, 16), c.pick((1, 2, 3, 4, 8))
    tp_size = c.integer(1, kv_heads + (1 if c.rarely(8) else 0))
    return Given(kv_heads * group_size, kv_heads, c.integer(0, tp_size - 1), tp_size)


def dealt_heads(num_heads: int, num_kv_heads: int, tp_rank: int, tp_size: int) -> Any:
    """As torch deals out numbers; each query head with the KV head that it shares."""
    if tp_size > num_kv_heads:
        raise ValueError
    kv = torch.arange(num_kv_heads).tensor_split(tp_size)[tp_rank].tolist()
    queries = [q for q in range(num_heads) if q * num_kv_heads // num_heads in kv]
    return range(queries[0], queries[-1] + 1), range(kv[0], kv[-1] + 1)


def two_ranges(expected: Any, got: Any, given: Given) -> Fault | None:
    if not isinstance(got, tuple | list) or len(got) != 2:
        return Fault("form", "", expected, got)
    if not all(isinstance(came, range) for came in got):
        return Fault("form", "", expected, got)
    (queries, kv), (my_queries, my_kv) = expected, got
    if (my_kv, my_queries) == (queries, kv) != (kv, queries):
        return Fault("swapped", "", expected, got)
    # Query heads follow the KV heads: if both are wrong, those are the cause.
    if my_kv != kv:
        return Fault("kv", "", expected, got)
    return None if my_queries == queries else Fault("queries", "", expected, got)


def praise_heads(answer: Any) -> str:
    return (
        f"Right. With your function the bundled model's 9 heads on 2 ranks: "
        f"query heads {answer(9, 3, 0, 2)[0]} and {answer(9, 3, 1, 2)[0]}."
    )


shard_heads = LAB.check(
    answers.shard_heads, draw_heads, Returns(dealt_heads, wrong=two_ranges), passed=praise_heads
)


def draw_mlp(c: Choices) -> Given:
    """A stacked gate and up, and a down projection, whose width need not divide."""
    hidden, width, dtype = c.size(1, 6), c.size(1, 9), c.pick(DTYPES)
    size = c.integer(1, 4)
    gate_up, down = (
        tensor(c, shape, values=("plain",)).to(dtype)
        for shape in ((2 * width, hidden), (hidden, width))
    )
    return Given(gate_up, down, c.integer(0, size - 1), size)


def cut_mlp(gate_up: Tensor, down: Tensor, tp_rank: int, tp_size: int) -> tuple[Tensor, Tensor]:
    """Column by column: those whose number falls to this rank."""
    width = down.shape[1]
    mine = torch.arange(width).tensor_split(tp_size)[tp_rank]
    return gate_up[torch.cat([mine, mine + width])], down[:, mine]


def two_tensors(expected: Any, got: Any, given: Given) -> Fault | None:
    if not isinstance(got, tuple | list) or len(got) != 2:
        return Fault("form", "", "two tensors", got)
    for clause, want, came in zip(("gate_up", "down"), expected, got, strict=True):
        if says := difference(want, came):
            return Fault(clause, "", want, came, says)
    return None


def tell_mlp(given: Given) -> str:
    gate_up, down, rank, size = given.args
    return (
        f"gate_up {tuple(gate_up.shape)}, down {tuple(down.shape)}, tp_rank {rank}, tp_size {size}"
    )


shard_mlp = LAB.check(
    answers.shard_mlp, draw_mlp, Returns(cut_mlp, wrong=two_tensors), tell=tell_mlp, examples=100
)

# Exercises 6 and 7: a row-parallel layer, and embeddings of which each rank has some


def draw_row(c: Choices) -> Given:
    """An input and a weight, cut along their common dimension into uneven parts."""
    tokens, out = c.size(0, 4), c.size(1, 5)
    widths = [c.size(1, 4) for _ in range(c.pick((2, 3, 2, 1)))]
    xs = [tensor(c, (tokens, width), values=PLAIN) for width in widths]
    weights = [tensor(c, (out, width), values=PLAIN) for width in widths]
    return Given(xs, weights, c.integer(0, 3))


def whole_product(xs: list[Tensor], weights: list[Tensor], order: int) -> list[Tensor]:
    """What one rank with everything computes."""
    return [torch.cat(xs, 1) @ torch.cat(weights, 1).T] * len(xs)


def run_row(cls: Any, xs: list[Tensor], weights: list[Tensor], order: int) -> OnRanks:
    def on_rank(group: Any, x: Tensor, weight: Tensor) -> Tensor:
        layer = cls(weight.shape[1], weight.shape[0], group)
        if not isinstance(layer, nn.Module):
            raise Mismatch("Your class isn't an `nn.Module`, so the engine can't load its weight.")
        held = dict(layer.named_parameters())
        if [*held] != ["weight"]:
            raise Mismatch(
                "The layer must have one parameter, called `weight`.",
                expected="`['weight']`",
                got=f"`{[*held]}`",
                look="`self.weight = nn.Parameter(torch.empty(...))`. A plain tensor is "
                "not loaded, and every rank would add a bias once.",
            )
        if held["weight"].shape != weight.shape:
            raise Mismatch(
                "The weight's shape is wrong.",
                expected=f"`{tuple(weight.shape)}`",
                got=f"`{tuple(held['weight'].shape)}`",
                look="Outputs are rows: `(output_size, input_size)`.",
            )
        layer.requires_grad_(False)
        held["weight"].zero_()
        layer(x)
        held["weight"].copy_(weight)  # in place: what a layer keeps of its weight is old now
        return layer(x)

    return on_ranks(on_rank, list(zip(xs, weights, strict=True)), order)


def ring_of_outputs(
    expected: list[Tensor], got: OnRanks, given: Given, calls: int = 1
) -> Fault | None:
    size, out = len(expected), expected[0]
    most = calls * 2 * (size - 1) * -(-out.numel() // size) * out.element_size()
    return results_of_ranks(expected, got, lambda _: most, same_bits=True)


def tell_row(given: Given) -> str:
    xs, weights, _ = given.args
    numbers = f", x {[rounded(x) for x in xs]}, weights {[rounded(w) for w in weights]}"
    shapes = [tuple(x.shape) for x in xs]
    return f"{len(xs)} ranks, shapes of their x {shapes}" + if_short(numbers)


row_parallel_linear = LAB.check(
    answers.RowParallelLinear,
    draw_row,
    ThroughRun(whole_product, run_row, wrong=functools.partial(ring_of_outputs, calls=2)),
    tell=tell_row,
    examples=60,
)


def draw_vocabulary(c: Choices) -> Given:
    """A table cut between neighboring tokens; a rank may have none of what is asked for."""
    sizes = [c.size(1, 4) for _ in range(c.pick((2, 3, 2, 1)))]
    table = tensor(c, (sum(sizes), c.size(1, 4)), values=PLAIN).to(c.pick(DTYPES))
    ids = c.some(lambda: c.integer(0, sum(sizes) - 1), 0, 6)
    return Given(torch.tensor(ids, dtype=torch.int64), list(table.split(sizes)), c.integer(0, 3))


def looked_up(input_ids: Tensor, tables: list[Tensor], order: int) -> list[Tensor]:
    return [torch.cat(tables)[input_ids]] * len(tables)


def vocabularies(tables: list[Tensor]) -> list[range]:
    ends = torch.tensor([len(t) for t in tables]).cumsum(0).tolist()
    return [range(end - len(t), end) for end, t in zip(ends, tables, strict=True)]


def run_embedding(
    answer: Callable[..., Any], input_ids: Tensor, tables: list[Tensor], order: int
) -> OnRanks:
    given = input_ids.clone()

    def on_rank(group: Any, table: Tensor, vocabulary: range) -> Any:
        ids = given.clone()  # as on a rank of its own
        found = answer(ids, table, vocabulary, group)
        if not torch.equal(ids, given):
            input_ids.copy_(ids)  # the judge sees that they were changed
        return found

    return on_ranks(on_rank, list(zip(tables, vocabularies(tables), strict=True)), order)


vocab_parallel_embedding = LAB.check(
    answers.vocab_parallel_embedding,
    draw_vocabulary,
    ThroughRun(looked_up, run_embedding, wrong=ring_of_outputs),
    tell=lambda given: (
        f"input_ids {given.args[0].tolist()}, vocabularies {vocabularies(given.args[1])}"
    ),
    examples=60,
)

# Exercise 8: how long the stages of a pipeline stand idle


def draw_pipeline(c: Choices) -> Given:
    """Stages that take equally long, or do not; few micro-batches, or many."""
    stages = c.some(lambda: c.pick((1.0, 2.0, 3.0, 0.5)), 1, 6)
    if c.rarely(3):
        stages = [stages[0]] * len(stages)
    return Given(stages, c.size(1, 12))


def idle_share(stage_seconds: Sequence[float], num_micro_batches: int) -> float:
    """By the clock: in each half of a second, who works?"""
    tick, now, busy = 0.5, 0, 0
    left = [0] * len(stage_seconds)  # ticks that the micro-batch in hand still takes
    waiting = [num_micro_batches, *[0] * (len(stage_seconds) - 1)]
    done = 0
    while done < num_micro_batches:
        for stage, seconds in enumerate(stage_seconds):
            if not left[stage] and waiting[stage]:
                waiting[stage] -= 1
                left[stage] = round(seconds / tick)
        finished = []
        for stage in range(len(left)):
            if left[stage]:
                busy += 1
                left[stage] -= 1
                if not left[stage]:
                    finished.append(stage)
        now += 1
        for stage in finished:
            if stage + 1 == len(left):
                done += 1
            else:
                waiting[stage + 1] += 1
    return 1 - busy / (now * len(stage_seconds))


def praise_pipeline(answer: Any) -> str:
    return (
        "Right, also where stages differ. Four equal stages are idle "
        f"{answer([1.0] * 4, 1):.0%} of the time with 1 micro-batch, {answer([1.0] * 4, 4):.0%} "
        f"with 4, {answer([1.0] * 4, 16):.0%} with 16."
    )


pipeline_idle_share = LAB.check(
    answers.pipeline_idle_share,
    draw_pipeline,
    Returns(idle_share, atol=1e-9),
    passed=praise_pipeline,
)

# Exercise 9: tokens to their experts on other ranks, and back to their places


def run_expert(expert: int, rows: Tensor) -> Tensor:
    """Expert number `e`: rows times `e + 1`, plus `e`."""
    return rows * (expert + 1) + expert


def draw_tokens(c: Choices) -> Given:
    """Each rank has its own tokens, or none; each token its own choice of experts."""
    size, per_rank, hidden = c.pick((2, 3, 2, 1)), c.integer(1, 3), c.integer(1, 2)
    experts = size * per_rank
    top_k = c.integer(1, min(3, experts))
    xs, choices, weights = [], [], []
    for _ in range(size):
        rows = c.some(lambda: c.shuffled(range(experts))[:top_k], 0, 4)
        xs.append(tensor(c, (len(rows), hidden), values=("plain",)))
        choices.append(torch.tensor(rows, dtype=torch.int64).view(len(rows), top_k))
        weights.append(tensor(c, (len(rows), top_k), values=("plain",), layouts=("contiguous",)))
    return Given(xs, choices, weights, per_rank, c.integer(0, 3))


def token_by_token(
    xs: list[Tensor], choices: list[Tensor], weights: list[Tensor], per_rank: int, order: int
) -> list[Tensor]:
    """One rank with all experts, one token after the other."""
    results = []
    for x, chosen, weight in zip(xs, choices, weights, strict=True):
        y = torch.zeros_like(x)
        for t in range(len(x)):
            for slot, expert in enumerate(chosen[t].tolist()):
                y[t] += weight[t, slot] * run_expert(expert, x[t])
        results.append(y)
    return results


def run_layer(
    answer: Callable[..., Any],
    xs: list[Tensor],
    choices: list[Tensor],
    weights: list[Tensor],
    per_rank: int,
    order: int,
) -> OnRanks:
    def on_rank(group: Any, x: Tensor, chosen: Tensor, weight: Tensor) -> Any:
        mine = range(group.rank_in_group * per_rank, (group.rank_in_group + 1) * per_rank)

        def run_mine(expert: int, rows: Tensor) -> Tensor:
            if int(expert) not in mine:
                raise Mismatch(
                    f"Rank {group.rank_in_group} runs expert {int(expert)}, which "
                    f"lives on rank {int(expert) // per_rank}.",
                    look="Experts are numbered over all ranks: rank `r` has those from `r * "
                    "experts_per_rank` on.",
                )
            return run_expert(int(expert), rows)

        return answer(x, chosen, weight, run_mine, per_rank, group)

    return on_ranks(on_rank, list(zip(xs, choices, weights, strict=True)), order)


def results_and_rows(expected: list[Tensor], got: OnRanks, given: Given) -> Fault | None:
    """Each row travels once there and once back; beside it a few numbers for each row and rank."""
    xs, choices, _, per_rank, _ = given.args
    size, hidden = len(xs), xs[0].shape[1]
    owner = [chosen // per_rank for chosen in choices]

    def most(rank: int) -> int:
        out = int((owner[rank] != rank).sum())
        back = sum(int((owner[other] == rank).sum()) for other in range(size) if other != rank)
        numbers = (out + back) * 3 * 8 + 8 * (size - 1) * (1 + 3 * per_rank)
        return (out + back) * hidden * 4 + numbers

    return results_of_ranks(expected, got, most)


def tell_tokens(given: Given) -> str:
    """Who has how many tokens, and which experts they chose; numbers where there are few."""
    xs, choices, weights, per_rank, _ = given.args
    chosen = ", ".join(str(mine.tolist()) for mine in choices)
    numbers = (
        f", x {[rounded(x) for x in xs]}, weights {[rounded(w) for w in weights]}, and expert e "
        "makes x * (e + 1) + e of x"
    )
    return (
        f"{len(xs)} ranks, experts_per_rank {per_rank}, expert_ids of each rank {chosen}"
        + if_short(numbers)
    )


expert_parallel = LAB.check(
    answers.expert_parallel,
    draw_tokens,
    ThroughRun(token_by_token, run_layer, wrong=results_and_rows),
    tell=tell_tokens,
    examples=60,
)

# Exercise 10: what a rank sends in a step of a layout, by formula


def draw_layout(c: Choices) -> Given:
    """Sizes that divide: heads and columns by TP, layers by PP."""
    tp, pp = c.pick((2, 1, 3, 4, 8)), c.pick((1, 2, 3))
    layers, hidden, tokens = pp * c.size(1, 20), tp * c.size(1, 64), c.size(1, 300)
    return Given(layers, hidden, tokens, c.pick((2, 4)), tp, pp, c.integer(0, pp - 1))


def played_through(
    num_layers: int,
    hidden_size: int,
    num_tokens: int,
    itemsize: int,
    tp_size: int,
    pp_size: int,
    stage: int,
) -> int:
    """Message by message: every chunk of every sum, and what goes to the next stage."""
    sent = 0
    sums = ["embedding"] if stage == 0 else []
    for layer in range(num_layers):
        if layer * pp_size // num_layers == stage:
            sums += [f"attention {layer}", f"mlp {layer}"]
    for _ in sums:
        for _phase in ("reduce-scatter", "all-gather"):
            for _step in range(tp_size - 1):
                sent += num_tokens * hidden_size // tp_size * itemsize
    if stage + 1 < pp_size:
        sent += num_tokens * hidden_size * itemsize
    return sent


def same_int(expected: int, got: Any, given: Given) -> Fault | None:
    if says := difference(expected, got):
        return Fault("returns", "", expected, got, says)
    return None if isinstance(got, int) else Fault("int", "", expected, got)


def praise_bytes(answer: Any) -> str:
    return (
        f"Right. A token of Llama-3-70B in 16 bit, TP=8: a rank sends "
        f"{answer(80, 8192, 1, 2, 8, 1, 0) / 1e6:.1f} MB. With PP=8 a stage sends "
        f"{answer(80, 8192, 1, 2, 1, 8, 0) / 1e3:.0f} kB."
    )


sent_bytes = LAB.check(
    answers.sent_bytes, draw_layout, Returns(played_through, wrong=same_int), passed=praise_bytes
)

# Exercise 11


@LAB.exercise
def engine(make_parts: Callable[[], real_ranks.Parts]) -> str:
    """The learner's parts on simulated ranks, then on two processes with the real model."""
    parts = call(make_parts)
    speaks_first(ring_all_reduce, parts.all_reduce)
    speaks_first(row_parallel_linear, parts.row_parallel_linear)
    speaks_first(sent_bytes, parts.sent_bytes)
    return real_ranks.against_one_process(parts)
