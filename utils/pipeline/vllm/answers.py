"""What vLLM answers to prompts, token by token, to compare other engines with.

Run as a program of its own, `python -m utils.pipeline.vllm.answers JOB.json`, so that vLLM sets up
threads and memory as it likes, and gives all of it back. `vllm_answers` starts it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from utils.pipeline.environment import pipeline_python, worker_environment
from utils.pipeline.process import run_worker
from utils.pipeline.vllm.engine_settings import EngineSettings, vllm_environment


def vllm_answers(
    model_dir: Path, prompts: Sequence[list[int]], dtypes: Sequence[str], max_tokens: int
) -> dict[str, list[list[int]]]:
    """Let vLLM answer prompts greedily.

    Args:
        model_dir: folder in Hugging Face format.
        prompts: token ids of each prompt.
        dtypes: number formats to run the model in, one after the other.
        max_tokens: the longest answer, in tokens.

    Returns:
        By dtype: the token ids of each answer, the end-of-sequence token included.

    Raises:
        WorkerError: vLLM failed; the message holds the end of its output.
    """
    longest = max(map(len, prompts)) + max_tokens
    memory_share = 0.4 if torch.cuda.is_available() else 0.0  # the notebook's model is there, too
    answers = {}
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
                "result_file": str(result_file),
            }
            job_file.write_text(json.dumps(job))
            run_worker(
                [str(pipeline_python()), "-m", "utils.pipeline.vllm.answers", str(job_file)],
                vllm_environment() | worker_environment() | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
                "vLLM",
            )
            answers[dtype] = json.loads(result_file.read_text())
    return answers


def main(job_file: str) -> None:
    """Read the job that `vllm_answers` wrote, run it, write the answers where the job says."""
    from vllm import LLM, SamplingParams

    job = json.loads(Path(job_file).read_text())
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
    params = SamplingParams(temperature=0.0, max_tokens=job["max_tokens"])
    outputs = LLM(job["model"], **job["engine"]).generate(prompts, params, use_tqdm=False)
    answers = [list(output.outputs[0].token_ids) for output in outputs]
    Path(job["result_file"]).write_text(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1])
