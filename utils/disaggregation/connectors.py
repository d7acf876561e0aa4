"""vLLM's connectors: what each is for, checked against the installed vLLM."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import dataclass
from pathlib import Path

from utils.environments.pipeline import pipeline_python, worker_environment

FACTORY = "distributed/kv_transfer/kv_connector/factory.py"


@dataclass(frozen=True)
class Connector:
    """Names as in vLLM's `KVConnectorFactory`, and what they are for.

    Attributes:
        way: "store" (many put in, many take out), "peer to peer" (from one server to another),
            "own memory" (blocks leave the GPU and come back to the same server), "several",
            or "to learn and measure".
    """

    names: tuple[str, ...]
    way: str
    purpose: str


CONNECTORS = (
    Connector(
        ("LMCacheConnectorV1", "LMCacheMPConnector"),
        "store",
        "LMCache: a layer of its own with chunks in CPU memory, on disk and in remote stores such "
        "as Valkey; also reuse that is no prefix. MP: as one process per machine for all servers",
    ),
    Connector(
        ("MooncakeStoreConnector",),
        "store",
        "Mooncake Store: the DRAM and SSD of all machines as one pool, read over RDMA",
    ),
    Connector(("HF3FSKVConnector",), "store", "3FS: blocks as files on DeepSeek's file system"),
    Connector(
        ("FlexKVConnectorV1",),
        "store",
        "FlexKV: levels of CPU memory, SSD and remote storage behind one server",
    ),
    Connector(
        ("NixlConnector", "NixlPullConnector", "NixlPushConnector"),
        "peer to peer",
        "NIXL, NVIDIA's transfer library (UCX, RDMA, NVLink): from the prefill server's GPU into "
        "the decode server's. Pull: decode reads; push: prefill writes",
    ),
    Connector(
        ("MooncakeConnector",),
        "peer to peer",
        "Mooncake's transfer engine alone, for prefill and decode apart",
    ),
    Connector(("MoRIIOConnector",), "peer to peer", "MoRI-IO: the same on AMD's GPUs"),
    Connector(
        ("OffloadingConnector", "SimpleCPUOffloadConnector"),
        "own memory",
        "blocks that leave the GPU are kept in the machine's own memory, and come back",
    ),
    Connector(
        ("HiSparseConnector",),
        "own memory",
        "for sparse attention: all keys and values in the machine's memory, those in use on the "
        "GPU",
    ),
    Connector(
        ("MultiConnector",),
        "several",
        "a list of connectors: saves to all, loads from the first that has something. For "
        "instance NIXL between servers, and a store behind",
    ),
    Connector(
        ("ExampleConnector", "ExampleHiddenStatesConnector"),
        "to learn and measure",
        "files in a folder, to read; the second one for hidden states instead of keys and values",
    ),
    Connector(
        ("DecodeBenchConnector",),
        "to learn and measure",
        "invents keys and values, so that decoding can be measured without prefill",
    ),
)


def vllm_folder() -> Path:
    """Where the installed vLLM is; it is not imported for that.

    Raises:
        ModuleNotFoundError: Part II's Python has no vLLM.
    """
    code = (
        "import importlib.util; spec = importlib.util.find_spec('vllm'); "
        "print(spec.submodule_search_locations[0] if spec else '')"
    )
    command = [str(pipeline_python()), "-c", code]
    env = worker_environment()
    found = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    if not (folder := found.stdout.strip()):
        raise ModuleNotFoundError("vLLM is not installed. `make setup` installs it.")
    return Path(folder)


def registered_connectors() -> list[str]:
    """The names that the installed vLLM registers, in its order, read from its source."""
    tree = ast.parse((vllm_folder() / FACTORY).read_text())
    return [
        str(node.args[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "register_connector"
        and isinstance(node.args[0], ast.Constant)
    ]


def connector_table() -> str:
    """All of them as a table in Markdown; one that is not in the installed vLLM is marked so."""
    registered = set(registered_connectors())
    lines = ["| way | `kv_connector` | for |", "|---|---|---|"]
    for connector in CONNECTORS:
        names = ", ".join(
            f"`{name}`" + ("" if name in registered else " (not in this version)")
            for name in connector.names
        )
        lines.append(f"| {connector.way} | {names} | {connector.purpose} |")
    return "\n".join(lines)
