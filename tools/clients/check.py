"""Well-known clients against the course's server: `make test-clients`.

    python tools/clients/check.py             all
    python tools/clients/check.py lm-eval     one

guidellm loads it, lm-eval compares likelihoods with Hugging Face's, litellm must know an error by
its words, and vLLM's own benchmark measures. (openai and langchain are among the tests.) Some 2 GB
are downloaded, into an environment of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tools.setup import get_uv, torch_pin, torch_source, uv_environment  # noqa: E402
from utils.checks.kit.near_ties import hf_oracle  # noqa: E402
from utils.hub import load_hf_model, load_tokenizer, resolve_model  # noqa: E402
from utils.serving.launch import course_server  # noqa: E402
from utils.vllm.command import vllm_command  # noqa: E402

REQUIREMENTS = ROOT / "requirements" / "clients.txt"
PATIENCE_S = 900
NUM_REQUESTS = 6
# A question, what may follow it, and which of that is right.
QUESTIONS = (
    ("The capital of France is", ["Paris", "Madrid", "Rome"], 0),
    ("Two plus two is", ["seven", "four", "nine"], 1),
    ("The opposite of hot is", ["green", "loud", "cold"], 2),
    ("Ice is frozen", ["water", "sand", "wood"], 0),
)
TASK = """\
task: course
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: acc
"""
CLOSE = 0.02  # of log probabilities of a few tokens, float32 on both sides


class Clients:
    """The environment with the clients, the server, and a folder for what they write."""

    def __init__(self, bin_folder: Path, server: Any, folder: Path) -> None:
        self.bin, self.server, self.folder = bin_folder, server, folder
        self.model = str(resolve_model("bundled"))
        self.env = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}

    def run(self, command: Sequence[str]) -> str:
        """Run a client; its output. Raises a RuntimeError with the end of it if it fails."""
        result = subprocess.run(
            command,
            env=self.env,
            cwd=self.folder,
            text=True,
            timeout=PATIENCE_S,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if result.returncode:
            raise RuntimeError(f"{' '.join(command[:3])} ... failed:\n{result.stdout[-4000:]}")
        return result.stdout

    def guidellm(self) -> str:
        """Every request of a load answered, with the tokens that were asked for."""
        self.run(
            [
                str(self.bin / "guidellm"),
                "run",
                "--backend",
                f"kind=openai_http,target={self.server.url}",
                "--profile",
                "kind=concurrent,streams=2",
                "--constraint",
                f"kind=max_requests,count={NUM_REQUESTS}",
                "--tokenizer",
                f"kind=hf_auto,model={self.model}",
                "--data",
                "kind=synthetic_text,prompt_tokens=32,output_tokens=16",
                "--output",
                f"kind=json,path={self.folder / 'benchmarks.json'}",
                "--disable-progress",
            ]
        )
        report = json.loads((self.folder / "benchmarks.json").read_text())
        [benchmark] = report["benchmarks"]
        totals = benchmark["metrics"]["request_totals"]
        assert totals["errored"] == 0 and totals["successful"] == NUM_REQUESTS, totals
        return f"{totals['successful']} streamed requests answered, none failed"

    def lm_eval(self) -> str:
        """Its log likelihood of each choice is Hugging Face's, computed here."""
        data = self.folder / "questions.jsonl"
        rows = [{"question": q, "choices": choices, "answer": a} for q, choices, a in QUESTIONS]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        (self.folder / "course.yaml").write_text(TASK.format(data=data))
        told = f"model={self.server.model},tokenizer={self.model},num_concurrent=2,max_retries=1"
        self.run(
            [
                str(self.bin / "lm_eval"),
                "--model",
                "local-completions",
                "--model_args",
                f"base_url={self.server.url}/v1/completions,{told}",
                "--tasks",
                "course",
                "--include_path",
                str(self.folder),
                "--log_samples",
                "--output_path",
                str(self.folder / "lm_eval"),
            ]
        )
        [samples] = (self.folder / "lm_eval").rglob("samples_*.jsonl")
        found = sorted(map(json.loads, samples.read_text().splitlines()), key=lambda s: s["doc_id"])
        likelihood = self._likelihoods()
        for (question, choices, _), sample in zip(QUESTIONS, found, strict=True):
            theirs = [float(answer[0][0]) for answer in sample["resps"]]
            ours = [likelihood(question, choice) for choice in choices]
            apart = max(abs(a - b) for a, b in zip(theirs, ours, strict=True))
            assert apart < CLOSE, (theirs, ours)
        accuracy = sum(sample["acc"] for sample in found) / len(found)
        return f"{len(found)} questions, likelihoods as Hugging Face's; {accuracy:.0%} right"

    def _likelihoods(self) -> Callable[[str, str], float]:
        """The log probability of a choice after a question, by Hugging Face."""
        logging.disable_progress_bar()
        tokenizer, logits = load_tokenizer(), hf_oracle(load_hf_model())

        def likelihood(question: str, choice: str) -> float:
            before, whole = tokenizer.encode(question), tokenizer.encode(f"{question} {choice}")
            answer = whole[len(before) :]
            logprobs = logits(before, answer).log_softmax(-1)
            return float(logprobs.gather(1, torch.tensor(answer)[:, None]).sum())

        return likelihood

    def litellm(self) -> str:
        """It answers, and knows a prompt that is too long by the error's words."""
        code = (
            "import litellm, sys\n"
            "usual = dict(model=f'hosted_vllm/{sys.argv[2]}', api_base=sys.argv[1] + '/v1',\n"
            "             max_tokens=8, num_retries=0)\n"
            "said = litellm.completion(messages=[dict(role='user', content='Hello')], **usual)\n"
            "assert said.choices[0].message.content\n"
            "try:\n"
            "    litellm.completion(messages=[dict(role='user', content='a ' * 5000)], **usual)\n"
            "except litellm.ContextWindowExceededError:\n"
            "    print('known')\n"
        )
        said = self.run([str(self.bin / "python"), "-c", code, self.server.url, self.server.model])
        assert said.strip().endswith("known"), said
        return "a chat answered; ContextWindowExceededError for a prompt that is too long"

    def vllm_bench(self) -> str:
        """vLLM's own benchmark, of the course's environment."""
        self.run(
            [
                *vllm_command(),
                "bench",
                "serve",
                "--backend",
                "openai",
                "--base-url",
                self.server.url,
                "--model",
                self.server.model,
                "--tokenizer",
                self.model,
                "--dataset-name",
                "random",
                "--ignore-eos",
                "--random-input-len",
                "32",
                "--random-output-len",
                "16",
                "--request-rate",
                "2",
                "--num-prompts",
                str(NUM_REQUESTS),
                "--save-result",
                "--result-filename",
                "bench.json",
            ]
        )
        result = json.loads((self.folder / "bench.json").read_text())
        assert result["completed"] == NUM_REQUESTS and result.get("failed", 0) == 0, result
        assert result["total_output_tokens"] == 16 * NUM_REQUESTS, result
        return f"{result['completed']} requests answered, each of 16 tokens"


