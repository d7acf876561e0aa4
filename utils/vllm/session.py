"""vLLM in a process of its own that answers one question after another.

Importing vLLM takes longer than starting an engine of a small model. So the process stays, and each
`start` gives it another engine. The worker's side is `session_worker.py`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from utils.environments.pipeline import pipeline_python, worker_environment
from utils.processes.json_lines import LineProcess
from utils.processes.supervised import WorkerError
from utils.vllm.engine_settings import vllm_environment

WORKER_MODULE = "utils.vllm.session_worker"
Prompt = Sequence[int] | Mapping[str, Any]


class VllmRefused(ValueError):
    """vLLM did not accept what it was asked. The message is vLLM's. The session goes on."""


@dataclass(frozen=True)
class Answer:
    """What vLLM answered to one prompt.

    Attributes:
        text, token_ids: the answer; the ids with the end-of-sequence token.
        num_cached_tokens: tokens of the prompt that were found in the prefix cache.
        finish_reason: "stop" at the end of an answer, "length" when `max_tokens` cut it off.
        ttft: seconds from the request's arrival to its first token, by vLLM's own clock.
    """

    text: str
    token_ids: list[int]
    num_cached_tokens: int
    finish_reason: str
    ttft: float


@dataclass(frozen=True)
class Answers:
    """The answers to a list of prompts, in its order, and the seconds until the last one."""

    answers: list[Answer]
    seconds: float

    @property
    def texts(self) -> list[str]:
        return [answer.text for answer in self.answers]

    @property
    def token_ids(self) -> list[list[int]]:
        return [answer.token_ids for answer in self.answers]

    @property
    def num_cached_tokens(self) -> list[int]:
        return [answer.num_cached_tokens for answer in self.answers]

    @property
    def ttfts(self) -> list[float]:
        return [answer.ttft for answer in self.answers]

    @property
    def tokens_per_second(self) -> float:
        """Output tokens of all answers, by the time they took together."""
        return sum(map(len, self.token_ids)) / self.seconds


class VllmSession:
    """One vLLM process. It ends with `stop()`, with its `with` block, and with this process.

    An interrupt (of a cell, say) while it answers ends it too: half an answer would be left
    behind. The next `start` then begins a new process.
    """

    def __init__(self) -> None:
        self.process: LineProcess | None = None
        self._used_up = False  # does the next engine need a new process?

    def start(self, model: Path | str, **engine: Any) -> float:
        """Start an engine, in the place of the one before; returns the seconds it took.

        Args:
            model: folder of a plain, GPTQ or AWQ checkpoint.
            engine: arguments of `vllm.LLM`, such as `block_size` or `enable_prefix_caching`.

        Raises:
            VllmRefused: an argument is unknown or not possible.
            WorkerError: the process failed.
        """
        begin = time.perf_counter()
        if self._used_up:
            self.stop()
        self._ask("start", engine={"model": str(model)} | engine)
        # vLLM 0.32 on a CPU: n-gram speculation loads numba, and the next start fails over it. On a
        # GPU only the end of a process gives back all of its memory.
        self._used_up = "speculative_config" in engine or torch.cuda.is_available()
        return time.perf_counter() - begin

    def generate(
        self, prompts: Sequence[Prompt], *, one_by_one: bool = False, **sampling: Any
    ) -> Answers:
        """Let the engine answer, greedily unless told otherwise.

        Args:
            prompts: token ids; or dicts as vLLM takes them, with `prompt_token_ids` and perhaps a
                `cache_salt`.
            one_by_one: send each prompt when the answer before is complete; else all at once.
            sampling: arguments of `vllm.SamplingParams`; `structured_outputs` as a dict with the
                arguments of `StructuredOutputsParams`.

        Raises:
            VllmRefused: a prompt or a parameter is not possible.
            WorkerError: the process failed, or no engine was started.
        """
        asked = [
            dict(p) if isinstance(p, Mapping) else {"prompt_token_ids": list(p)} for p in prompts
        ]
        sampling = {"temperature": 0.0} | sampling
        reply = self._ask("generate", prompts=asked, sampling=sampling, one_by_one=one_by_one)
        return Answers([Answer(**answer) for answer in reply["answers"]], reply["seconds"])

    def counters(self) -> dict[str, float]:
        """vLLM's counters and gauges by name, as `LLM.get_metrics` has them; they only grow."""
        return self._ask("counters")

    def metrics_text(self) -> str:
        """The same in Prometheus' text format, as a server's `/metrics` shows it."""
        return self._ask("metrics_text")["text"]

    def reset_prefix_cache(self) -> None:
        """Forget all cached blocks."""
        self._ask("reset_prefix_cache")

    def options(self) -> dict[str, dict[str, Any]]:
        """The options of vLLM's server: name -> its `default` and `choices`. Needs no engine."""
        return self._ask("options")

    def allowed_tokens(
        self, schema: dict[str, Any], token_ids: Sequence[int]
    ) -> list[frozenset[int]]:
        """The tokens that a JSON schema allows before each token of an answer. Needs an engine.

        xgrammar is asked, with the settings that vLLM gives it by default.
        """
        masks = self._ask("allowed_tokens", schema=schema, token_ids=list(token_ids))["masks"]
        return [_set_bits(bytes.fromhex(mask)) for mask in masks]

    def stop(self) -> None:
        """End the process and all that it started. Does nothing if it has ended."""
        if self.process is not None:
            self.process.stop()
        self.process, self._used_up = None, False

    def __enter__(self) -> VllmSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _ask(self, do: str, **question: Any) -> Any:
        if self.process is None or not self.process.alive:
            if do not in ("start", "options"):
                raise WorkerError("No vLLM engine is running here. Call `start` first.")
            self.process = LineProcess(
                [str(pipeline_python()), "-m", WORKER_MODULE],
                # No second process: it starts sooner, and all cores compute.
                vllm_environment() | worker_environment() | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            )
        try:
            return self.process.ask(do, **question)
        except VllmRefused:
            raise
        except Exception as error:
            log = self.process.log()
            self.stop()
            raise WorkerError(f"vLLM's process ended: {error}\n{log}") from error
        except BaseException:  # also when the cell is interrupted
            self.stop()
            raise


def _set_bits(mask: bytes) -> frozenset[int]:
    """The places of the ones in a bit mask, the lowest bit of the first byte being place 0."""
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return frozenset(np.flatnonzero(bits).tolist())
