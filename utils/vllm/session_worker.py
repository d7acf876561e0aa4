"""The process behind `VllmSession`. It answers in lines of JSON.

Run as a program of its own, `python -m utils.vllm.session_worker`.
"""

from __future__ import annotations

import gc
import json
import time
from typing import Any

from utils.processes.json_lines import serve
from utils.vllm.session import VllmRefused


class Worker:
    """Answers the questions of `VllmSession`; each method is one of them."""

    def __init__(self) -> None:
        self.llm: Any = None

    def start(self, engine: dict[str, Any]) -> None:
        """Start an engine, and let it answer once: the first request pays for buffers."""
        from vllm import LLM, SamplingParams

        if self.llm is not None:
            self.llm = None
            gc.collect()  # the next one wants its memory
        self.llm = LLM(**{"disable_log_stats": False, "seed": 0} | engine)
        warm_up = SamplingParams(temperature=0.0, max_tokens=2)
        self.llm.generate({"prompt_token_ids": list(range(100, 164))}, warm_up, use_tqdm=False)
        self.llm.reset_prefix_cache()

    def generate(
        self, prompts: list[dict[str, Any]], sampling: dict[str, Any], one_by_one: bool
    ) -> dict[str, Any]:
        """Answer the prompts, all at once or one after another."""
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        if (form := sampling.get("structured_outputs")) is not None:
            sampling["structured_outputs"] = StructuredOutputsParams(**form)
        params = SamplingParams(**sampling)
        begin = time.perf_counter()
        outputs = []
        for batch in [[prompt] for prompt in prompts] if one_by_one else [prompts]:
            outputs += self.llm.generate(batch, params, use_tqdm=False)
        seconds = time.perf_counter() - begin
        answers = [
            {
                "text": output.outputs[0].text,
                "token_ids": list(output.outputs[0].token_ids),
                "num_cached_tokens": output.num_cached_tokens or 0,
                "finish_reason": output.outputs[0].finish_reason,
                "ttft": output.metrics.first_token_latency,
            }
            for output in outputs
        ]
        return {"answers": answers, "seconds": seconds}

    def counters(self) -> dict[str, float]:
        """Counters and gauges, summed over their labels."""
        sums: dict[str, float] = {}
        for metric in self.llm.get_metrics():
            if hasattr(metric, "value"):
                sums[metric.name] = sums.get(metric.name, 0.0) + metric.value
        return sums

    def metrics_text(self) -> dict[str, str]:
        """All metrics in Prometheus' text format."""
        from prometheus_client import generate_latest

        return {"text": generate_latest().decode()}

    def reset_prefix_cache(self) -> None:
        """Forget all cached blocks."""
        self.llm.reset_prefix_cache()

    def options(self) -> dict[str, dict[str, Any]]:
        """The options of the server, from its own parser."""
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        found: dict[str, dict[str, Any]] = {}
        for action in make_arg_parser(FlexibleArgumentParser())._actions:
            about = {"default": _plain(action.default), "choices": _plain(action.choices)}
            found |= {name: about for name in action.option_strings if name.startswith("--")}
        return found

    def allowed_tokens(self, schema: dict[str, Any], token_ids: list[int]) -> dict[str, list[str]]:
        """Step through an answer with the grammar that vLLM's default back end builds.

        Returns:
            `masks`: before each token one bit per token of the vocabulary, little-endian, in hex.
        """
        import xgrammar

        tokenizer = self.llm.get_tokenizer()
        size = self.llm.model_config.get_vocab_size()
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=size)
        grammar = xgrammar.GrammarCompiler(info).compile_json_schema(json.dumps(schema))
        matcher = xgrammar.GrammarMatcher(grammar)
        bitmask = xgrammar.allocate_token_bitmask(1, size)
        masks: list[str] = []
        for token_id in token_ids:
            if not matcher.fill_next_token_bitmask(bitmask):  # no token is forbidden
                bitmask.fill_(-1)
            masks.append(bitmask[0].numpy().tobytes().hex())
            if not matcher.accept_token(token_id):
                raise ValueError(f"The schema forbids token number {len(masks) - 1}, {token_id}.")
        return {"masks": masks}


def _plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    try:
        return json.loads(json.dumps(value))
    except TypeError:
        return str(value)


def main() -> None:
    """Answer until nobody asks any more."""
    worker = Worker()

    def answer(do: str, arguments: dict[str, Any]) -> Any:
        try:
            return getattr(worker, do)(**arguments)
        except (ValueError, TypeError) as error:  # also pydantic's
            raise VllmRefused(str(error)) from error

    serve(answer)


if __name__ == "__main__":
    main()
