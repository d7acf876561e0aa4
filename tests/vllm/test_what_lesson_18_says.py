"""What notebook 18 says about vLLM's options and its benchmark, held against the installed vLLM."""

from __future__ import annotations

import inspect
from pathlib import Path

import nbformat
import pytest

from utils.vllm.chain import REACHED, STATIONS, vllm_folder
from utils.vllm.flags import judge

pytest.importorskip("vllm")

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "18_vllm_by_hand.ipynb"


def source_of(cell_id: str) -> str:
    [cell] = [one for one in nbformat.read(NOTEBOOK, 4).cells if one.id == cell_id]
    return str(cell.source)


def test_without_host_the_server_listens_on_every_interface() -> None:
    from vllm.entrypoints.launchers import cli_args, launcher

    assert cli_args.FrontendArgs.host is None
    assert '(args.host or "", args.port)' in inspect.getsource(launcher)


def test_the_help_of_the_key_names_fewer_prefixes_than_the_source_has() -> None:
    from vllm.entrypoints.launchers import cli_args
    from vllm.entrypoints.serve.middleware.authenticate import GUARDED_PREFIX

    code = inspect.getsource(cli_args)
    _, _, about = code.partition("api_key: list[str] | None")
    about = about[: about.index("ssl_keyfile")]
    named = [prefix for prefix in GUARDED_PREFIX if f"`{prefix}`" in about]
    assert (len(named), len(GUARDED_PREFIX)) == (3, 4)


def test_warm_ups_of_the_benchmark_are_its_first_prompt() -> None:
    code = (vllm_folder() / "benchmarks" / "serve.py").read_text()
    test_input = code[code.index("test_prompt, test_prompt_len") : code.index("if num_warmups > 0")]
    assert "input_requests[0].prompt" in test_input
    warming = code[code.index("if num_warmups > 0") : code.index("Warmup run completed")]
    assert "request_func_input=test_input" in warming
    assert "--num-warmups" not in source_of("l18-bench")


def test_a_block_is_not_for_requests() -> None:
    from vllm.v1.core.block_pool import BlockPool

    pool = BlockPool(45, True, 32)
    assert pool.get_num_free_blocks() == 44
    assert 2**30 // (32 * 2 * 30 * 3 * 64 * 4) - 1 - 2 == 725  # in float32, two requests


def test_the_stations_lie_in_ten_functions() -> None:
    stations = {station.theirs.function for station in STATIONS}
    called = {place.function for place in REACHED}
    assert (len(STATIONS), len(stations), len(called)) == (14, 10, 4)
    assert not stations & called


def test_a_field_of_the_speculative_config_is_given_once(tmp_path: Path) -> None:
    from vllm.engine.arg_utils import EngineArgs

    fields = {"method": "ngram", "num_speculative_tokens": 5}
    arguments = EngineArgs(model=str(tmp_path), spec_tokens=5, speculative_config=fields)
    with pytest.raises(ValueError, match="mutually exclusive"):
        arguments.create_speculative_config(None, None)


def test_the_repaired_line_is_accepted() -> None:
    _, line, _ = source_of("l18-repaired").split('"""')
    verdicts = judge(line)
    assert len(verdicts) == 14 and {verdict.fate for verdict in verdicts} == {"same"}