CHECKS: dict[str, Callable[[Clients], str]] = {
    "guidellm": Clients.guidellm,
    "lm-eval": Clients.lm_eval,
    "litellm": Clients.litellm,
    "vllm-bench": Clients.vllm_bench,
}


def install(folder: Path) -> Path:
    """Make the clients' environment in `folder`; where its programs are."""
    uv, env = get_uv(), uv_environment()
    python = folder / "bin" / "python"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    command = [uv, "pip", "install", "--quiet", "-p", str(python), torch_pin()]
    command += [*torch_source(uv, env, python), "--requirements", str(REQUIREMENTS)]
    subprocess.run(command, env=env, check=True)
    return python.parent


def main() -> None:
    parser = argparse.ArgumentParser("make test-clients", description=__doc__.splitlines()[0])
    parser.add_argument("clients", nargs="*", choices=[[], *CHECKS], help="default: all")
    parser.add_argument("--bin", type=Path, help="of an environment that has them already")
    options = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        bin_folder = options.bin or install(Path(folder) / "venv")
        with course_server(verbose=False, max_model_len=1024) as server:
            for name in options.clients or CHECKS:
                where = Path(folder) / name
                where.mkdir()
                try:
                    print(f"{name}: {CHECKS[name](Clients(bin_folder, server, where))}", flush=True)
                except Exception as error:
                    failed.append(name)
                    print(f"{name}: FAILED\n{error}", flush=True)
    sys.exit(f"Not served rightly: {', '.join(failed)}." if failed else 0)


if __name__ == "__main__":
    main()
