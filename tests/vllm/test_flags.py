"""Options of tutorials: split, judged by a parser, sorted; and the successors exist."""

from __future__ import annotations

import argparse
import json

import pytest

from tools.vllm_names import check
from utils.vllm import flags
from utils.vllm.flags import SUCCESSORS, Verdict, complaint, judge, options_of, verdict

LINE = "vllm serve some/model --swap-space 4 --served-model-name a b --enforce-eager"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("vllm")
    made.add_argument("--device-ids")
    made.add_argument("--device-memory", type=float)
    made.add_argument("--served-model-name", nargs="+")
    made.add_argument("--enforce-eager", action="store_true")
    return made


def test_options_keep_their_values() -> None:
    expected = [["--swap-space", "4"], ["--served-model-name", "a", "b"], ["--enforce-eager"]]
    assert options_of(LINE) == expected
    assert options_of("vllm serve m --seed -1") == [["--seed", "-1"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--served-model-name", "a", "b"], ""),
        (["--enforce-eager"], ""),
        (["--swap-space", "4"], "unrecognized arguments: --swap-space 4"),
        (["--device", "cpu"], "ambiguous option: --device could match --device-ids"),
        (["--device-memory", "much"], "argument --device-memory: invalid float value: 'much'"),
    ],
)
def test_what_the_parser_says(words: list[str], said: str) -> None:
    heard = complaint(parser().parse_known_args, words)
    assert heard == said if not said.startswith("ambiguous") else heard.startswith(said)


def test_a_successor_counts_only_if_the_parser_knows_it() -> None:
    words = ["--speculative-model", "x"]
    assert verdict(words, "no", ["--spec-model"]) == Verdict(words, "renamed", "--spec-model", "no")
    assert verdict(words, "no", []).fate == "gone"
    assert verdict(words, "", []).fate == "same"
    assert verdict(["--swap-space"], "no", [""]).fate == "gone"


@pytest.mark.parametrize("option", sorted(set(SUCCESSORS.values())))
def test_successors_exist_in_the_installed_vllm(option: str) -> None:
    check(option)


def test_judge_asks_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(arguments: list[str]) -> str:
        asked.append(json.loads(arguments[-1]))
        return "noise of vLLM\n" + json.dumps([["no", "", ""], [], {"--enforce-eager": "--eager"}])

    monkeypatch.setattr(flags, "run_program", answer)
    fates = [(v.words[0], v.fate, v.now) for v in judge(LINE)]
    assert fates == [
        ("--swap-space", "gone", ""),
        ("--served-model-name", "same", ""),
        ("--enforce-eager", "same", "--eager"),
    ]
    assert asked[0]["options"] == options_of(LINE)
