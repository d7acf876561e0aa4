"""Which matrices belong to which weight: exercise 1."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from utils.checks.kit.contracts import Choices, Clause, Contract, Given, Returns, mistake
from utils.checks.lab_11.adapters import PREFIX, A, B, Config, Tensors, draw_model, told

Pairs = dict[str, tuple[Tensor, Tensor]]

KEY = re.compile(re.escape(PREFIX) + r"(?P<layer>.+)\.lora_(?P<which>[AB])\.weight")
SPECIAL: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LOHA", None, "lora", "ADALORA"),
    "use_dora": (True,),
    "bias": ("all", "lora_only", None),
    "lora_bias": (True,),
    "modules_to_save": (["lm_head"],),
    "rank_pattern": ({"q_proj": 4},),
    "alpha_pattern": ({"q_proj": 4},),
}


def spoil(c: Choices, config: Config, tensors: Tensors, base: Tensors) -> None:
    """Make one thing wrong with the adapter, in place."""
    key = c.pick(list(tensors))
    layer = key[len(PREFIX) : -len(A)]
    kind = c.pick(
        (
            "alone",
            "config",
            "config",
            "stranger",
            "key",
            "key",
            "rank",
            "larger",
            "larger",
            "turned",
            "axes",
            "nothing",
            "orientation",
            "names",
        )
    )
    if kind == "alone":
        del tensors[key]
        others = [other for other in tensors if other[-len(A) :] != key[-len(A) :]]
        if len(others) > 1 and c.rarely(2):  # as many A as B, but of other layers
            del tensors[c.pick([o for o in others if not o.startswith(PREFIX + layer + ".")])]
    elif kind == "config":
        name = c.pick(list(SPECIAL))
        config[name] = c.pick(SPECIAL[name])
        if name == "peft_type" and config[name] is None:
            del config[name]
    elif kind == "stranger":
        tied = PREFIX + "lm_head" + A in tensors and c.rarely(2)
        del base["lm_head.weight" if tied else f"{layer}.weight"]
    elif kind == "key":
        new = c.pick(
            (
                key.replace(".lora_", ".lora_embedding_"),
                f"{layer}.weight",
                key.removesuffix(".weight"),
                f"{key}_scale",
                f"{PREFIX}{layer}.lora_magnitude_vector",
                f"{PREFIX}lm_head.modules_to_save.weight",
                f"{PREFIX}{layer}.lora_B.bias",
                key.replace(".lora_A.", ".lora_C.").replace(".lora_B.", ".lora_C."),
            )
        )
        tensors[new] = tensors[key] if c.rarely(2) else tensors.pop(key)
    elif kind == "rank":
        config["r"] += c.pick((1, 3))
    elif kind == "nothing":
        tensors.clear()
    elif kind == "names":  # both halves of a layer
        start, more = c.pick(
            (
                (PREFIX, ".default"),
                ("", ""),
                ("base_model.", ""),
                ("base_model_model.", ""),
                ("tower." + PREFIX, ""),
            )
        )
        for half in (A, B):
            new = f"{start}{layer}{half.removesuffix('.weight')}{more}.weight"
            tensors[new] = tensors.pop(PREFIX + layer + half)
    elif kind == "orientation":
        config["fan_in_fan_out"] = not config.get("fan_in_fan_out")
    elif kind == "turned":
        tensors[key] = tensors[key].T
    elif kind == "axes":  # of an embedding's vector, or of a convolution
        weight, matrix = base[f"{layer}.weight"], tensors[key]
        other = c.pick((weight[0], weight[..., None, None], weight))
        base[f"{layer}.weight"] = other
        if other is weight or c.rarely(2):
            tensors[key] = c.pick((matrix[..., None, None], matrix[:, 0]))
    else:
        dim = c.integer(0, 1)
        tensors[key] = torch.cat([tensors[key], tensors[key].narrow(dim, 0, 1)], dim=dim)


def draw_adapter(c: Choices) -> Given:
    config, tensors, base = draw_model(c)
    if c.rarely(2):
        spoil(c, config, tensors, base)
    return Given(config, tensors, base)


def by_expression(config: Config, tensors: Tensors, base: Tensors) -> Pairs:
    """Names by a regular expression; shapes by multiplying."""
    plain = {"peft_type": "LORA", "use_dora": False, "bias": "none"}
    found = {"use_dora": False, "bias": "none", "peft_type": None} | config
    if any(found[key] != value for key, value in plain.items()):
        raise ValueError("By `peft_type`, `bias` or `use_dora`, this is no plain LoRA")
    if odd := [key for key in SPECIAL if key not in plain and config.get(key)]:
        raise ValueError(f"`{odd[0]}` is set, so this is no plain LoRA")
    if not tensors:
        raise ValueError("The adapter has no tensors")
    halves: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if not (match := KEY.fullmatch(key)):
            raise ValueError(f"`{key}` has neither of the two forms")
        halves.setdefault(match["layer"], {})[match["which"]] = tensor
    pairs = {}
    for layer, both in halves.items():
        name = f"{layer}.weight"
        if set(both) != {"A", "B"}:
            raise ValueError(f"The {''.join(both)} of `{layer}` stands alone")
        if name not in base:
            raise ValueError(f"The base has no `{name}`")
        a, b, weight = both["A"], both["B"], base[name]
        shape = tuple(weight.shape[::-1] if config.get("fan_in_fan_out") else weight.shape)
        if len(shape) != 2 or (a.shape, b.shape) != (
            (config["r"], shape[1]),
            (shape[0], config["r"]),
        ):
            raise ValueError(
                f"The shapes of `{layer}` do not fit the weight and the config's r "
                "(or `fan_in_fan_out`)"
            )
        pairs[name] = (a, b)
    return pairs


def _match(change: str = "") -> Callable[[Config, Tensors, Tensors], Any]:
    """A right answer, but for one thing."""

    def answer(config: Config, tensors: Tensors, base: Tensors) -> Any:
        checked = dict(config)
        if change == "config":
            checked = {k: v for k, v in config.items() if k not in SPECIAL} | {"peft_type": "LORA"}
        if change == "only dora":
            rare = ("modules_to_save", "rank_pattern", "alpha_pattern")
            checked = {k: v for k, v in config.items() if k not in rare}
        if change == "rank":
            first = next((t for k, t in tensors.items() if k.endswith(A)), None)
            checked["r"] = config["r"] if first is None else len(first)
        if change == "keys":
            tensors = {k: t for k, t in tensors.items() if KEY.fullmatch(k)}
        if change == "strangers":
            tensors = {
                k: t
                for k, t in tensors.items()
                if not (m := KEY.fullmatch(k)) or f"{m['layer']}.weight" in base
            }
        if change == "alone":
            other = {A: B, B: A}
            tensors = {
                k: t
                for k, t in tensors.items()
                if (end := k[-len(A) :]) not in other or k[: -len(A)] + other[end] in tensors
            }
        if change == "nothing" and not tensors:
            return {}
        pairs = by_expression(checked, tensors, base)
        if change == "swapped":
            return {name: (b, a) for name, (a, b) in pairs.items()}
        if change == "layers":
            return {name.removesuffix(".weight"): pair for name, pair in pairs.items()}
        if change == "prefix":
            return {PREFIX + name: pair for name, pair in pairs.items()}
        if change == "replace":
            return {name.replace(PREFIX, ""): pair for name, pair in pairs.items()}
        return pairs

    return answer


MATCH_ADAPTER = Contract(
    inputs=draw_adapter,
    judge=Returns(by_expression, rtol=0.0, atol=0.0),
    tell=told,
    examples=400,
    passed="Right: every matrix has its weight, and what your code does not understand, it "
    "refuses. Silence is how merges go wrong.",
    clauses={
        "returns": Clause(
            "The pairs are wrong. {says}", "The keys are names in `base`; each value is `(A, B)`."
        ),
        "refuses": Clause(
            "{reason}: raise a ValueError.", "Go through the contract's list with this input."
        ),
    },
    mistakes=(
        mistake(
            "A key that is neither an A nor a B is passed over. It may hold something that "
            "the model needs.",
            "Refuse what you do not know.",
            _match("keys"),
        ),
        mistake(
            "An A without its B, or a B without its A, is passed over: half of a layer's "
            "update is missing.",
            "Ask for the other one, in both directions.",
            _match("alone"),
        ),
        mistake(
            "Matrices for which the base has no weight are passed over. This adapter was "
            "trained on another base.",
            "Refuse them.",
            _match("strangers"),
        ),
        mistake(
            "The config is not looked at. With DoRA, extra modules or other ranks, W + scale "
            "* BA is not what was trained.",
            "The first item of the contract's list.",
            _match("config"),
            _match("only dora"),
        ),
        mistake(
            "A has another number of rows than the config's `r`. Then the scale would be "
            "wrong, too.",
            'Compare with `config["r"]`.',
            _match("rank"),
        ),
        mistake(
            "An adapter without any tensor is accepted. The merge would be the base.",
            "Refuse it.",
            _match("nothing"),
        ),
        mistake("A and B are exchanged.", "`(A, B)`", _match("swapped")),
        mistake(
            "The keys are names of layers. Those of weights end in `.weight`.",
            "As in `base`.",
            _match("layers"),
        ),
        mistake(
            "`base_model.model.` can also occur inside a name, and belongs there.",
            "Remove it at the beginning only: `removeprefix`.",
            _match("replace"),
        ),
    ),
)
