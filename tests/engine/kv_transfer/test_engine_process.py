"""Prefill in one process, decode in another; and what happens when one of them ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.engine.tiny_engines import Oracle, tiny_llama
from utils.engine.kv_transfer.engine_process import ROOT, EngineProcess, EngineProcessError

PROMPT = [3, 4, 5, 6, 7, 8, 9, 10, 11, 12] * 5


def test_two_processes(tmp_path: Path) -> None:
    oracle = Oracle(tiny_llama(tmp_path, seed=0))
    want = oracle.answer(PROMPT, 12)
    llm = dict(model=str(tmp_path), max_model_len=96, block_size=4)
    with (
        EngineProcess("P2pConsumer", {"patience": 60.0}, **llm) as decode,
        EngineProcess("P2pProducer", {"port": decode.port}, **llm) as prefill,
    ):
        waiting = decode.submit(PROMPT, 12)
        prefill.generate([PROMPT], 1)
        answer = decode.result(waiting)
        assert answer.token_ids[: len(want)] == want
        assert answer.num_cached_tokens == 48 and len(answer.gaps) == 11 and answer.ttft > 0
        assert prefill.stats()["saved_blocks"] == 12 and decode.stats()["hits"] == 48
        with pytest.raises(EngineProcessError, match="not in the vocabulary"):
            decode.result(decode.submit([10**6]))
        pending = decode.submit([5] * 60, 12)  # nobody will send it
        prefill.kill()
        assert len(decode.result(pending).token_ids) == 12
        with pytest.raises(EngineProcessError, match="has ended"):
            prefill.stats()
    decode.stop()  # twice


def test_why_it_did_not_start() -> None:
    with pytest.raises(EngineProcessError, match="max_model_len=1 is out of range"):
        EngineProcess(max_model_len=1)


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    tiny_llama(tmp_path, seed=0)
    code = (
        "import os, sys\n"
        "from utils.engine.kv_transfer.engine_process import EngineProcess\n"
        f"engine = EngineProcess(model={str(tmp_path)!r}, max_model_len=96)\n"
        "print(engine.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    pid = int(result.stdout)
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        state = Path(f"/proc/{pid}/stat")
        if state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z":
            return  # ended, and nobody has asked how
        time.sleep(0.1)
    raise AssertionError(f"process {pid} is still there")
