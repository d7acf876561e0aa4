"""The other side of `EngineProcess`: `python -m utils.engine.kv_transfer.engine_child`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from queue import Empty, SimpleQueue
from typing import Any

from utils.engine.kv_transfer.base import KVConnectorBase
from utils.engine.kv_transfer.p2p import P2pConsumer, P2pProducer
from utils.engine.kv_transfer.pool_connector import PoolConnector
from utils.engine.kv_transfer.valkey_store import ValkeyStore
from utils.engine.llm import LLM
from utils.engine.sampling_params import SamplingParams
from utils.processes.json_lines import Answers, questions


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
    """Runs an engine, step by step, and does what it is asked to."""

    def __init__(
        self, answers: Answers, kv_connector: str | None, extra: dict[str, Any], llm: dict[str, Any]
    ) -> None:
        self.answers = answers
        self.connector: KVConnectorBase | None = None
        if kv_connector is not None:
            self.connector = create_connector(kv_connector, extra)
        self.llm = LLM(**llm, kv_connector=self.connector)
        self.engine = self.llm.llm_engine
        self.times: dict[str, list[float]] = {}  # by request id: arrival, then tokens

    @property
    def port(self) -> int | None:
        """Where its connector listens, if it does."""
        return self.connector.inbox.port if isinstance(self.connector, P2pConsumer) else None

    def run(self, asked: SimpleQueue[tuple[int, str, dict[str, Any]]]) -> None:
        while True:
            busy = self.engine.has_unfinished_requests()
            try:
                self.do(*asked.get(block=not busy))
                continue  # all that is there, before the next step
            except Empty:
                pass
            self.step()

    def do(self, number: int, do: str, arguments: dict[str, Any]) -> None:
        try:
            if do == "add":
                params = SamplingParams(
                    temperature=0, max_tokens=arguments["max_tokens"], ignore_eos=True
                )
                self.times[str(number)] = [time.perf_counter()]
                self.engine.add_request(str(number), arguments["prompt"], params)
            elif do == "stats":
                stats = asdict(self.connector.stats) if self.connector else {}
                self.answers.result(number, stats)
            elif do == "reset":
                self.answers.result(number, self.llm.reset_prefix_cache())
        except Exception as error:
            self.answers.error(number, error)

    def step(self) -> None:
        for request in self.engine.advance():
            times = self.times[request.request_id]
            now = time.perf_counter()
            times += [now] * (len(request.output_token_ids) + 1 - len(times))
            if request.is_finished:
                del self.times[request.request_id]
                answer = {
                    "token_ids": request.output_token_ids,
                    "arrival": times[0],
                    "times": times[1:],
                    "num_cached_tokens": request.num_cached_tokens,
                }
                self.answers.result(int(request.request_id), answer)


def main() -> None:
    answers = Answers()
    asked: SimpleQueue[tuple[int, str, dict[str, Any]]] = SimpleQueue()

    def listen() -> None:
        for question in questions():
            asked.put(question)
        os._exit(0)  # nobody asks any more

    threading.Thread(target=listen, daemon=True).start()
    number, _, config = asked.get()
    try:
        child = Child(answers, **config)
    except Exception as error:
        answers.error(number, error)
        return
    answers.result(number, {"port": child.port})
    child.run(asked)


if __name__ == "__main__":
    main()
