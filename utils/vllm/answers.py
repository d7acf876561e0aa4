"""What vLLM answers to prompts, token by token, to compare other engines with.

Run as a program of its own, `python -m utils.vllm.answers JOB.json`, so that vLLM sets up
threads and memory as it likes, and gives all of it back. `vllm_answers` starts it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from utils.environments.pipeline import pipeline_python, worker_environment
from utils.processes.supervised import run_to_end
from utils.vllm.engine_settings import EngineSettings, vllm_environment


@dataclass(frozen=True)
class VllmAnswers:
    """What vLLM answered, and by which kernels.

    Attributes:
        token_ids: by dtype, of each answer, the end-of-sequence token included.
        logprobs: by dtype, of each answer's tokens, the most likely tokens' log probabilities.
        attention: by dtype, the attention backends that its layers chose, mostly one.
        attention_backends: the names of all that this vLLM registers.
    """

    token_ids: dict[str, list[list[int]]]
    attention: dict[str, list[str]]
    attention_backends: list[str]
    logprobs: dict[str, list[list[dict[int, float]]]] = field(default_factory=dict)


def vllm_answers(
    model_dir: Path,
    prompts: Sequence[list[int]],
    dtypes: Sequence[str],
    max_tokens: int,
    num_logprobs: int = 0,
) -> VllmAnswers:
    """Let vLLM answer prompts greedily.

    Args:
        model_dir: folder in Hugging Face format.
        prompts: token ids of each prompt.
        dtypes: number formats to run the model in, one after the other.
        max_tokens: the longest answer, in tokens.
        num_logprobs: of how many tokens the log probability comes back, at each place.

    Raises:
        WorkerError: vLLM failed; the message holds the end of its output.
    """
    longest = max(map(len, prompts)) + max_tokens
    memory_share = 0.4 if torch.cuda.is_available() else 0.0  # the notebook's model is there, too
    answers = VllmAnswers({}, {}, [])
    with tempfile.TemporaryDirectory() as folder:
        job_file, result_file = Path(folder) / "job.json", Path(folder) / "result.json"
        for dtype in dtypes:  # a process each: an engine gives memory back when its process ends
            engine = EngineSettings(
                dtype, -(-longest // 32) * 32, gpu_memory_utilization=memory_share
            )
            job = {
                "model": str(model_dir),
                "engine": engine.arguments(),
                "prompts": list(prompts),
                "max_tokens": max_tokens,
                "num_logprobs": num_logprobs or None,
                "result_file": str(result_file),
            }
            job_file.write_text(json.dumps(job))
            run_to_end(
                [str(pipeline_python()), "-m", "utils.vllm.answers", str(job_file)],
                vllm_environment() | worker_environment() | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
                "vLLM",
            )
            result = json.loads(result_file.read_text())
            answers.token_ids[dtype] = result["token_ids"]
            answers.logprobs[dtype] = [
                [{int(token): score for token, score in place.items()} for place in answer]
                for answer in result["logprobs"]
            ]
            answers.attention[dtype] = result["attention"]
            answers.attention_backends[:] = result["attention_backends"]
    return answers


def main(job_file: str) -> None:
    """Read the job that `vllm_answers` wrote, run it, write the answers where the job says."""
    from vllm import LLM, SamplingParams
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    job = json.loads(Path(job_file).read_text())
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    params = SamplingParams(
        temperature=0.0, max_tokens=job["max_tokens"], logprobs=job["num_logprobs"]
    )
    llm = LLM(job["model"], **job["engine"])
    outputs = llm.generate(prompts, params, use_tqdm=False)
    [attention] = llm.collective_rpc(_attention_of)
    result = {
        "token_ids": [list(output.outputs[0].token_ids) for output in outputs],
        "logprobs": [
            [
                {token: one.logprob for token, one in place.items()}
                for place in output.outputs[0].logprobs or []
            ]
            for output in outputs
        ],
        "attention": attention,
        "attention_backends": list(AttentionBackendEnum.__members__),
    }
    Path(job["result_file"]).write_text(json.dumps(result))


def _attention_of(worker: Any) -> list[str]:
    """The attention backends of a vLLM worker's layers."""
    groups = [group for of_cache in worker.model_runner.attn_groups for group in of_cache]
    return sorted({group.backend.get_name() for group in groups})


if __name__ == "__main__":
    main(sys.argv[1])
