"""vLLM's OpenAI-compatible server, which ends when the process that started it is gone.

Takes the arguments of `python -m vllm.entrypoints.openai.api_server`, and is nothing else.
"""

from __future__ import annotations

import runpy

from utils.pipeline.process import exit_with_parent

if __name__ == "__main__":
    exit_with_parent()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
