"""The checks of lab 01: what is drawn, and what is right.

Oracles: torch's own functions in float64, complex numbers, the weights of real layers, and a
pretended model. `tests/` holds them against transformers' Llama, its warpers, torch's FLOP counter
and Hugging Face's `generate`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import fields
from numbers import Integral
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from utils.checks.kit import pictures
from utils.checks.kit.contracts import Choices, Fault, Given, InLockstep, Returns
from utils.checks.kit.contracts.differences import difference, shown
from utils.checks.kit.contracts.inputs import LAYOUTS, VALUES, laid_out, tensor
from utils.checks.kit.lab.engine import as_hugging_face, speaks_first
from utils.checks.kit.lab.lab import Lab
from utils.checks.kit.runner import Mismatch, call
from utils.checks.lab_01 import answers, attending, filtering, pretended_model
from utils.checks.lab_01.judging import many, same_tensor
from utils.engine.config.model import ModelConfig
from utils.engine.llm import LLM
from utils.engine.models.llama import LlamaOps

LAB = Lab(__file__)
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16)
# Results around 1e-6 have no digits in float16.
NOT_TINY = tuple(kind for kind in VALUES if kind != "tiny")
LARGEST_HALF = 60_000.0  # float16 ends at 65,504
THETA = 10_000.0
ROUNDED = 1e-9  # a count that is off by less than this share has gone through a float

# Exercise 1


def draw_vectors(c: Choices) -> Given:
    """Each token by itself; `weight` of another dtype than `x`, now and then."""
    hidden, dtype = c.size(1, 1100), c.pick((*DTYPES, torch.float64))
    values = NOT_TINY if dtype == torch.float16 else VALUES
    x = tensor(c, (c.size(1, 40), hidden), (dtype,), values)
    if dtype == torch.float16 and c.rarely(2):  # a row's norm doesn't fit into float16 any more
        x.mul_(1e4).clamp_(-LARGEST_HALF, LARGEST_HALF)
    weights = [kind for kind in values if kind not in ("large", "zero")]
    weight = tensor(c, (hidden,), (dtype, dtype, *DTYPES, torch.float64), weights)
    return Given(x, weight, c.pick((1e-5, 1e-6, 1e-3, 0.1, 1e-12)))


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """torch's own, in float64."""
    return F.rms_norm(x.double(), x.shape[-1:], weight.double(), eps).to(x.dtype)


rms_norm = LAB.check(answers.rms_norm, draw_vectors, Returns(normed, own=True, wrong=same_tensor))

# Exercise 2


def draw_heads(c: Choices) -> Given:
    """Positions in any order, far away too; as many heads as tokens, or not."""
    positions = [c.pick((1, 0, 2, 3, 100, 2000)) for _ in range(c.size(1, 70))]
    heads = c.size(1, 9) if c.rarely(2) else len(positions)
    dim, dtype = 2 * c.size(1, 70, small=3), c.pick(DTYPES)
    values = NOT_TINY if dtype == torch.float16 else VALUES
    x = tensor(c, (len(positions), heads, dim), (dtype,), values)
    frequency = THETA ** (-torch.arange(0, dim, 2) / dim)
    angles = (torch.tensor(positions)[:, None] * frequency).repeat(1, 2)  # [T, D]
    layout = c.pick(LAYOUTS)
    return Given(x, *(laid_out(f(angles).to(dtype), layout) for f in (torch.cos, torch.sin)))


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Arrows in the plane are complex numbers; to turn one is to multiply it."""
    half = x.shape[-1] // 2
    arrows = torch.complex(x[..., :half].double(), x[..., half:].double())
    turns = torch.complex(cos[:, None, :half].double(), sin[:, None, :half].double())
    both = arrows * turns
    return torch.cat((both.real, both.imag), dim=-1).to(x.dtype)


def same_arrows(expected: Tensor, got: Any, given: Given) -> Fault | None:
    fault = same_tensor(expected, got, given)
    if fault is None or fault.clause != "numbers":
        return fault

    def picture() -> tuple[Figure, str]:
        """The first two pairs of the first head of three tokens, as arrows."""
        half = expected.shape[-1] // 2
        arrows = (
            torch.stack((t[:3, 0, :half], t[:3, 0, half:]), dim=-1)[:, :2].float()
            for t in (given.args[0], expected, got.detach())
        )
        return pictures.rotation(*arrows), "Arrows of the pairs before, expected and yours."

    return Fault("numbers", "", expected, got, fault.says, picture=picture)


def tell_heads(given: Given) -> str:
    x, cos, sin = given.args
    angles = [round(float(a), 2) for a in torch.atan2(sin, cos)[:4, 0]]
    return f"x {shown(x).replace('`', '')}; the first pair of each token turns by {angles}" + (
        " ..." if len(x) > len(angles) else ""
    )


apply_rotary = LAB.check(
    answers.apply_rotary, draw_heads, Returns(turned, own=True, wrong=same_arrows), tell=tell_heads
)

# Exercise 3

attention = LAB.check(answers.attention, attending.draw, attending.Attends())

# Exercise 4


def draw_gates(c: Choices) -> Given:
    """Gates near zero, and such that `exp` of them overflows."""
    dtype = c.pick(DTYPES)
    # Squares of 300 do not fit into float16, products around 1e-12 neither.
    values = VALUES if dtype != torch.float16 else ("plain", "negative", "ties", "zero")
    shape = c.size(1, 70), c.size(1, 400)
    gate, up = (tensor(c, shape, (dtype,), values, ("contiguous",)) for _ in range(2))
    if dtype == torch.float16 and c.rarely(2):  # exp(12) overflows, exp(-12) * 1000 is still there
        gate, up = -11.2 - gate.abs().clamp(max=0.8), up.clamp(-3, 3) * 1000
    else:
        times = c.pick((1, 8))
        gate, up = gate * times, up * times
    return Given(laid_out(torch.cat((gate, up), dim=-1), c.pick(LAYOUTS)))


def gated(gate_up: Tensor) -> Tensor:
    """With `exp` in float64, so that it shares no kernel with the usual answer."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return (gate / (1 + (-gate).exp()) * up).to(gate_up.dtype)


