"""What GPUs and the links between them can do, as their makers state it.

Memory is in GiB, bandwidth in bytes a second, arithmetic in floating-point operations a second on
16-bit matrices without sparsity. All of it is the best case: nobody measures more, many less.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30
GB = 10**9  # links are sold in powers of ten
GBIT = 10**9 / 8


@dataclass(frozen=True)
class Gpu:
    """One card.

    Attributes:
        name: as it is sold.
        memory: bytes.
        bandwidth: bytes a second between its memory and its cores.
        flops: floating-point operations a second, 16 bit, dense.
        source: the maker's page or paper that says so.
    """

    name: str
    memory: int
    bandwidth: float
    flops: float
    source: str


@dataclass(frozen=True)
class Link:
    """What connects two GPUs.

    Attributes:
        name: of the link, and its generation.
        bandwidth: bytes a second that one GPU can send while it receives as many.
        latency: seconds from one GPU to its neighbour, of a message with next to nothing in it.
        between_servers: does it leave the server?
        source: where the bandwidth stands. `latency_source` says where the latency comes from.
    """

    name: str
    bandwidth: float
    latency: float
    between_servers: bool
    source: str

    @property
    def latency_source(self) -> str:
        """NCCL's number, or ours: then replace it by what you measure."""
        of_nccl = self.latency in (NVLINK_LATENCY, PCI_LATENCY, NETWORK_LATENCY)
        return "NCCL 2.18, tuning.cc" if of_nccl else "assumed here, measure yours"


_SHEET = "NVIDIA's data sheet of the {}"
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("T4", 16 * GIB, 320e9, 65e12, _SHEET.format("T4")),
        Gpu("L4", 24 * GIB, 300e9, 121e12, _SHEET.format("L4")),
        Gpu("RTX 4090", 24 * GIB, 1008e9, 165e12, "NVIDIA's white paper on Ada, appendix A"),
        Gpu("L40S", 48 * GIB, 864e9, 362e12, _SHEET.format("L40S")),
        Gpu("A100 40GB", 40 * GIB, 1555e9, 312e12, _SHEET.format("A100")),
        Gpu("A100 80GB", 80 * GIB, 2039e9, 312e12, _SHEET.format("A100")),
        Gpu("H100", 80 * GIB, 3350e9, 989e12, _SHEET.format("H100 (SXM)")),
        Gpu("H200", 141 * GIB, 4800e9, 989e12, _SHEET.format("H200 (SXM)")),
        Gpu("B200", 180 * GIB, 8000e9, 2250e12, _SHEET.format("DGX B200, divided by 8")),
        Gpu("MI300X", 192 * GIB, 5300e9, 1307e12, "AMD's data sheet of the MI300X"),
    )
}

# The latencies with which NCCL chooses its algorithm (2.18, src/graph/tuning.cc: `hwLat` of a ring
# with protocol LL), and what starting any operation adds (`baseLat`). LL sends a flag with every
# four bytes of data, so it uses half of a link's bandwidth at most. Its latency together with the
# full bandwidth is a best case that no single protocol reaches.
NVLINK_LATENCY, PCI_LATENCY, NETWORK_LATENCY = 0.6e-6, 1.0e-6, 2.7e-6
START_LATENCY = 6.6e-6
# An assumption: no data sheet says this. TCP goes through two kernels, which copy: tens of
# microseconds. Measure your own. RDMA (InfiniBand, RoCE) writes into the other's memory past both.
TCP_LATENCY = 25e-6

_PCI = "PCI-SIG: 16 lanes of {} GT/s, 128 of 130 bits are data"
_NVLINK = "NVIDIA's data sheet of the {}: {} GB/s, both directions together"
_IBTA = "IBTA's roadmap: 4 lanes, {} Gbit/s"
_IEEE = "IEEE 802.3; the line's rate"
LINKS = {
    link.name: link
    for link in (
        Link("NVLink 5", 900 * GB, NVLINK_LATENCY, False, _NVLINK.format("DGX B200", 1800)),
        Link("NVLink 4", 450 * GB, NVLINK_LATENCY, False, _NVLINK.format("H100", 900)),
        Link("NVLink 3", 300 * GB, NVLINK_LATENCY, False, _NVLINK.format("A100", 600)),
        Link("PCIe 5 x16", 32 * 16 * 128 / 130 * GBIT, PCI_LATENCY, False, _PCI.format(32)),
        Link("PCIe 4 x16", 16 * 16 * 128 / 130 * GBIT, PCI_LATENCY, False, _PCI.format(16)),
        Link("InfiniBand XDR", 800 * GBIT, NETWORK_LATENCY, True, _IBTA.format(800)),
        Link("InfiniBand NDR", 400 * GBIT, NETWORK_LATENCY, True, _IBTA.format(400)),
        Link("InfiniBand HDR", 200 * GBIT, NETWORK_LATENCY, True, _IBTA.format(200)),
        Link("RoCE 400G", 400 * GBIT, NETWORK_LATENCY, True, _IEEE),
        Link("RoCE 200G", 200 * GBIT, NETWORK_LATENCY, True, _IEEE),
        Link("RoCE 100G", 100 * GBIT, NETWORK_LATENCY, True, _IEEE),
        Link("Ethernet 100G", 100 * GBIT, TCP_LATENCY, True, _IEEE),
        Link("Ethernet 25G", 25 * GBIT, TCP_LATENCY, True, _IEEE),
        Link("Ethernet 10G", 10 * GBIT, TCP_LATENCY, True, _IEEE),
    )
}


@dataclass(frozen=True)
class Cluster:
    """Servers with equal GPUs, and two kinds of links: inside a server, and between servers."""

    gpu: Gpu
    inside: Link
    between: Link
    gpus_per_server: int = 8

    def __post_init__(self) -> None:
        if self.gpus_per_server < 1:
            raise ValueError(f"gpus_per_server must be at least 1, got {self.gpus_per_server}.")

    def link(self, span: int) -> Link:
        """The slowest link among `span` neighbouring ranks: a ring is as fast as that one."""
        return self.inside if span <= self.gpus_per_server else self.between


def cluster(gpu: str, inside: str, between: str, gpus_per_server: int = 8) -> Cluster:
    """A cluster from names in `GPUS` and `LINKS`.

    Raises:
        ValueError: a name is unknown.
    """
    if gpu not in GPUS:
        raise ValueError(f"Unknown GPU {gpu!r}. Known: {', '.join(GPUS)}.")
    for name in (inside, between):
        if name not in LINKS:
            raise ValueError(f"Unknown link {name!r}. Known: {', '.join(LINKS)}.")
    return Cluster(GPUS[gpu], LINKS[inside], LINKS[between], gpus_per_server)
