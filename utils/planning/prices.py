"""What an hour of a card costs: examples with a date and a source, to be replaced by your own."""

from __future__ import annotations

from dataclasses import dataclass

LAMBDA = "lambda.ai/instances, 8 cards at a time"
RUNPOD = "runpod.io/pricing, Pods"


@dataclass(frozen=True)
class Price:
    """An example of what one card costs for an hour, on demand.

    Attributes:
        dollars: per card and hour.
        seller: whose list it is. Empty: nobody's; a round number that only fills the place.
        seen: the day on which the list said so (it was copied by the API Evangelist catalog).
    """

    dollars: float
    seller: str = ""
    seen: str = ""

    @property
    def source(self) -> str:
        """Where it comes from, in words."""
        return f"{self.seller}, {self.seen}" if self.seller else "a round number, not a quotation"


# By the names of `utils.distributed.hardware.GPUS`.
PRICES = {
    "T4": Price(0.40),
    "L4": Price(0.80),
    "A100 40GB": Price(1.99, LAMBDA, "2026-09-20"),
    "A100 80GB": Price(2.79, LAMBDA, "2026-09-20"),
    "H100": Price(3.99, LAMBDA, "2026-09-20"),
    "H200": Price(4.59, RUNPOD, "2026-10-07"),
    "B200": Price(6.69, LAMBDA, "2026-09-20"),
}
