"""Four servers for one model on the same cores: ours, vLLM's, llama.cpp's, Hugging Face's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass

from utils.bundled_model import BUNDLED_GGUF, bundled_gguf
from utils.environments.pipeline import pipeline_python, worker_environment
from utils.hub import resolve_model
from utils.processes.server import LocalServer, start_together
from utils.profiles import fast_dtype
from utils.serving.launch import course_server
from utils.serving.load_generator import Body
from utils.vllm.command import serve
from utils.vllm.recipe import preloaded

MAX_MODEL_LEN, MAX_NUM_SEQS = 1024, 8
# Threads that spin while they wait take the cores from whoever computes, see utils/bootstrap.py.
PATIENT_THREADS = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}


@dataclass(frozen=True)
class Contender:
    """A server to compare.

    Attributes:
        weights: the number format that it computes with or reads.
        start: starts it.
        translate: a request for vLLM as this server wants it.
    """

    weights: str
    start: Callable[[], LocalServer]
    translate: Callable[[Body], Body] = dict


def contenders(dtype: str | None = None, compiled: bool = False) -> dict[str, Contender]:
    """The four, by name.

    Args:
        dtype: of all but llama.cpp. Default: what this machine multiplies fastest.
        compiled: let vLLM compile the model when it starts; takes a minute, and answers sooner.
    """
    dtype = dtype or fast_dtype()
    return {
        "ours": Contender(dtype, lambda: _ours(dtype)),
        "vLLM": Contender(dtype, lambda: _vllm(dtype, compiled)),
        "llama.cpp": Contender("Q4_1", llama_cpp_server),
        "Hugging Face": Contender(dtype, lambda: transformers_server(dtype), for_transformers),
    }


def start_contenders(chosen: dict[str, Contender], verbose: bool) -> dict[str, LocalServer]:
    """Start them all at once; by name.

    Raises:
        WorkerError: one did not start. The others are stopped.
    """
    starts = [contender.start for contender in chosen.values()]
    servers = start_together(lambda i: starts[i](), len(starts), "the servers", verbose)
    return dict(zip(chosen, servers, strict=True))


def _ours(dtype: str) -> LocalServer:
    return course_server(
        "bundled",
        dtype=dtype,
        kernels="cpp",
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=MAX_NUM_SEQS,
        env=preloaded(),
        verbose=False,
    )


def _vllm(dtype: str, compiled: bool) -> LocalServer:
    line = (
        f"vllm serve {resolve_model('bundled')} --dtype {dtype} --block-size 32 "
        f"--max-model-len {MAX_MODEL_LEN} --max-num-seqs {MAX_NUM_SEQS} "
        "--enable-prompt-tokens-details"
    )
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    # Left to itself, vLLM keeps a core free for its other processes. Here all get the same cores.
    env = PATIENT_THREADS | preloaded() | {"VLLM_CPU_OMP_THREADS_BIND": cores}
    return serve(line if compiled else f"{line} --enforce-eager", env=env, verbose=False)


def llama_cpp_server(parallel: int = MAX_NUM_SEQS) -> LocalServer:
    """Start llama.cpp's server with the bundled GGUF file, on a free local port.

    Args:
        parallel: its slots, each with room for `MAX_MODEL_LEN` tokens.

    Raises:
        WorkerError: see `LocalServer`.
    """
    command = [str(pipeline_python()), "-m", "utils.serving.others.llama_cpp", str(bundled_gguf())]
    command += ["--parallel", str(parallel), "--ctx-size", str(parallel * MAX_MODEL_LEN)]
    env = os.environ | worker_environment() | PATIENT_THREADS
    return LocalServer(command, env, BUNDLED_GGUF, name="llama.cpp's server")


def transformers_server(dtype: str = "bfloat16") -> LocalServer:
    """Start `transformers serve`, which runs `generate`, one request after the other.

    Raises:
        WorkerError: see `LocalServer`.
    """
    model = str(resolve_model("bundled"))
    command = [str(pipeline_python().with_name("transformers")), "serve", model]
    env = os.environ | worker_environment() | PATIENT_THREADS | {"HF_HUB_OFFLINE": "1"}
    return LocalServer(
        [*command, "--device", "cpu", "--dtype", dtype], env, model, name="transformers serve"
    )


def for_transformers(body: Body) -> Body:
    """A chat request as `transformers serve` takes it. It has no `ignore_eos`: the same by hand."""
    kept = {k: v for k, v in body.items() if k not in ("ignore_eos", "stream_options")}
    if body.get("ignore_eos"):
        kept["generation_config"] = json.dumps({"eos_token_id": -1, "pad_token_id": 0})
    return kept
