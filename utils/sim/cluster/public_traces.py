"""Real traces, as their authors published them: Mooncake's and Azure's.

They are not part of this repository. Fetch a file of a few megabytes and give its path, or let
`download_trace` do it. Compressed files (.gz) are read, too.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from utils.sim.cluster.trace import Row

_COMMIT = "3b5a594133958449a1feaf1c9e0fc1b553e34a28"
_MOONCAKE = f"https://raw.githubusercontent.com/kvcache-ai/Mooncake/{_COMMIT}/FAST25-release/traces"
_AZURE = "https://raw.githubusercontent.com/Azure/AzurePublicDataset/master/data"
# Where each file is, and its size in MB.
SOURCES: dict[str, tuple[str, float | str]] = {
    "mooncake_conversation.jsonl": (f"{_MOONCAKE}/conversation_trace.jsonl", 3.0),
    "mooncake_toolagent.jsonl": (f"{_MOONCAKE}/toolagent_trace.jsonl", "over 4"),
    "mooncake_synthetic.jsonl": (f"{_MOONCAKE}/synthetic_trace.jsonl", 1.1),
    "azure_conv_2023.csv": (f"{_AZURE}/AzureLLMInferenceTrace_conv.csv", 0.7),
    "azure_code_2023.csv": (f"{_AZURE}/AzureLLMInferenceTrace_code.csv", 0.3),
}
# What git calls each file's contents at that commit: SHA-1 over a header and the bytes.
GIT_BLOBS = {
    "mooncake_conversation.jsonl": "5a371794b81d7fc7487ec8a02a2c631bcc7fbdf8",
    "mooncake_toolagent.jsonl": "b765599d1e0828b37f68d481563c385d3c11de54",
    "mooncake_synthetic.jsonl": "e4838049c0dcfc358a5f24ab08251279475cba94",
}
MOONCAKE_BLOCK_SIZE = 512


@dataclass(frozen=True)
class LoadedTrace:
    """A `ClusterTrace` from a file; who belongs to which session is not in it.

    Attributes:
        names: per request, its blocks; empty where the file says nothing of shared text.
        sha256: of the file's contents, not compressed.
    """

    block_size: int
    arrivals: np.ndarray
    num_tokens: np.ndarray
    output_lens: np.ndarray
    names: list[list[int]]
    sha256: str

    def __len__(self) -> int:
        return len(self.arrivals)

    def rows(self) -> Iterator[Row]:
        columns = zip(
            self.arrivals.tolist(),
            self.num_tokens.tolist(),
            self.output_lens.tolist(),
            self.names,
            strict=True,
        )
        for number, (now, tokens, output, names) in enumerate(columns):
            yield number, now, None, tokens, output, names

    def faster(self, times: float) -> LoadedTrace:
        """The same requests, arriving `times` as fast.

        Raises:
            ValueError: `times` is not positive.
        """
        if not times > 0:
            raise ValueError(f"times must be positive, not {times}")
        return LoadedTrace(
            self.block_size,
            self.arrivals / times,
            self.num_tokens,
            self.output_lens,
            self.names,
            self.sha256,
        )


def load_mooncake(path: str | Path) -> LoadedTrace:
    """A trace in Mooncake's format: JSON lines of timestamp (ms), lengths and `hash_ids`.

    Equal ids are equal prefixes, in blocks of 512 tokens; the last block may be shorter.

    Raises:
        FileNotFoundError: the file is absent; the message says where to get it.
        ValueError: a line is not as described.
    """
    data = _read(Path(path))
    try:
        rows = [json.loads(line) for line in data.splitlines() if line.strip()]
        return LoadedTrace(
            MOONCAKE_BLOCK_SIZE,
            np.array([row["timestamp"] for row in rows]) / 1000,
            np.array([row["input_length"] for row in rows], dtype=np.int64),
            np.array([row["output_length"] for row in rows], dtype=np.int64),
            [list(map(int, row["hash_ids"])) for row in rows],
            hashlib.sha256(data).hexdigest(),
        )
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path} is not a trace in Mooncake's format: each line must be JSON with timestamp, "
            f"input_length, output_length and hash_ids ({error!r})."
        ) from None


def load_azure(path: str | Path) -> LoadedTrace:
    """A trace in Azure's format: CSV of TIMESTAMP, ContextTokens, GeneratedTokens.

    It says nothing about shared text, so its requests have no blocks.

    Raises:
        FileNotFoundError: the file is absent; the message says where to get it.
        ValueError: a line is not as described.
    """
    data = _read(Path(path))
    try:
        rows = list(csv.DictReader(data.decode().splitlines()))
        times = np.array([row["TIMESTAMP"] for row in rows], dtype="datetime64[ns]")
        order = np.argsort(times, kind="stable")
        return LoadedTrace(
            MOONCAKE_BLOCK_SIZE,
            ((times - times.min()) / np.timedelta64(1, "s"))[order],
            np.array([int(row["ContextTokens"]) for row in rows])[order],
            np.array([int(row["GeneratedTokens"]) for row in rows])[order],
            [[] for _ in rows],
            hashlib.sha256(data).hexdigest(),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is not a trace in Azure's format: CSV with the columns TIMESTAMP, "
            f"ContextTokens and GeneratedTokens ({error!r})."
        ) from None


def find_trace(folder: str | Path, name: str) -> Path:
    """The file `name` of `SOURCES` in a folder, plain or compressed.

    Raises:
        FileNotFoundError: it is not there; the message says where to get it.
        ValueError: there is no such trace.
    """
    if name not in SOURCES:
        raise ValueError(f"no trace is called {name!r}; there are {', '.join(SOURCES)}")
    for path in (Path(folder) / name, Path(folder) / f"{name}.gz"):
        if path.is_file():
            return path
    url, megabytes = SOURCES[name]
    raise FileNotFoundError(
        f"{Path(folder) / name} is not there. Fetch it from {url} ({megabytes} MB) and save it "
        "under that name."
    )


def download_trace(folder: str | Path, name: str) -> Path:
    """Fetch one of Mooncake's traces, unless the folder has it, and compare its checksum.

    Raises:
        ValueError: there is no checksum for this name, or the contents are not the published ones.
        OSError: the network failed.
    """
    if name not in GIT_BLOBS:
        raise ValueError(f"no checksum for {name!r}; there are {', '.join(GIT_BLOBS)}")
    try:
        return find_trace(folder, name)
    except FileNotFoundError:
        with urllib.request.urlopen(SOURCES[name][0], timeout=60) as response:
            data = response.read()
    if git_blob(data) != GIT_BLOBS[name]:
        raise ValueError(f"{SOURCES[name][0]} is not the published file: its checksum differs.")
    path = Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def git_blob(data: bytes) -> str:
    """What git calls a file with these contents."""
    header = f"blob {len(data)}\0".encode()
    return hashlib.sha1(header + data, usedforsecurity=False).hexdigest()


def _read(path: Path) -> bytes:
    if not path.is_file():
        known = SOURCES.get(path.name.removesuffix(".gz"))
        files = {path.name: known} if known else SOURCES
        places = "\n".join(f"  {name}: {url} ({mb} MB)" for name, (url, mb) in files.items())
        raise FileNotFoundError(f"{path} is not there. Fetch it yourself:\n{places}")
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data
