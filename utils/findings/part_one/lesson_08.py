"""What notebook 08 says of its measurements: where engines differ, and where a step's time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations


def queued(queue_s: Sequence[float], ttft_s: Sequence[float], tpot_s: Sequence[float]) -> str:
    """What queueing does to a request's times; seconds, request by request, at least one queued."""
    waited = max(range(len(queue_s)), key=lambda i: queue_s[i])
    said = (
        f"Two may run at a time, so two queue. Of the {ttft_s[waited]:.1f} s to its first token, "
        f"request {waited} waited {queue_s[waited] / ttft_s[waited]:.0%}."
    )
    slowest, fastest = max(tpot_s), min(tpot_s)
    if slowest < 1.25 * fastest:
        return said + "\nAfter it, all get their tokens at the same pace."
    return said + (
        f"\nAfter it, the slowest pace is {slowest / fastest:.1f} times the fastest: "
        "something else ran meanwhile."
    )


def agreement(same: Mapping[str, Sequence[int]], total: int) -> str:
    """Whether engines agree.

    Args:
        same: by dtype, for each pair of engines: how many of the answers are the same.
        total: answers of each.
    """
    rows = []
    for dtype, counts in same.items():
        least, most = min(counts), max(counts)
        if least == total:
            rows.append(f"{dtype}: every two engines agree in all {total} answers.")
        else:
            some = f"{least}" if least == most else f"{least} to {most}"
            rows.append(f"{dtype}: two engines agree in {some} of {total} answers.")
    return "\n".join(rows)


def rounding(share32: float, moved32: float, share16: float, moved16: float) -> str:
    """How the shape of a batch changes a product, in both formats.

    Args:
        share32, share16: part of the numbers that changed, in float32 and in bfloat16.
        moved32, moved16: the largest change, as a part of the largest number.
    """
    if share16 == 0:
        return (
            "In bfloat16 nothing shows here: the products add in float32, and round only the "
            "finished sum."
        )
    if share32 == 0 or moved32 == 0:
        return "In float32 nothing shows here: this machine adds in one order for both shapes."
    fewer = "fewer" if share16 < share32 else "more"
    return (
        f"In bfloat16 {fewer} numbers differ than in float32, and the largest difference is "
        f"{moved16 / moved32:,.0f} times as large:\na whole step of that format."
    )


def flips(ranks: Sequence[int]) -> str:
    """Who takes over where rounding changed the choice.

    Args:
        ranks: of each new choice among the float32 logits, 2 for the second best.
    """
    if not ranks:
        return "Rounding changed no choice here."
    others = [rank for rank in ranks if rank != 2]
    said = f"Of {len(ranks)} changed choices, {len(ranks) - len(others)} went to the second best."
    if not others:
        return said
    listed = ", ".join(map(str, others))
    return said + f" The others went to the tokens of rank {listed}: their points may lie anywhere."


def attention(by_bytes_s: float, measured_s: float, num_layers: int) -> str:
    """Why attention takes longer than the reading of keys and values.

    Args:
        by_bytes_s: seconds that its bytes would take, at the rate of the linear layers.
        measured_s: seconds in a step.
    """
    said = (
        f"By its bytes attention would take {1e3 * by_bytes_s:.1f} ms. It takes "
        f"{1e3 * measured_s:.1f} ms, {1e6 * measured_s / num_layers:.0f} µs in each of "
        f"{num_layers} layers."
    )
    if measured_s < 2 * by_bytes_s:
        return said + "\nThat is about what its bytes say."
    return said + (
        "\nNot the reading takes the time: rotary embedding, writing to the cache, gathering the "
        "blocks and the\nsoftmax are a dozen small operations per layer, and each has a fixed cost."
    )


def matrix_products(parts: Mapping[int, Mapping[str, float]]) -> str:
    """The share of the matrix products at each batch size; parts in seconds, by batch size."""
    shares = {
        size: (of["linear layers"] + of["lm_head"]) / sum(of.values()) for size, of in parts.items()
    }
    listed = ", ".join(f"{share:.0%} with {size}" for size, share in shares.items())
    least = min(shares.values())
    if least > 0.5:
        return f"Most of a step is the matrix products: {listed} at a time"
    return f"Matrix products take less than half of some steps: {listed} at a time"


def compiled_call(readable_s: float, compiled_s: float) -> str:
    """Whether a compiled function pays for one token; seconds of a call."""
    ratio = readable_s / compiled_s
    if ratio > 1.1:
        return f"For one token the compiled function is {ratio:.1f} times as fast."
    if ratio > 1 / 1.1:
        return (
            "For one token the compiled function takes about as long: its checks before each call "
            "cost what it saves."
        )
    return (
        f"For one token the compiled function takes {1 / ratio:.1f} times as long: its checks "
        "before each call cost more than it saves."
    )


def conclusions(
    token_ids: Mapping[str, Mapping[str, Sequence[Sequence[int]]]],
    said: Mapping[str, Mapping[str, Sequence[str | None]]],
) -> str:
    """Whether engines that write other words also conclude something else.

    A conclusion that cannot be read is not another one: such pairs are counted apart.

    Args:
        token_ids: by dtype and engine: each puzzle's answer.
        said: likewise: what each of them concludes, None if it cannot be read.
    """
    rows, words, ends, unread = [], 0, 0, 0
    for dtype, runs in token_ids.items():
        pairs = [
            (runs[one][i] != runs[two][i], said[dtype][one][i], said[dtype][two][i])
            for one, two in combinations(runs, 2)
            for i in range(len(runs[one]))
        ]
        parted = [(first, second) for differ, first, second in pairs if differ]
        missing = sum(None in pair for pair in parted)
        others = sum(None not in pair and pair[0] != pair[1] for pair in parted)
        row = (
            f"{dtype}: of {len(pairs)} pairs of answers {len(parted)} differ in their words, "
            f"{others} in what they conclude."
        )
        if missing:
            row += f" In {missing} a conclusion is missing, so there is nothing to compare."
        rows.append(row)
        words, ends, unread = words + len(parted), ends + others, unread + missing
    if not words:
        rows.append("No two engines differ here at all.")
    elif ends == 0:
        as_far = ", as far as it can be read" if unread else ""
        rows.append(f"Where the words part, the conclusion stays{as_far}.")
    elif ends < words:
        rows.append("Words part more often than conclusions. But conclusions do part.")
    else:
        rows.append("Wherever the words part, the conclusion parts, too.")
    return "\n".join(rows)


def right_conclusions(said: Sequence[Sequence[str | None]], right: Sequence[str]) -> str:
    """How often the model is right, and what it says to questions of yes and no.

    Args:
        said: of each run, what it concludes of each puzzle, None if it cannot be read.
        right: of each puzzle; at least one is "yes" or "no".
    """
    counts = sorted(sum(a == b for a, b in zip(run, right, strict=True)) for run in said)
    some = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
    asked = [i for i, answer in enumerate(right) if answer in ("yes", "no")]
    given = [run[i] for run in said for i in asked]
    yes, no = (given.count(answer) for answer in ("yes", "no"))
    rows = [
        f"Each run is right in {some} of {len(right)} puzzles.",
        f"To questions of yes and no the runs say yes {yes} times, no {no} times, and neither "
        f"{len(given) - yes - no} times.",
    ]
    habit, times = ("yes", yes) if yes > no else ("no", no)
    if times > 0.75 * len(given):
        would = sum(right[i] == habit for i in asked)
        rows.append(
            f'That is a habit, not a conclusion: whoever always says "{habit}" is right in {would} '
            f"of {len(asked)}."
        )
    return "\n".join(rows)
