"""The other side of `EngineProcess`: `python -m utils.engine.kv_transfer.engine_child`."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from queue import Empty, SimpleQueue
from typing import Any, TextIO

from utils.engine.kv_transfer.base import KVConnectorBase
from utils.engine.kv_transfer.p2p import P2pConsumer, P2pProducer
from utils.engine.kv_transfer.pool_connector import PoolConnector
from utils.engine.kv_transfer.valkey_store import ValkeyStore
from utils.engine.llm import LLM
from utils.engine.sampling_params import SamplingParams


def valkey_connector(
    port: int, host: str = "127.0.0.1", timeout: float = 1.0, **options: Any
) -> PoolConnector:
    """A `PoolConnector` whose pool is a Valkey server."""
    return PoolConnector(ValkeyStore(port, host, timeout), timeout=timeout, **options)


CONNECTORS: dict[str, Callable[..., KVConnectorBase]] = {
    "ValkeyConnector": valkey_connector,
    "P2pProducer": P2pProducer,
    "P2pConsumer": P2pConsumer,
}


def create_connector(kv_connector: str, kv_connector_extra_config: dict[str, Any]) -> Any:
    """A connector by its name, with its arguments. The arguments bear the names of vLLM's
    `KVTransferConfig`.

    Raises:
        ValueError: there is no connector of that name.
    """
    if kv_connector not in CONNECTORS:
        raise ValueError(
            f"Unknown connector {kv_connector!r}. Expected one of {', '.join(CONNECTORS)}."
        )
    return CONNECTORS[kv_connector](**kv_connector_extra_config)


class Child:
    """Runs an engine, step by step, and does what its parent writes."""

    def __init__(self, config: dict[str, Any], out: TextIO) -> None:
        self.out = out
        self.connector: KVConnectorBase | None = None
        if config["kv_connector"] is not None:
            self.connector = create_connector(config["kv_connector"], config["extra"])
        self.llm = LLM(**config["llm"], kv_connector=self.connector)
        self.engine = self.llm.llm_engine
        self.times: dict[str, list[float]] = {}  # by request id: arrival, then tokens
        inbox = self.connector.inbox if isinstance(self.connector, P2pConsumer) else None
        self.say(config["number"], port=None if inbox is None else inbox.port)

    def say(self, number: int, **reply: Any) -> None:
        self.out.write(json.dumps({"number": number} | reply) + "\n")
        self.out.flush()

    def run(self, commands: SimpleQueue[dict[str, Any]]) -> None:
        while True:
            busy = self.engine.has_unfinished_requests()
            try:
                self.do(commands.get(block=not busy))
                continue  # all that is there, before the next step
            except Empty:
                pass
            self.step()

    def do(self, command: dict[str, Any]) -> None:
        number = command["number"]
        try:
            if command["do"] == "add":
                params = SamplingParams(
                    temperature=0, max_tokens=command["max_tokens"], ignore_eos=True
                )
                self.times[str(number)] = [time.perf_counter()]
                self.engine.add_request(str(number), command["prompt"], params)
            elif command["do"] == "stats":
                self.say(number, stats=asdict(self.connector.stats) if self.connector else {})
            elif command["do"] == "reset":
                self.say(number, done=self.llm.reset_prefix_cache())
        except Exception:
            self.say(number, error=traceback.format_exc(limit=-2))

    def step(self) -> None:
        for request in self.engine.advance():
            times = self.times[request.request_id]
            now = time.perf_counter()
            times += [now] * (len(request.output_token_ids) + 1 - len(times))
            if request.is_finished:
                del self.times[request.request_id]
                self.say(
                    int(request.request_id), token_ids=request.output_token_ids, arrival=times[0],
                    times=times[1:], num_cached_tokens=request.num_cached_tokens,
                )  # fmt: skip


def listen(commands: SimpleQueue[dict[str, Any]]) -> None:
    """Pass commands on. Their end is the end of the parent, and of this process."""
    for line in sys.stdin:
        commands.put(json.loads(line))
    os._exit(0)


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed goes to the log
    config = json.loads(sys.stdin.readline())
    commands: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=listen, args=[commands], daemon=True).start()
    try:
        child = Child(config, out)
    except Exception as error:
        out.write(json.dumps({"number": config["number"], "error": f"{error}"}) + "\n")
        out.flush()
        return
    child.run(commands)


if __name__ == "__main__":
    main()
