"""What lab 16 says of fetching against computing: exercise 6."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Returns, mistake


@dataclass(frozen=True)
class Shape:
    """Of a model, in the words of Mooncake's section 2.

    Attributes:
        num_layers: l
        hidden_size: d
        heads_per_kv_head: query heads that share a KV head
        bytes_per_number: s
    """

    num_layers: int
    hidden_size: int
    heads_per_kv_head: int
    bytes_per_number: int


@dataclass(frozen=True)
class Machine:
    """What a machine can do: G, B, and the seconds until the first byte comes."""

    flops_per_second: float
    bytes_per_second: float
    round_trip_seconds: float


def draw(c: Choices) -> Given:
    """From a small model on a laptop to a large one on eight GPUs; also no tokens."""
    d = c.pick([64, 576, 4096, 8192])
    shape = Shape(c.integer(1, 80), d, c.pick([1, 3, 8]), c.pick([2, 4, 1]))
    machine = Machine(
        c.pick([1e9, 1e11, 2.5e15]), c.pick([1e6, 3e8, 1e11]), c.pick([0.0, 1e-3, 0.5])
    )
    return Given(c.size(0, 20_000), shape, machine)


def right_seconds(num_tokens: int, shape: Shape, machine: Machine) -> tuple[float, float]:
    """With exact fractions, token by token's share taken out of the sums."""
    n, d, layers = Fraction(num_tokens), Fraction(shape.hidden_size), Fraction(shape.num_layers)
    per_token = 2 * d / shape.heads_per_kv_head * shape.bytes_per_number * layers
    fetch = Fraction(machine.round_trip_seconds) + n * per_token / Fraction(
        machine.bytes_per_second
    )
    flops = layers * d * n * (22 * d + 4 * n)
    return float(fetch), float(flops / Fraction(machine.flops_per_second))


def variant(
    n: int,
    shape: Shape,
    machine: Machine,
    *,
    kv: int = 2,
    gqa: bool = True,
    trip: bool = True,
    attention: int = 4,
    linear: int = 22,
    layers: bool = True,
    size: bool = True,
) -> tuple[float, float]:
    """The formulas with one switch per known mistake. Serves to recognise, never as oracle."""
    count, d = shape.num_layers if layers else 1, shape.hidden_size
    numbers = n * count * kv * d / (shape.heads_per_kv_head if gqa else 1)
    num_bytes = numbers * (shape.bytes_per_number if size else 1)
    fetch = machine.round_trip_seconds * trip + num_bytes / machine.bytes_per_second
    flops = shape.num_layers * (attention * n * n * d + linear * n * d * d)
    return fetch, flops / machine.flops_per_second


def told(answer: Callable[..., tuple[float, float]]) -> str:
    """What the answer says of Mooncake's two machines: Llama 3 70B, a prefix of 8,192 tokens."""
    llama = Shape(80, 8192, 8, 2)
    needed = []
    for flops in (8 * 312e12, 8 * 989e12):
        num_bytes, compute = answer(8192, llama, Machine(flops, 1.0, 0.0))
        needed.append(num_bytes / compute / 1e9)
    return (
        f"Right. By your formula eight A800 need {needed[0]:.1f} GB/s, and eight H800 "
        f"{needed[1]:.1f} GB/s, so that fetching 8,192 tokens of Llama 3 70B is faster than "
        "computing them. Mooncake's paper says 6 and 19."
    )


FETCH_OR_COMPUTE = Contract(
    inputs=draw,
    judge=Returns(right_seconds, rtol=1e-6),
    passed=told,
    clauses={
        "returns": Clause(
            "The seconds are wrong. {says}", "Fetch: round trip + bytes / B. Compute: flops / G."
        )
    },
    mistakes=(
        mistake(
            "Keys and values are two numbers; you count one.",
            "`2 * hidden_size / heads_per_kv_head` numbers per token and layer.",
            lambda *a: variant(*a, kv=1),
        ),
        mistake(
            "Query heads that share a KV head share its keys and values.",
            "Divide by `heads_per_kv_head`.",
            lambda *a: variant(*a, gqa=False),
        ),
        mistake(
            "The round trip is left out.",
            "It comes before the first byte.",
            lambda *a: variant(*a, trip=False),
        ),
        mistake(
            "The bytes of one layer are fetched, of all others nothing.",
            "Multiply by `num_layers`.",
            lambda *a: variant(*a, layers=False),
        ),
        mistake(
            "You count numbers; expected bytes.",
            "Multiply by `bytes_per_number`.",
            lambda *a: variant(*a, size=False),
        ),
        mistake(
            "The part that grows with the square of the tokens is missing: attention.",
            "`4 * n * n * d + 22 * n * d * d` per layer.",
            lambda *a: variant(*a, attention=0),
        ),
        mistake(
            "4 and 22 are exchanged.",
            "4 belongs to attention, `n * n * d`.",
            lambda *a: variant(*a, attention=22, linear=4),
        ),
        mistake(
            "The two times are exchanged.",
            "First the seconds to fetch.",
            lambda *a: right_seconds(*a)[::-1],
        ),
    ),
)
