"""How much work the pipeline is: lengths of the task, shape of the model, work over speed.

seconds = max(operations / (peak speed x efficiency), bytes / (peak bandwidth x efficiency))
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from utils.hub import BUNDLED, load_tokenizer
from utils.pipeline.estimates.cards import Card
from utils.pipeline.estimates.train_shapes import TRAIN_SHAPES, TrainShape
from utils.pipeline.estimates.training_memory import HALF
from utils.pipeline.stages.packed_batches import encode, pack
from utils.pipeline.task.messages import generate
from utils.profiles import Profile

SHAPE_OF_MODEL = {
    BUNDLED: "SmolLM2-135M",
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": "SmolLM2-1.7B",
    "mistralai/Mistral-7B-Instruct-v0.3": "Mistral-7B",
}
# Assumptions. Well-fed tensor cores reach about half of their peak in such models, and memory about
# two thirds of its own. Less for training: many small kernels.
EFFICIENCY, TRAINING_EFFICIENCY, BANDWIDTH_EFFICIENCY = 0.5, 0.35, 0.65
DISK_BANDWIDTH = 0.5e9  # bytes per second
ANSWER_STEPS = 1.3  # the longest answer of a batch, in mean answers


class EstimateError(ValueError):
    """There is nothing to estimate from. The message says what is known."""


@dataclass(frozen=True)
class Lengths:
    """Tokens of the task: the shared prefix, then a message's own tokens, then its answer."""

    prefix: int
    message: float
    answer: float

    @property
    def prompt(self) -> float:
        return self.prefix + self.message

    def batch(self, size: int) -> int:
        """Tokens of a training batch, which holds the prefix once."""
        return self.prefix + round(size * (self.message + self.answer))


@lru_cache(maxsize=1)
def task_lengths(examples: int = 64) -> Lengths:
    """Mean lengths with the bundled model's tokenizer. Others differ by some ten percent."""
    encoded = encode(load_tokenizer(BUNDLED), generate("train", examples))
    prefix = pack(encoded).lengths[0]
    return Lengths(
        prefix=prefix,
        message=sum(len(tokens.prompt) - prefix for tokens in encoded) / examples,
        answer=sum(len(tokens.answer) for tokens in encoded) / examples,
    )


def shape_of(profile: Profile) -> TrainShape:
    """The shape of a profile's model, without its weights.

    Raises:
        EstimateError: the model is in no table.
    """
    if profile.model not in SHAPE_OF_MODEL:
        raise EstimateError(
            f"No shape is known for {profile.model!r}. Add its config's numbers to TRAIN_SHAPES in "
            f"utils/pipeline/estimates/train_shapes.py. Known: {', '.join(SHAPE_OF_MODEL)}."
        )
    return TRAIN_SHAPES[SHAPE_OF_MODEL[profile.model]]


def int4_bytes(shape: TrainShape, group_size: int) -> float:
    """A GPTQ or AWQ checkpoint: 4 bits, and per group a 16-bit scale and a 4-bit zero point."""
    bits = 4 + (16 + 4) / group_size
    return shape.linear_parameters() * bits / 8 + HALF * shape.other_parameters()


def kv_bytes_per_token(shape: TrainShape) -> int:
    """Keys and values of one token in all layers, 16 bit."""
    return 2 * shape.num_hidden_layers * shape.kv_size * HALF


# --- work over speed ----------------------------------------------------------------------------


def compute_seconds(
    tokens: float, shape: TrainShape, card: Card, share: float = EFFICIENCY
) -> float:
    """Seconds of matrix products: two operations per weight and token."""
    return 2 * shape.num_parameters() * tokens / (card.tflops * 1e12 * share)


def transfer_seconds(num_bytes: float, card: Card) -> float:
    """Seconds to read from the card's memory."""
    return num_bytes / (card.bandwidth * 1e9 * BANDWIDTH_EFFICIENCY)


def load_seconds(shape: TrainShape) -> float:
    """Seconds to read or write the 16-bit model on a disk."""
    return HALF * shape.num_parameters() / DISK_BANDWIDTH


def answer_seconds(
    requests: int,
    shape: TrainShape,
    lengths: Lengths,
    card: Card,
    weights: float,
    seqs: int,
    prefix_caching: bool,
) -> float:
    """All messages at once: prefill by compute, decode by whichever is slower."""
    new = requests * (lengths.message if prefix_caching else lengths.prompt)
    prefill = compute_seconds(new, shape, card)
    steps = -(-requests // seqs) * lengths.answer * ANSWER_STEPS
    cached = seqs * (lengths.prompt + lengths.answer / 2) * kv_bytes_per_token(shape)
    return prefill + steps * max(
        transfer_seconds(weights + cached, card), compute_seconds(seqs, shape, card)
    )
