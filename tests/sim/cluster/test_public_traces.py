"""Real traces are read as their authors describe them, and nothing is fetched."""

from __future__ import annotations

import gzip
import hashlib
import io
from pathlib import Path

import numpy as np
import pytest

from utils.routing.policies import LeastLoaded
from utils.sim.cluster.cost import llama3_70b_on_a800
from utils.sim.cluster.public_traces import (
    GIT_BLOBS,
    SOURCES,
    download_trace,
    find_trace,
    git_blob,
    load_azure,
    load_mooncake,
)
from utils.sim.cluster.replica_config import ReplicaConfig
from utils.sim.cluster.simulate import simulate

LINES = """\
{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 3052, "input_length": 1600, "output_length": 9, "hash_ids": [0, 1, 7, 8]}
"""
TABLE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""


@pytest.mark.parametrize("compressed", [False, True])
def test_mooncakes_lines(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / ("trace.jsonl.gz" if compressed else "trace.jsonl")
    path.write_bytes(gzip.compress(LINES.encode()) if compressed else LINES.encode())
    trace = load_mooncake(path)
    assert list(trace.rows()) == [
        (0, 0.0, None, 1100, 5, [0, 1, 2]),
        (1, 3.052, None, 1600, 9, [0, 1, 7, 8]),
    ]
    assert trace.sha256 == hashlib.sha256(LINES.encode()).hexdigest()
    assert trace.faster(2).arrivals.tolist() == [0.0, 1.526]
    result = simulate(trace, LeastLoaded(), 1, ReplicaConfig(llama3_70b_on_a800(), None))
    assert result.num_cached_tokens.tolist() == [0, 1024]


def test_azures_table(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(TABLE)
    trace = load_azure(path)
    assert trace.num_tokens.tolist() == [374, 396] and trace.output_lens.tolist() == [44, 109]
    np.testing.assert_allclose(trace.arrivals, [0, 4.314579])


def test_an_absent_file_says_where_it_is(tmp_path: Path) -> None:
    for name, (url, megabytes) in SOURCES.items():
        load = load_mooncake if name.startswith("mooncake") else load_azure
        with pytest.raises(FileNotFoundError, match=f"{megabytes} MB") as caught:
            load(tmp_path / name)
        assert url in str(caught.value)
        with pytest.raises(FileNotFoundError, match="Fetch it from"):
            find_trace(tmp_path, name)
        (tmp_path / f"{name}.gz").touch()
        assert find_trace(tmp_path, name) == tmp_path / f"{name}.gz"
    with pytest.raises(ValueError, match="no trace is called"):
        find_trace(tmp_path, "other")


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text('{"timestamp": 0}\n')
    with pytest.raises(ValueError, match="Mooncake's format"):
        load_mooncake(path)
    with pytest.raises(ValueError, match="Azure's format"):
        load_azure(path)
    path.write_text("hello\n")
    with pytest.raises(ValueError, match="Mooncake's format"):
        load_mooncake(path)


def test_a_download_is_compared_with_its_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, data = "mooncake_toolagent.jsonl", b"a trace"
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: io.BytesIO(data))
    with pytest.raises(ValueError, match="checksum differs"):
        download_trace(tmp_path, name)
    assert not list(tmp_path.iterdir())
    monkeypatch.setitem(GIT_BLOBS, name, git_blob(data))
    assert download_trace(tmp_path, name).read_bytes() == data
    with pytest.raises(ValueError, match="no checksum"):
        download_trace(tmp_path, "azure_conv_2023.csv")


def test_gits_name_of_a_file() -> None:
    assert git_blob(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"  # git hash-object