def same_gated(expected: Tensor, got: Any, given: Given) -> Fault | None:
    """The smallest numbers have few digits: in float16, a sigmoid of -12 is known to 1 %."""
    gate, up = given.args[0].double().chunk(2, dim=-1)
    info = torch.finfo(expected.dtype)
    lost = info.smallest_normal * info.eps * float(gate.abs().max()) * float(up.abs().max())
    finite = expected[expected.isfinite()].abs().max() if expected.isfinite().any() else 0.0
    return same_tensor(expected, got, given, max(1e-5, 4 * info.eps) * float(finite) + lost)


silu_and_mul = LAB.check(
    answers.silu_and_mul, draw_gates, Returns(gated, own=True, wrong=same_gated)
)

# Exercise 5

token_probabilities = LAB.check(
    answers.token_probabilities,
    filtering.draw,
    Returns(filtering.oracle, own=True, wrong=filtering.wrong),
    tell=filtering.tell,
    examples=200,
)

# Exercise 6

generate = LAB.check(
    answers.generate, pretended_model.draw, InLockstep(pretended_model.play, answers.generate)
)

# Exercise 7


def model_config(
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    hidden: int,
    intermediate: int,
    vocab: int,
    tied: bool = True,
) -> ModelConfig:
    return ModelConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        rope_theta=THETA,
        max_position_embeddings=8192,
        tie_word_embeddings=tied,
        eos_token_ids=(2,),
    )


def draw_shape(c: Choices) -> Given:
    """MHA, GQA, MQA; a head_dim that is hidden_size / heads, or is not; tied embeddings or not."""
    kv_heads, group, head_dim = c.size(1, 16), c.integer(1, 8), 2 * c.size(1, 64)
    hidden = c.size(5, 16_384) if c.rarely(2) else kv_heads * group * head_dim
    # The smallest sizes differ, so that no two parts have equally many weights.
    layers, intermediate, vocab = c.size(1, 40), c.size(7, 53_000), c.size(11, 150_000)
    config = model_config(
        layers,
        kv_heads * group,
        kv_heads,
        head_dim,
        hidden,
        intermediate,
        vocab,
        tied=not c.rarely(2),
    )
    return Given(config, c.size(1, 1_000_000) * c.pick((1, 1, 10**9 + 7)), c.pick((2, 1, 4, 8)))


def weights_of(config: ModelConfig) -> list[Tensor]:
    """The weights of all linear layers, without memory."""
    h, i, d = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_attention_heads * d, config.num_key_value_heads * d
    shapes = [(h, q), (h, kv), (h, kv), (q, h), (h, i), (h, i), (i, h)]
    shapes = [*(shapes * config.num_hidden_layers), (h, config.vocab_size)]
    return [torch.empty(shape, device="meta") for shape in shapes]


def cost(config: ModelConfig, num_tokens: int, bytes_per_parameter: int) -> tuple[int, int]:
    """Layer by layer. (A test compares this with what torch counts in transformers' Llama.)"""
    numbers = [weight.numel() for weight in weights_of(config)]
    return sum(2 * num_tokens * n for n in numbers), sum(numbers) * bytes_per_parameter


def same_cost(expected: tuple[int, int], got: Any, given: Given) -> Fault | None:
    config, num_tokens, _ = given.args
    if not isinstance(got, tuple | list) or len(got) != 2:
        return Fault("pair", "", expected, got, difference(expected, got))
    if tuple(got) != expected == tuple(got[::-1]):
        return Fault("swapped", "", expected, got)
    for clause, want, came in zip(("flops", "bytes"), expected, got, strict=True):
        if not isinstance(came, Integral):
            return Fault("whole", "", expected, got, difference(want, came))
        if says := difference(want, came):
            if int(came) < 0:
                clause = "overflow"
            elif math.isclose(int(came), want, rel_tol=ROUNDED):
                clause = "rounded"
            elif clause == "flops":
                says = in_weights(config, num_tokens, want, int(came)) or says
            return Fault(clause, "", expected, got, says)
    return None


