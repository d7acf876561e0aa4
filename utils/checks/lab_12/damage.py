"""Which parts of a checkpoint are damaged: exercise 5, a design.

A judge, not an oracle, decides: whether the checkpoint is sound once what is named was replaced,
and whether fewer names would do. It goes through all entries that could be meant.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from utils.checks.kit.contracts import Clause, Contract, Fault, Given, Returns, mistake
from utils.checks.lab_12.damaged import KEYS, draw_damaged

Entry = dict[str, Any]
Shapes = dict[str, tuple[int, int]]
Tensors = dict[str, Tensor]


class Way(NamedTuple):
    """One way to read a checkpoint."""

    bits: int
    group_size: int
    desc_act: bool

    def keys_against(self, entry: Entry) -> set[str]:
        """The keys of the entry that say something else."""
        return {
            key
            for key, value in zip(KEYS, self, strict=True)
            if key not in entry or type(entry[key]) is not type(value) or entry[key] != value
        }


def ways(shapes: Shapes) -> Iterator[Way]:
    """All entries that are allowed for layers of these shapes."""
    widths = [width for _, width in shapes.values()]
    sizes = [n for n in range(1, min(widths) + 1) if all(width % n == 0 for width in widths)]
    for bits, size, desc_act in product((4, 2, 8), [*sizes, -1], (False, True)):
        yield Way(bits, size, desc_act)


class Sickroom:
    """Says which tensors are damaged, read in one way; each tensor is looked at once."""

    def __init__(self, shapes: Shapes, tensors: Tensors) -> None:
        self.shapes = shapes
        self.kinds = {
            name: (t.dtype, tuple(t.shape))
            for name, t in tensors.items()
            if not name.endswith(".scales") or bool(((t > 0) & (t < float("inf"))).all())
        }
        self.groups = {n: t.flatten().tolist() for n, t in tensors.items() if n.endswith(".g_idx")}

    def damaged(self, way: Way) -> set[str]:
        found = set()
        for layer, (out, width) in self.shapes.items():
            size, per = width if way.group_size == -1 else way.group_size, 32 // way.bits
            groups = width // size
            right = {
                "qweight": (torch.int32, (width // per, out)),
                "qzeros": (torch.int32, (groups, out // per)),
                "scales": (torch.float16, (groups, out)),
                "g_idx": (torch.int32, (width,)),
            }
            found |= {
                f"{layer}.{part}"
                for part, kind in right.items()
                if self.kinds.get(f"{layer}.{part}") != kind
            }
            if f"{layer}.g_idx" not in found:
                g_idx = self.groups[f"{layer}.g_idx"]
                if (sorted(g_idx) if way.desc_act else g_idx) != [i // size for i in range(width)]:
                    found.add(f"{layer}.g_idx")
        return found


def explanations(entry: Entry, shapes: Shapes, tensors: Tensors) -> list[set[str]]:
    """For each way to read the checkpoint: what would have to be replaced."""
    room = Sickroom(shapes, tensors)
    return [way.keys_against(entry) | room.damaged(way) for way in ways(shapes)]


def smallest(entry: Entry, shapes: Shapes, tensors: Tensors) -> set[str]:
    """One of the smallest explanations."""
    return min(explanations(entry, shapes, tensors), key=len)


def _wrong(expected: set[str], got: Any, given: Given) -> Fault | None:
    def fault(clause: str, says: str) -> Fault:
        return Fault(clause, "", expected, got, says, words=(_listed(expected), _listed(got)))

    if not isinstance(got, set | frozenset) or not all(isinstance(name, str) for name in got):
        return fault("form", f"Expected a set of names, not a {type(got).__name__}.")
    named, (entry, shapes, tensors) = set(got), given.args
    known = {f"{layer}.{p}" for layer in shapes for p in ("qweight", "qzeros", "scales", "g_idx")}
    if strange := sorted(named - known - set(KEYS)):
        return fault(
            "strange",
            f"`{strange[0]}` is none of the four tensors of these layers, "
            "and none of the three keys.",
        )
    if not expected and named:
        return fault("sound", "")
    if not any(need <= named for need in explanations(entry, shapes, tensors)):
        return fault("not enough", "")
    return fault("too many", "") if len(named) > len(expected) else None


def _listed(names: Any) -> str:
    if not isinstance(names, Collection) or isinstance(names, str):
        return repr(names)
    return ", ".join(sorted(map(str, names))) or "nothing is damaged"


def _tell(given: Given) -> str:
    entry, shapes, tensors = given.args
    words = [f"entry {entry}"]
    for layer, (out, width) in shapes.items():
        parts = {n.rpartition(".")[2]: t for n, t in tensors.items() if n.startswith(layer + ".")}
        kinds = [f"{p} {str(t.dtype)[6:]} {list(t.shape)}" for p, t in parts.items()]
        g_idx = parts.get("g_idx", torch.empty(0))
        more = f" {g_idx.tolist()}" if g_idx.numel() <= 32 else ""
        words.append(f"{layer} (out {out}, in {width}): {', '.join(kinds)}{more}")
    return "; ".join(words)


def _room(change: str) -> Callable[..., set[str]]:
    """A right answer, but for one thing."""

    def find(entry: Entry, shapes: Shapes, tensors: Tensors) -> set[str]:
        given = dict(tensors)
        if change == "dtypes":
            given = {
                n: t.to(torch.float16 if n.endswith("scales") else torch.int32)
                for n, t in tensors.items()
            }
        if change == "scales":
            given |= {n: torch.ones_like(t) for n, t in tensors.items() if n.endswith("scales")}
        if change == "nan only":
            given |= {
                n: torch.where(t.isnan(), t, 1) for n, t in tensors.items() if n.endswith("scales")
            }
        room = Sickroom(shapes, given)
        if change == "order":
            room.groups = {n: sorted(g) for n, g in room.groups.items()}
        if change == "even":
            return _uneven(room, entry, shapes)
        found = [(way.keys_against(entry), room.damaged(way)) for way in ways(shapes)]
        if change == "the entry is right":
            found = [pair for pair in found if not pair[0]] or found
        if change == "one key":
            found = [pair for pair in found if len(pair[0]) < 2] or found
        if change == "first layer":
            first = next(iter(shapes))
            return set().union(
                *min(
                    found,
                    key=lambda pair: (
                        sum(name.startswith(f"{first}.") for name in pair[1]) + len(pair[0])
                    ),
                )
            )
        best = set().union(*min(found, key=lambda pair: len(pair[0]) + len(pair[1])))
        return set(sorted(best)[:1]) if change == "one" else best

    return find


def _uneven(room: Sickroom, entry: Entry, shapes: Shapes) -> set[str]:
    """With act-order, any groups that exist will do."""

    def damaged(way: Way) -> set[str]:
        found = room.damaged(way)
        for layer, (_, width) in shapes.items():
            name = f"{layer}.g_idx"
            fits = room.kinds.get(name) == (torch.int32, (width,))
            groups = width // (width if way.group_size == -1 else way.group_size)
            if way.desc_act and fits and all(0 <= g < groups for g in room.groups[name]):
                found.discard(name)
        return found

    return min((way.keys_against(entry) | damaged(way) for way in ways(shapes)), key=len)


FIND_DAMAGE = Contract(
    inputs=draw_damaged,
    judge=Returns(smallest, wrong=_wrong),
    tell=_tell,
    examples=600,
    passed="Right, for one wrong key behind which every tensor looks damaged, for single tensors, "
    "and for both at once.",
    clauses={
        "form": Clause("{says}", "A set of texts; of a sound checkpoint, the empty set."),
        "strange": Clause(
            "{says}",
            'Names such as "model.layers.0.mlp.up_proj.scales", and '
            '"bits", "group_size", "desc_act".',
        ),
        "sound": Clause(
            "This checkpoint is sound, and you say that something is damaged.",
            "Which of the conditions does your code believe to be broken?",
        ),
        "not enough": Clause(
            "With only that replaced, the checkpoint is still not sound.",
            "Go through the table, with what is left: missing, dtype, shape, values.",
        ),
        "too many": Clause(
            "Fewer names would do.",
            "A key may be wrong where many tensors seem to "
            "be; and tensors may be wrong where a key seems to be. Count both.",
        ),
        "raises": Clause(
            "{says}",
            "Anything may be missing: a key, a tensor. And a value of the "
            "entry may be 0, None or a text.",
        ),
    },
    mistakes=(
        mistake(
            "You always believe the entry. Where one key is wrong, every tensor seems damaged.",
            "Try other values for the keys, and count what would then be damaged.",
            _room("the entry is right"),
        ),
        mistake(
            "Two keys can be wrong at once.",
            "Try all values of all keys together.",
            _room("one key"),
        ),
        mistake(
            "You believe the first layer. It may be the damaged one.",
            "Count what would be damaged in all layers.",
            _room("first layer"),
        ),
        mistake(
            "Dtypes are not looked at.", "Three are int32, the scales float16.", _room("dtypes")
        ),
        mistake("The scales' values are not looked at.", "Finite, and above 0.", _room("scales")),
        mistake(
            "A scale that is infinite, 0 or negative is not found.",
            "Finite, and above 0.",
            _room("nan only"),
        ),
        mistake(
            "Without act-order, the groups must stand in order. Yours may be mixed.",
            "With desc_act False, `g_idx[i]` is `i // group_size`.",
            _room("order"),
        ),
        mistake(
            "With act-order, too, each group has `group_size` inputs. Yours need only exist.",
            "Sort `g_idx`, and compare.",
            _room("even"),
        ),
        mistake(
            "You name one damaged part. There may be several.",
            "Collect them in a set.",
            _room("one"),
        ),
    ),
)
