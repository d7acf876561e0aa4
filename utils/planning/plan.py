"""From a model, a card and a load to replicas and dollars, in pure functions.

Memory and time come from `utils.distributed` (notebook 15), which knows several cards as well. What
is added here: weights with fewer bits than the KV cache, the share of a data sheet's numbers that
is reached in practice, and money.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from utils.distributed.hardware import GPUS, LINKS, Cluster
from utils.distributed.layouts import Layout, Memory, fullest
from utils.distributed.shapes import SHAPES
from utils.distributed.step_time import decode_step, prefill

# What connects the cards of one server; those that are not here have PCI Express 4.
LINK_OF = {"A100 40GB": "NVLink 3", "A100 80GB": "NVLink 3", "H100": "NVLink 4"}
LINK_OF |= {"H200": "NVLink 4", "B200": "NVLink 5"}
MILLION = 1e6
HOUR = 3600.0


@dataclass(frozen=True)
class Deployment:
    """One replica: a model on so many cards.

    Attributes:
        model: a name in `utils.distributed.shapes.SHAPES`.
        gpu: a name in `utils.distributed.hardware.GPUS`.
        cards: that share every layer (tensor parallel).
        weight_bits: 16, 8 or 4. The scales of quantized weights are left out.
        reach_bandwidth, reach_flops: share of the data sheet's numbers that is reached. The
            defaults are round numbers: put in what you measure.

    Raises:
        ValueError: an unknown model or card, or a number that makes no sense.
    """

    model: str
    gpu: str
    cards: int = 1
    weight_bits: int = 16
    reach_bandwidth: float = 0.7
    reach_flops: float = 0.5

    def __post_init__(self) -> None:
        if self.model not in SHAPES:
            raise ValueError(f"Unknown model {self.model!r}. Known: {', '.join(SHAPES)}.")
        if self.gpu not in GPUS:
            raise ValueError(f"Unknown card {self.gpu!r}. Known: {', '.join(GPUS)}.")
        if self.cards < 1:
            raise ValueError(f"cards must be at least 1, got {self.cards}.")
        if self.weight_bits not in (4, 8, 16):
            raise ValueError(f"weight_bits must be 4, 8 or 16, got {self.weight_bits}.")
        for name in ("reach_bandwidth", "reach_flops"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1.")

    def __str__(self) -> str:
        return f"{self.cards} x {self.gpu}, {self.weight_bits} bits"

    @property
    def memory(self) -> Memory:
        """Bytes of weights and of a token on the fullest card; room for tokens in the replica."""
        return fullest(
            SHAPES[self.model],
            Layout(self.cards),
            GPUS[self.gpu],
            weight_itemsize=self.weight_bits / 8,
        )

    @property
    def cluster(self) -> Cluster:
        """The cards as they really are, and the link between them."""
        sheet = GPUS[self.gpu]
        reached = replace(
            sheet,
            bandwidth=self.reach_bandwidth * sheet.bandwidth,
            flops=self.reach_flops * sheet.flops,
        )
        inside = LINKS[LINK_OF.get(self.gpu, "PCIe 4 x16")]
        return Cluster(reached, inside, LINKS["InfiniBand NDR"])

    def prefill_seconds(self, tokens: int) -> float:
        """Seconds to read so many tokens of one prompt. None of them: 0."""
        if tokens < 0:
            raise ValueError(f"tokens must not be negative, got {tokens}.")
        if tokens == 0:
            return 0.0
        shape, layout = SHAPES[self.model], Layout(self.cards)
        bits = self.weight_bits / 8
        return prefill(shape, layout, self.cluster, tokens, weight_itemsize=bits).seconds

    def decode_seconds(self, requests: int, context: int) -> float:
        """Seconds of a step that gives each of the requests, with so long a text, one token."""
        if requests < 1 or context < 0:
            raise ValueError(f"Expected requests and a context, got {requests} and {context}.")
        shape, layout, bits = SHAPES[self.model], Layout(self.cards), self.weight_bits / 8
        step = decode_step(shape, layout, self.cluster, requests, context, weight_itemsize=bits)
        return step.seconds


@dataclass(frozen=True)
class Load:
    """What one request looks like, on average.

    Attributes:
        prompt, answer: tokens in and tokens out.
        hit: share of the prompt that is found in the prefix cache.
    """

    prompt: int
    answer: int
    hit: float = 0.0

    def __post_init__(self) -> None:
        if self.prompt < 1 or self.answer < 1:
            raise ValueError(f"Expected tokens in and out, got {self.prompt} and {self.answer}.")
        if not 0 <= self.hit <= 1:
            raise ValueError(f"hit must be between 0 and 1, got {self.hit}.")

    @property
    def computed(self) -> int:
        """Tokens of the prompt that are computed: at least the last one."""
        return max(1, round(self.prompt * (1 - self.hit)))

    @property
    def context(self) -> int:
        """Tokens that a running request has in the KV cache, on average over its answer."""
        return self.prompt + self.answer // 2


@dataclass(frozen=True)
class Capacity:
    """What one replica can do when it always has `requests` in flight.

    Attributes:
        requests: in flight.
        prefill: seconds that reading the prompt of a request takes.
        step: seconds of a decode step of all of them.
        load: what a request looks like.
    """

    requests: int
    prefill: float
    step: float
    load: Load

    @property
    def seconds_per_request(self) -> float:
        """Of the replica's time: its prompt, and its share of the steps that write its answer."""
        return self.prefill + self.load.answer * self.step / self.requests

    @property
    def requests_per_second(self) -> float:
        """What the replica can do with that many in flight.

        If they are as many as a promise allows, it is the knee of notebook 14.
        """
        return 1 / self.seconds_per_request

    @property
    def time_per_token(self) -> float:
        """Mean seconds between two tokens of an answer, with the prompts of others in between.

        Little's law: the requests in flight are the rate times the seconds that each stays.
        """
        return self.requests * self.seconds_per_request / self.load.answer