def in_weights(config: ModelConfig, num_tokens: int, want: int, came: int) -> str:
    """Which weights are missing in a count, or are in it twice, or how many are counted.

    Args:
        want, came: the FLOPs as they are, and as they were counted

    Returns:
        A sentence; "" if the count is no number of weights.
    """
    counted, rest = divmod(came, 2 * num_tokens)
    *layers, head = (weight.numel() for weight in weights_of(config))
    total = sum(layers) + head
    q, k, v, o, gate, up, down = (sum(layers[place::7]) for place in range(7))
    parts = {
        "q or o": q,
        "k or v": k,
        "k and v": k + v,
        "gate, up or down": up,
        "attention": q + k + v + o,
        "the MLP": gate + up + down,
        "all layers but one": sum(layers[7:]),
        "the LM head": head,
        "the LM head, for all tokens but one,": head * (num_tokens - 1) / num_tokens,
        "one LM head for each further layer": head * (config.num_hidden_layers - 1),
    }
    off = came / 2 / num_tokens - total
    found = [name for name, size in parts.items() if size and math.isclose(size, abs(off))]
    if len(found) == 1:
        what = "are missing" if off < 0 else "count twice"
        return f"It looks as if the weights of {found[0]} {what}."
    if rest or 2 * counted == total:
        return ""
    return f"You count {counted:,} weights, and there are {total:,}."


def tell_shape(given: Given) -> str:
    c, num_tokens, width = given.args
    return (
        f"{many(c.num_hidden_layers, 'layer')}, hidden_size {c.hidden_size}, "
        f"{many(c.num_attention_heads, 'query head')}, {many(c.num_key_value_heads, 'KV head')}, "
        f"head_dim {c.head_dim}, intermediate_size {c.intermediate_size}, vocab_size "
        f"{c.vocab_size}; {many(num_tokens, 'token')}, {many(width, 'byte')} per parameter"
    )


def praise_cost(answer: Any) -> str:
    small = model_config(30, 9, 3, 64, 576, 1536, 49152)
    pairs = (answer(small, n, 2) for n in (1, 512))
    decode, prefill = (flops / size for flops, size in pairs)
    return (
        "Right for 150 random shapes. By your count, SmolLM2-135M in bfloat16 does "
        f"{decode:g} FLOP for each byte that it reads in decode, and {prefill:g} in a prefill of "
        "512 tokens."
    )


forward_cost = LAB.check(
    answers.forward_cost,
    draw_shape,
    Returns(cost, wrong=same_cost),
    tell=tell_shape,
    passed=praise_cost,
)

# Exercise 8

PARTS = {
    "rms_norm": rms_norm,
    "apply_rotary": apply_rotary,
    "attention": attention,
    "silu_and_mul": silu_and_mul,
}


def a_kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def takes_its_arguments(name: str, function: Any) -> None:
    """Refuse a function that can't be called as the engine calls it."""
    wanted = inspect.signature(getattr(answers, name)).parameters
    try:
        inspect.signature(function).bind(*wanted)
    except TypeError:
        raise Mismatch(
            f"What you pass as `{name}` doesn't take the arguments {', '.join(wanted)}.",
            look="Are two of your four functions swapped?",
        ) from None
    except ValueError:
        return  # it doesn't say what it takes


@LAB.exercise
def engine(build_ops: Callable[[], Any]) -> str:
    """The engine, built of the learner's functions, speaks as Hugging Face does."""
    ops = call(build_ops)
    if not isinstance(ops, LlamaOps):
        raise Mismatch(
            f"`build_ops` returns {a_kind(ops)}. It must return a LlamaOps.",
            look="Is there a `return`, and are the parentheses those of `LlamaOps(...)`?",
        )
    for name in PARTS:
        of = getattr(getattr(ops, name), "__name__", "")
        if getattr(ops, name) is getattr(LlamaOps(), name):
            raise Mismatch(
                f"You didn't pass `{name}`, so the engine's own code still runs there.",
                look="Each of the four functions is a keyword argument.",
            )
        if of in PARTS and of != name:
            raise Mismatch(
                f"You pass your `{of}` as `{name}`.",
                look="On the left of `=` is the engine's name, on the right is your function.",
            )
        takes_its_arguments(name, getattr(ops, name))
    for field in fields(LlamaOps):
        if field.name not in PARTS and getattr(ops, field.name) is not None:
            raise Mismatch(f"Pass only the four functions, and not `{field.name}`.")
    for name, check in PARTS.items():
        speaks_first(check, getattr(ops, name))
    outputs = as_hugging_face(
        LLM(dtype="float32", ops=ops),
        "Each of your four functions is right by its own check. Does one of them round more than "
        "it must, or keep something from call to call?",
    )
    return (
        f"Token for token what Hugging Face generates, on {len(outputs)} prompts. "
        f"The engine says: {outputs[0].outputs[0].text.strip()!r}"
    )
