"""Sentences of notebook 10 that depend on what was just measured. Losses are in nats per token."""

from __future__ import annotations

from collections.abc import Mapping

SAME = 0.05  # losses within this share of each other: one short run with one seed tells no more


def held_out_by_rank(untrained: float, losses: Mapping[int, float]) -> str:
    """Whether a large rank helps on messages that were not trained on.

    Args:
        untrained: the loss before training.
        losses: rank -> loss after training, ranks rising.
    """
    ranks = list(losses)
    middle, last = ranks[-2], ranks[-1]
    change = losses[last] / losses[middle] - 1
    reached = ", ".join(f"{loss:.2f} with r = {r}" for r, loss in losses.items())
    said = f"Held-out loss {untrained:.2f} before, {reached}. "
    if losses[middle] >= untrained:
        return f"{said}Here it is otherwise: r = {middle} learned nothing that helps elsewhere."
    said += (
        f"From r = {middle} to r = {last}, {last / middle:.0f} times as many numbers change it "
        f"by {change:+.0%}"
    )
    if change < -SAME:
        return f"{said}. Here it is otherwise than in the text: the larger rank helps."
    if change > SAME:
        return f"{said}: more rank has made it worse."
    return f"{said}: next to nothing."


def held_out_by_alpha(
    untrained: float, losses: Mapping[int, float], training: Mapping[int, float]
) -> str:
    """What a small and a large alpha do.

    Args:
        untrained: the loss before training.
        losses: alpha -> loss after training, three of them, rising.
        training: alpha -> loss of the training batches in the last steps.
    """
    small, middle, large = losses
    if losses[middle] > min(losses.values()):
        best = min(losses, key=losses.__getitem__)
        return f"Here it is otherwise: alpha = {best} was best in this short time."
    gains = {a: untrained - loss for a, loss in losses.items()}
    said = (
        f"alpha = {small} gains {gains[small]:.2f}, alpha = {middle} gains {gains[middle]:.2f}, "
        f"and alpha = {large} "
    )
    if gains[large] < 0:
        said += f"loses {-gains[large]:.2f}: it is thrown about."
        if training[large] < untrained:
            said += (
                f" On the batches that it trains on, its loss is {training[large]:.2f} in the end "
                "all the same: what it has learned of them does not help elsewhere."
            )
        return said
    return f"{said}gains {gains[large]:.2f}."


def fast_kernel(first: bool, after: bool) -> str:
    """What became of the gradient.

    Args:
        first, after: whether it arrived before and after an evaluation.
    """
    if first and not after:
        return "After one evaluation the gradient is swallowed, without an error."
    if first and after:
        return "On this machine the gradient arrives both times: it has no such kernel."
    return "Here it is otherwise: no gradient arrived at the first time. Is the layer quantized?"


def swallowed(untrained: float, whole: float, broken: float) -> str:
    """What training learns when the frozen layers swallow the gradient.

    Args:
        untrained, whole, broken: the held-out loss before training, after it, and after it with the
            gradient swallowed.
    """
    share = (untrained - broken) / (untrained - whole)
    said = f"held-out loss {untrained:.2f} before, {whole:.2f} after, {broken:.2f} if swallowed: "
    if share <= 0:
        return said + "nothing is learned."
    if share > 0.95:
        return said + "here it learns as much all the same, so no loss would have told."
    return said + f"it still learns, {share:.0%} of what it should."


def price(before: float, after: float) -> str:
    """What the task has cost in plain English.

    Args:
        before, after: perplexity on plain text of the base and of the fine-tuned model.
    """
    change = after / before - 1
    if change > 0.01:
        return f"The price: plain English has become {change:.0%} more surprising."
    return f"No price is visible: the perplexity on plain English changed by {change:+.1%}."
