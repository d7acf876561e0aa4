"""Serve a model: `python -m utils.serving --model bundled --port 8000`.

The options are those of `vllm serve`, as far as the course's engine has what they set.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
from pathlib import Path
from typing import Any

from utils.engine import LLM
from utils.hub import ModelError
from utils.pipeline.vllm.local_server import HOST, PortInUse, listener
from utils.routing.events.block_pool import make_eventful_manager, publishing_scheduler
from utils.routing.events.kv_events import KVEventsConfig
from utils.routing.events.publisher import ZmqEventPublisher
from utils.serving.api_server import MAX_BODY_BYTES, MAX_QUEUED, build_app
from utils.serving.http.ending import serve


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(
        "python -m utils.serving", description="An OpenAI-compatible server on the course's engine."
    )
    add, switch = options.add_argument, argparse.BooleanOptionalAction
    add("--model", default="bundled", help="bundled, a folder, or a hub id")
    add("--served-model-name", help="what clients call it; default: the model's name")
    add("--host", default=HOST, type=_loopback, help="address to listen on, of this machine only")
    add("--port", default=8000, type=int)
    add("--dtype", default="float32", help="float32, bfloat16, float16 or auto")
    add("--kernels", default="torch", help="torch, or cpp for the C++ kernels (CPU)")
    add("--max-model-len", type=int, help="the most tokens of prompt plus answer")
    add("--max-num-seqs", default=64, type=int, help="the most requests in a step")
    add("--max-num-batched-tokens", default=2048, type=int, help="the most tokens in a step")
    add("--block-size", default=16, type=int, help="tokens in a block of KV cache")
    add("--num-gpu-blocks-override", type=int, help="blocks of KV cache, whatever the device")
    add("--enable-prefix-caching", default=True, action=switch)
    add("--scheduling-policy", default="fcfs", help="fcfs or priority")
    add("--speculative-config", type=json.loads, help='{"method": "ngram", ...}')
    add("--seed", default=0, type=int)
    add("--max-num-queued-reqs", default=MAX_QUEUED, type=_count, help="more get status 503")
    add("--max-body-bytes", default=MAX_BODY_BYTES, type=_count, help="larger ones get status 413")
    add("--shutdown-timeout", default=5, type=_count, help="seconds that requests may still have")
    add("--kv-events-config", type=_kv_events_config, default=KVEventsConfig(),
        help='{"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:5557"}')  # fmt: skip
    add("--enable-scale-out", action="store_true", help="also serve /v1/completions/render")
    return options


def main() -> None:
    """Take the port, load the model, serve until somebody says stop."""
    options = parser().parse_args()
    try:
        # Before the model is loaded, so that nobody waits for a server that cannot be.
        socket = listener(options.port, options.host)
        events = _event_parts(options.kv_events_config)
        llm = LLM(
            options.model, options.dtype, options.max_model_len, kernels=options.kernels,
            seed=options.seed, max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens, block_size=options.block_size,
            num_gpu_blocks_override=options.num_gpu_blocks_override,
            enable_prefix_caching=options.enable_prefix_caching,
            scheduling_policy=options.scheduling_policy,
            speculative_config=options.speculative_config, **events,
        )  # fmt: skip
    except (PortInUse, ValueError, TypeError, ModelError) as error:
        raise SystemExit(f"Cannot serve {options.model}: {error}") from error
    name = options.served_model_name or Path(options.model).name
    app = build_app(llm.llm_engine, name, options.max_num_queued_reqs, options.max_body_bytes,
                    options.enable_scale_out)  # fmt: skip
    print(f"Serving {name} on http://{options.host}:{socket.getsockname()[1]}", flush=True)
    serve(app, socket, options.shutdown_timeout, end=app.state.engine.stop)


def _event_parts(config: KVEventsConfig) -> dict[str, Any]:
    """The engine's parts that tell what its prefix cache holds, if somebody wants to know."""
    if not config.is_on:
        return {}
    scheduler = publishing_scheduler(ZmqEventPublisher(config).publish)
    return {"kv_cache_manager": make_eventful_manager, "scheduler_cls": scheduler}


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
