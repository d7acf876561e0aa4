"""Exercise 10: what a rank sends in a step of a layout, by formula."""

from __future__ import annotations

from collections.abc import Callable

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Returns, mistake


def draw_layout(c: Choices) -> Given:
    """Sizes that divide: heads and columns by TP, layers by PP."""
    tp, pp = c.pick((2, 1, 3, 4, 8)), c.pick((1, 2, 3))
    return Given(
        pp * c.size(1, 20),
        tp * c.size(1, 64),
        c.size(1, 300),
        c.pick((2, 4)),
        tp,
        pp,
        c.integer(0, pp - 1),
    )


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


def _variant(
    embedding: bool = True,
    stages: bool = True,
    sums: int = 2,
    both: int = 2,
    share: bool = True,
    last: bool = True,
    onward: bool = True,
    bytes_each: bool = True,
) -> Callable[..., int]:
    def formula(
        layers: int, hidden: int, tokens: int, itemsize: int, tp: int, pp: int, stage: int
    ) -> int:
        payload = tokens * hidden * (itemsize if bytes_each else 1)
        calls = sums * layers // (pp if stages else 1) + int(embedding and stage == 0)
        sent = calls * both * (tp - 1) * (payload // tp if share else payload)
        if onward and (stage + 1 < pp or (not last and pp > 1)):
            sent += payload
        return sent

    return formula


BYTES = Contract(
    inputs=draw_layout,
    judge=Returns(played_through),
    passed=lambda answer: (
        f"Right. A token of Llama-3-70B in 16 bit, TP=8: a rank sends "
        f"{answer(80, 8192, 1, 2, 8, 1, 0) / 1e6:.1f} MB. With PP=8 a stage sends "
        f"{answer(80, 8192, 1, 2, 1, 8, 0) / 1e3:.0f} kB."
    ),
    clauses={
        "returns": Clause(
            "The number of bytes is wrong. {says}",
            "Count the all-reduces of this "
            "stage, then what a rank sends in one of them, then what goes onward.",
        )
    },
    mistakes=(
        mistake(
            "The all-reduce of the embeddings is missing. The first stage has it.",
            "`2 * layers + 1` where `stage == 0`.",
            _variant(embedding=False),
        ),
        mistake(
            "You count all layers. A stage has `num_layers // pp_size` of them.",
            "Only this stage's.",
            _variant(stages=False),
        ),
        mistake(
            "One all-reduce a layer. There are two: after attention, and after the MLP.",
            "`2 * layers`.",
            _variant(sums=1),
        ),
        mistake(
            "That is the reduce-scatter only. The all-gather sends as much again.",
            "`2 (N - 1) / N`.",
            _variant(both=1),
        ),
        mistake(
            "A rank sends chunks, not the whole tensor, in each step.",
            "`2 (N - 1) / N` of the tensor.",
            _variant(share=False),
        ),
        mistake(
            "The last stage sends hidden states to nobody.",
            "`stage < pp_size - 1`.",
            _variant(last=False),
        ),
        mistake(
            "What goes to the next stage is missing.",
            "`num_tokens * hidden_size * itemsize`.",
            _variant(onward=False),
        ),
        mistake("These are numbers, not bytes.", "Times `itemsize`.", _variant(bytes_each=False)),
    ),
)
