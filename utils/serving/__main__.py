"""Serve a model: `python -m utils.serving --model bundled --port 8000`.

The options are those of `vllm serve`, as far as the course's engine has what they set.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
from dataclasses import replace
from pathlib import Path

from utils.engine import LLM
from utils.engine.config.engine_args import EngineArgs
from utils.kv_events.engine_events import PublishedEvents
from utils.kv_events.kv_events import KVEventsConfig
from utils.kv_events.publisher import ZmqEventPublisher
from utils.model_folder import ModelError
from utils.processes.server import HOST, PortInUse, listener
from utils.serving.api_server import MAX_BODY_BYTES, MAX_QUEUED, build_app
from utils.serving.http.ending import serve


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(
        "python -m utils.serving", description="An OpenAI-compatible server on the course's engine."
    )
    add = options.add_argument
    # Several engines are several servers, behind a router: see `utils.routing`.
    EngineArgs.add_cli_args(options, without=("data_parallel_size", "enable_expert_parallel"))
    add("--served-model-name", help="what clients call it; default: the model's name")
    add("--host", default=HOST, type=_loopback, help="address to listen on, of this machine only")
    add("--port", default=8000, type=int)
    add("--max-num-queued-reqs", default=MAX_QUEUED, type=_count, help="more get status 503")
    add("--max-body-bytes", default=MAX_BODY_BYTES, type=_count, help="larger ones get status 413")
    add("--shutdown-timeout", default=5, type=_count, help="seconds that requests may still have")
    add(
        "--kv-events-config",
        type=_kv_events_config,
        default=KVEventsConfig(),
        help='{"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:5557"}',
    )
    add("--enable-scale-out", action="store_true", help="also serve /v1/completions/render")
    return options


def main() -> None:
    """Take the port, load the model, serve until somebody says stop."""
    options = parser().parse_args()
    try:
        # Before the model is loaded, so that nobody waits for a server that cannot be.
        socket = listener(options.port, options.host)
        args = EngineArgs.from_cli_args(options)
        if options.kv_events_config.is_on:
            publisher = ZmqEventPublisher(options.kv_events_config)
            args = replace(args, kv_events=PublishedEvents(publisher.publish))
        llm = LLM(**vars(args))
    except (PortInUse, ValueError, TypeError, ModelError) as error:
        raise SystemExit(f"Cannot serve {options.model}: {error}") from error
    name = options.served_model_name or Path(options.model).name
    app = build_app(
        llm.llm_engine,
        name,
        options.max_num_queued_reqs,
        options.max_body_bytes,
        options.enable_scale_out,
        options.host,
    )
    print(f"Serving {name} on http://{options.host}:{socket.getsockname()[1]}", flush=True)
    serve(app, socket, options.shutdown_timeout, end=app.state.engine.stop)


def _kv_events_config(text: str) -> KVEventsConfig:
    try:
        return KVEventsConfig(**json.loads(text))
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _count(text: str) -> int:
    if (count := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{count} is negative")
    return count


def _loopback(address: str) -> str:
    """Refuse addresses that others can reach: this server knows no users and no passwords."""
    if address != "localhost" and not ipaddress.ip_address(address).is_loopback:
        raise argparse.ArgumentTypeError(
            f"{address} can be reached from other machines. Use {HOST}, and put a server with "
            "authentication in front."
        )
    return address


if __name__ == "__main__":
    main()
