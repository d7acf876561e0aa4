"""The tables of hardware: complete, in the right order, and known by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from utils.distributed.hardware import GIB, GPUS, LINKS, cluster


def test_every_row_is_told_by_somebody() -> None:
    assert all(gpu.source and gpu.memory >= 16 * GIB for gpu in GPUS.values())
    assert all(link.source and link.latency > 0 for link in LINKS.values())


def test_a_latency_that_nobody_states_is_marked_as_an_assumption() -> None:
    for link in LINKS.values():
        assert ("assumed" in link.latency_source) == link.name.startswith("Ethernet")
    measured = replace(LINKS["Ethernet 10G"], latency=31e-6)
    assert "NCCL" not in measured.latency_source


def test_units() -> None:
    """A gigabit is an eighth of a gigabyte; a byte crosses PCIe as 8 x 130 / 128 bits."""
    assert LINKS["InfiniBand NDR"].bandwidth == 50e9
    assert LINKS["Ethernet 10G"].bandwidth == 1.25e9
    assert LINKS["PCIe 4 x16"].bandwidth == pytest.approx(31.5e9, rel=1e-3)
    assert GPUS["H100"].flops / GPUS["H100"].bandwidth == pytest.approx(295, rel=0.01)


def test_a_ring_is_as_fast_as_its_slowest_link() -> None:
    where = cluster("H100", "NVLink 4", "InfiniBand NDR", gpus_per_server=8)
    assert where.link(8).name == "NVLink 4"
    assert where.link(9).name == "InfiniBand NDR"


@pytest.mark.parametrize(
    ("gpu", "inside", "between", "per_server", "words"),
    [
        ("H101", "NVLink 4", "InfiniBand NDR", 8, "Unknown GPU 'H101'. Known: T4"),
        ("H100", "NVLink 9", "InfiniBand NDR", 8, "Unknown link 'NVLink 9'"),
        ("H100", "NVLink 4", "string", 8, "Unknown link 'string'"),
        ("H100", "NVLink 4", "InfiniBand NDR", 0, "at least 1"),
    ],
)
def test_unknown_names(gpu, inside, between, per_server, words) -> None:
    with pytest.raises(ValueError, match=words):
        cluster(gpu, inside, between, per_server)