def capacity(
    deployment: Deployment, load: Load, requests: int | None = None, promise: float = math.inf
) -> Capacity:
    """What a replica can do at most, within its memory and a promise.

    Args:
        requests: in flight. None: as many as memory and promise allow.
        promise: the mean seconds between two tokens that we promise.

    Raises:
        ValueError: not even one request fits, or one alone breaks the promise.
    """
    fit = deployment.memory.tokens // (load.prompt + load.answer)
    if fit < max(1, requests or 1):
        raise ValueError(
            f"{deployment.model} on {deployment.cards} x {deployment.gpu}: room for {fit} requests "
            f"of {load.prompt + load.answer:,} tokens. Take more cards, fewer bits, or less text."
        )

    def at(n: int) -> Capacity:
        read = deployment.prefill_seconds(load.computed)
        return Capacity(n, read, deployment.decode_seconds(n, load.context), load)

    if requests is not None:
        return at(requests)
    if at(1).time_per_token > promise:
        raise ValueError(
            f"Even one request at a time waits {1e3 * at(1).time_per_token:.0f} ms for a token."
        )
    low, high = 1, fit + 1  # `low` keeps the promise; more in flight is never faster for anybody
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle).time_per_token <= promise else (low, middle)
    return at(low)


@dataclass(frozen=True)
class Dollars:
    """What tokens cost us. Tokens in are all of the prompt's, those from the cache included."""

    per_million_in: float
    per_million_out: float
    per_request: float


def dollars(
    deployment: Deployment, able: Capacity, dollars_per_card_hour: float, used: float = 1.0
) -> Dollars:
    """Share the price of an hour out to the tokens, by the seconds that each kind takes.

    Args:
        dollars_per_card_hour: what one card costs, whether it works or not.
        used: the share of the replica's capacity that is used, on average over all hours.

    Raises:
        ValueError: a negative price, or a share outside of 0 to 1.
    """
    if dollars_per_card_hour < 0 or not 0 < used <= 1:
        raise ValueError(f"Expected a price and a share, got {dollars_per_card_hour} and {used}.")
    per_second = deployment.cards * dollars_per_card_hour / HOUR / used
    read = per_second * able.prefill
    written = per_second * able.step / able.requests
    return Dollars(
        MILLION * read / able.load.prompt, MILLION * written, read + able.load.answer * written
    )


def replicas(requests_per_second: float, able: Capacity, share: float = 1.0) -> int:
    """How many replicas carry a load, if each may be used up to `share` of its capacity.

    Raises:
        ValueError: a negative load, or a share outside of 0 to 1.
    """
    if requests_per_second < 0 or not 0 < share <= 1:
        raise ValueError(f"Expected a load and a share, got {requests_per_second} and {share}.")
    return max(1, math.ceil(requests_per_second / (share * able.requests_per_second)))
