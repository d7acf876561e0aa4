"""Which file of vLLM does what a file of our engine does, and how long both are."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import utils.engine

# The files of vLLM's default model runner, V2. Only the older runner has Medusa.
OURS = Path(utils.engine.__file__).parent
COUNTERPARTS = {
    "llm.py": "entrypoints/llm.py",
    "llm_engine.py": "v1/engine/llm_engine.py v1/engine/core.py",
    "input_processor.py": "v1/engine/input_processor.py",
    "detokenizer.py": "v1/engine/detokenizer.py",
    "outputs.py": "outputs.py v1/engine/output_processor.py",
    "sampling_params.py": "sampling_params.py",
    "request.py": "v1/request.py",
    "core/sched/scheduler.py": "v1/core/sched/scheduler.py v1/core/sched/request_queue.py",
    "core/sched/output.py": "v1/core/sched/output.py",
    "core/kv_cache_manager.py": "v1/core/kv_cache_manager.py",
    "core/block_pool.py": "v1/core/block_pool.py",
    "core/kv_cache_utils.py": "v1/core/kv_cache_utils.py",
    "worker/model_runner.py": "v1/worker/gpu/model_runner.py",
    "attention/batch.py": "v1/worker/gpu/input_batch.py v1/worker/gpu/block_table.py",
    "attention/paged_attention.py": "v1/attention/backends/flash_attn.py",
    "models/llama.py": "model_executor/models/llama.py",
    "sample/sampler.py": "v1/worker/gpu/sample/sampler.py",
    "sample/draw.py": "v1/worker/gpu/sample/gumbel.py",
    "sample/rejection_sampler.py": "v1/worker/gpu/spec_decode/rejection_sampler.py",
    "spec_decode/ngram_proposer.py": "v1/worker/gpu/spec_decode/ngram/speculator.py",
    "spec_decode/llm_base_proposer.py": "v1/worker/gpu/spec_decode/speculator.py",
    "spec_decode/draft_model.py": "v1/worker/gpu/spec_decode/standalone_ar/speculator.py",
    "spec_decode/medusa.py": "v1/spec_decode/medusa.py model_executor/models/medusa.py",
    "spec_decode/eagle.py": "v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py",
    "models/llama_eagle.py": "model_executor/models/llama_eagle.py",
    "metrics.py": "v1/metrics/stats.py",
}


def lines_of_code(path: Path) -> int:
    """Lines with code on them: no blank lines, no comments, no docstrings."""
    nodes = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if not isinstance(node, ast.Module)
    ]
    documents = {
        line
        for node in nodes
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return len({node.lineno for node in nodes if hasattr(node, "lineno")} - documents)


def counterparts() -> str:
    """A table: our files and their lines, vLLM's files and theirs ("?" where it is missing)."""
    spec = importlib.util.find_spec("vllm")
    theirs = Path(spec.origin).parent if spec and spec.origin else None
    rows, sums = [f"{'ours, lines of code':34}   vLLM, lines of code"], [0, 0]
    for name, paths in COUNTERPARTS.items():
        ours = lines_of_code(OURS / name)
        count = sum(lines_of_code(theirs / path) for path in paths.split()) if theirs else 0
        sums = [sums[0] + ours, sums[1] + count]
        rows.append(f"{name:29} {ours:>5}  {paths:61} {count if theirs else '?':>6}")
    rows.append(f"{'together':29} {sums[0]:>5}  {'':61} {sums[1] if theirs else '?':>6}")
    rest = sum(map(lines_of_code, OURS.rglob("*.py"))) - sums[0]
    native = sum(
        len(path.read_text().splitlines()) for kind in ("*.cpp", "*.h") for path in OURS.rglob(kind)
    )
    rows.append(f"the rest of our engine: {rest} lines of Python, {native} of C++ with comments")
    return "\n".join(rows)
