"""A few GPUs, from their makers' data sheets: what the estimates of the dry run start from."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20
# Of the memory that nvidia-smi shows, the driver keeps some: a T4 shows 15,360 MiB, and PyTorch
# reports a total capacity of 14.56 to 14.76 GiB there.
USABLE = 0.97


@dataclass(frozen=True)
class Card:
    """One GPU.

    Attributes:
        name: what people call it, and what `torch.cuda.get_device_name` contains.
        memory_mib: what nvidia-smi shows, in MiB.
        tflops: peak of dense 16-bit matrix products with the tensor cores, in 10^12 per second.
        bandwidth: peak of the memory, in 10^9 bytes per second.
        has_bfloat16: does its hardware multiply bfloat16?
        source: where the data sheet is.
    """

    name: str
    memory_mib: int
    tflops: float
    bandwidth: float
    has_bfloat16: bool
    source: str

    @property
    def memory_bytes(self) -> float:
        """What programs can have."""
        return self.memory_mib * MIB * USABLE


# From NVIDIA's data sheets, at https://www.nvidia.com/en-us/data-center/ and the path in `source`.
# Where a card has a mode for sparse weights, the sheet gives the tensor cores' speed in that mode.
# The dense speed, which these models need, is half of it.
CARDS = {
    card.name: card
    for card in (
        Card("T4", 15_360, 65, 300, False, "tesla-t4"),
        Card("L4", 23_034, 121, 300, True, "l4"),
        Card("A10", 23_028, 125, 600, True, "products/a10-gpu"),
        Card("A100 40GB", 40_960, 312, 1555, True, "a100"),
        Card("A100 80GB", 81_920, 312, 2039, True, "a100"),
    )
}
# The smallest card that each profile is meant for.
CARD_OF_PROFILE = {"gpu-bundled": "T4", "gpu-small": "T4", "gpu": "L4"}


def get_card(name: str) -> Card:
    """Return a card by name.

    Raises:
        ValueError: it is not in the table.
    """
    if name not in CARDS:
        raise ValueError(f"Unknown card {name!r}. There are data for {', '.join(CARDS)}.")
    return CARDS[name]
