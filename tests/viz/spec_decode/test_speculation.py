"""The pictures of speculative decoding show what happened, and the stepper tells guesses apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from utils.engine import LLMEngine, ModelConfig, SamplingParams, SpeculativeConfig
from utils.engine.attention.tree_attention import tree_attention_mask
from utils.engine.config.engine import EngineConfig
from utils.engine.models.llama import LlamaForCausalLM
from utils.viz.spec_decode.clock import StepParts
from utils.viz.spec_decode.drafts import (
    BEFORE,
    EMPTY,
    KEPT,
    REJECTED,
    SlotsAfterStep,
    plot_slots,
    plot_tree_mask,
)
from utils.viz.spec_decode.gains import plot_batches, plot_choices, plot_speedups
from utils.viz.spec_decode.guess_stepper import (
    STYLES,
    GuessStep,
    GuessStepper,
    record_guesses,
    step_as_html,
)
from utils.viz.spec_decode.speculation import plot_expected_tokens, plot_residual, plot_verify_cost
from utils.viz.style import BLUE, INK, ORANGE, use_course_style

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
PROMPT = [5, 9, 300, 17]


@pytest.fixture(autouse=True)
def styled_and_closed_figures() -> Iterator[None]:
    use_course_style()  # puts titles on the left
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def plain(tokenizer) -> LLMEngine:
    """An engine with a tiny random model and the bundled model's vocabulary."""
    config = ModelConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        rope_theta=1e4,
        rms_norm_eps=1e-5,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_ids=(),
    )
    model = LlamaForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
        if "norm" in name:
            parameter.data = torch.ones(parameter.shape)
    settings = EngineConfig(256, torch.float32, torch.device("cpu"), num_gpu_blocks=32)
    return LLMEngine(model, tokenizer, settings)


@pytest.fixture(scope="module")
def answer(plain: LLMEngine) -> list[int]:
    plain.add_request("plain", {"prompt_token_ids": PROMPT}, GREEDY)
    while plain.has_unfinished_requests():
        [output] = plain.step()
    return output.outputs[0].token_ids


class Oracle:
    """Knows the answer, and spoils the guess at each place that is in `wrong`."""

    def __init__(self, answer: list[int], wrong: set[int]) -> None:
        self.answer, self.wrong = answer, wrong

    def propose(self, token_ids: list[int], num_speculative_tokens: int) -> list[int]:
        begin = len(token_ids) - len(PROMPT)
        return [
            token + 1 if begin + i in self.wrong else token
            for i, token in enumerate(self.answer[begin:][:num_speculative_tokens])
        ]


def engine_with(plain: LLMEngine, answer: list[int], wrong: set[int]) -> LLMEngine:
    spec = SpeculativeConfig("custom_class", 3, proposer=Oracle(answer, wrong))
    return LLMEngine(
        plain.executor.model, plain.inputs.tokenizer, replace(plain.config, speculative_config=spec)
    )


def test_recorded_steps_tell_what_became_of_each_guess(plain: LLMEngine, answer: list[int]) -> None:
    steps = record_guesses(engine_with(plain, answer, {2, 9}), PROMPT, GREEDY)
    # The prompt's step gives token 0. Then: guesses 1 2 3, of which 2 is wrong; and so on.
    kinds = [[kind for kind, _ in step.kinds()] for step in steps]
    assert kinds == [
        ["accepted", "rejected", "rejected", "recovered"],  # tokens 1 and 2
        ["accepted", "accepted", "accepted", "bonus"],  # 3 to 6
        ["accepted", "accepted", "rejected", "recovered"],  # 7 to 9
        ["accepted", "accepted", "accepted", "bonus"],  # 10 to 13
        ["accepted", "accepted", "accepted", "bonus"],  # 14 to 17
        ["accepted", "bonus"],  # 18 and 19: there is no room for more
    ]
    assert steps[0].kinds()[1:3] == [("rejected", answer[2] + 1), ("rejected", answer[3])]
    written = steps[0].before + [token for step in steps for token in step.gained]
    assert written == answer


def test_an_engine_without_guesses_has_plain_steps(plain: LLMEngine, answer: list[int]) -> None:
    steps = record_guesses(plain, PROMPT, GREEDY)
    assert [step.kinds() for step in steps] == [[("plain", token)] for token in answer[1:]]


def test_an_answer_may_end_with_an_accepted_guess() -> None:
    step = GuessStep(before=[1], guesses=[2, 3, 4], gained=[2, 3])  # 3 was the end
    assert step.num_accepted == 2
    assert step.kinds() == [("accepted", 2), ("accepted", 3), ("rejected", 4)]


def test_recording_leaves_the_engine_as_it_was(plain: LLMEngine, answer: list[int]) -> None:
    engine = engine_with(plain, answer, {1})
    engine.step_trace = trace = []
    record_guesses(engine, PROMPT, GREEDY)
    assert engine.step_trace is trace and not engine.has_unfinished_requests()


def test_what_cannot_be_recorded_is_explained(plain: LLMEngine, answer: list[int]) -> None:
    engine = engine_with(plain, answer, set())
    tree = SpeculativeConfig("medusa", model="heads", tree_widths=(2, 1))
    engine.config = replace(engine.config, speculative_config=tree)
    with pytest.raises(ValueError, match="Record a chain"):
        record_guesses(engine, PROMPT, GREEDY)
    engine.config = plain.config
    engine.add_request("other", {"prompt_token_ids": PROMPT}, GREEDY)
    with pytest.raises(ValueError, match="unfinished requests"):
        record_guesses(engine, PROMPT, GREEDY)


def boxes(page: str) -> list[str]:
    """Kinds of the tokens shown, without the legend."""
    shown = page.split("<hr>")[1]
    names = {style: name for name, style in STYLES.items()}
    return [names[style] for style in re.findall(r'<span style="([^"]+)">', shown)]


def test_every_position_of_the_stepper(plain: LLMEngine, answer: list[int], tokenizer) -> None:
    runs = {
        "often wrong": record_guesses(
            engine_with(plain, answer, set(range(0, 20, 2))), PROMPT, GREEDY
        ),
        "right": record_guesses(engine_with(plain, answer, set()), PROMPT, GREEDY),
    }
    widget = GuessStepper(runs, tokenizer)
    for name, steps in runs.items():
        widget.run.value = name
        assert widget.step.max == len(steps)
        for number, step in enumerate(steps, 1):
            widget.step.value = number
            page = widget.view.value
            assert page == step_as_html(steps, number - 1, tokenizer)
            assert boxes(page) == [kind for kind, _ in step.kinds()]
            assert f"Step {number} of {len(steps)}: {len(step.guesses)} guessed" in page
    widget.run.value = "often wrong"
    widget.step.value = widget.step.max
    widget.run.value = "right"  # which has fewer steps
    assert widget.step.value == widget.step.max == len(runs["right"])


def test_tokens_are_text_and_no_markup(tokenizer) -> None:
    tags = tokenizer.encode("<b>bold</b>")
    for step in (GuessStep(tags, [], []), GuessStep([], tags, tags)):  # before it, and in boxes
        page = step_as_html([step], 0, tokenizer)
        assert "<b>bold" not in page and "&lt;" in page


def test_slots_keep_rejected_guesses_until_they_are_written_over() -> None:
    # Six tokens are there. The step computes four, of which two stay; an older guess stands at 10.
    step = SlotsAfterStep([7, 2, 5], list("abcdefghijk"), start=6, num_new=4, num_kept=2)
    colors = [step.color(position) for position in range(12)]
    assert colors == [BEFORE] * 6 + [KEPT] * 2 + [REJECTED] * 3 + [EMPTY]
    figure = plot_slots([step], block_size=4, first=4, title="t")
    words = [text.get_text() for text in figure.axes[0].texts]
    assert words == ["after step 1", "block 2", *"efgh", "block 5", *"ijk"]
    rejected = figure.axes[0].texts[-1]  # readable on the hatching
    box = rejected.get_bbox_patch()
    assert box is not None and box.get_facecolor()[:3] == (1, 1, 1) and rejected.get_color() == INK


def test_tree_picture_has_a_row_for_each_node() -> None:
    parents = [-1, -1, 0, 0, 1]
    mask = tree_attention_mask(parents)
    figure = plot_tree_mask("root", list("abcde"), parents, mask, "t")
    tree, matrix = figure.axes
    assert [t.get_text() for t in matrix.get_yticklabels()][:2] == ["'root' 0", "'a' 1"]
    assert matrix.images[0].get_array().shape == (6, 6)
    assert len(tree.lines) == len(parents)
    drawn = {t.get_text(): t.get_position() for t in tree.texts}
    assert drawn["'c' 3"][0] == drawn["'e' 5"][0] == 2  # both two guesses deep
    assert len({position for position in drawn.values()}) == 6  # none hides another


def heights(figure: Figure, axes: int, container: int) -> list[float]:
    return [bar.get_height() for bar in figure.axes[axes].containers[container]]


def test_accepted_and_recovered_add_up_to_the_target() -> None:
    p, q = [0.5, 0.3, 0.2], [0.2, 0.7, 0.1]
    figure = plot_residual(["a", "b", "c"], p, q)
    accepted, recovered = heights(figure, 1, 0), heights(figure, 1, 1)
    assert accepted == pytest.approx([0.2, 0.3, 0.1])
    assert [a + r for a, r in zip(accepted, recovered, strict=True)] == pytest.approx(p)
    assert heights(figure, 0, 0) == q and heights(figure, 0, 1) == p


def test_costs_stand_beside_their_bound_and_the_knee() -> None:
    figure = plot_verify_cost([1, 5, 40], [0.02, 0.03, 0.08], [0.01, 0.01, 0.02], knee=20)
    apart, measured, bound, _ = (line.get_ydata() for line in figure.axes[0].lines)
    assert list(apart) == pytest.approx([20, 100, 800])
    assert list(measured) == pytest.approx([20, 30, 80])
    assert list(bound) == pytest.approx([10, 10, 20])
    assert figure.axes[0].texts[0].get_text().strip() == "knee: 20 tokens"
    title = figure.axes[0].get_title(loc="left")
    assert "over 5 tokens takes 1.50 times" in title and "over 40 tokens 4.0 times" in title
    beyond = plot_verify_cost([1, 5], [0.02, 0.03], [0.01, 0.01], knee=20)
    assert not beyond.axes[0].texts  # it would lie outside


def test_expected_tokens_follow_the_formula() -> None:
    tries = [1.7, 1.74, 1.78]
    figure = plot_expected_tokens(0.5, {2: 1.6}, {2: tries}, most=3)
    line, *_, counted = figure.axes[0].lines
    assert list(line.get_ydata()) == [1.5, 1.75, 1.875]
    assert (list(counted.get_xdata()), list(counted.get_ydata())) == ([2], [1.6])
    assert "give 1.600 tokens per pass,\nand shuffled hits 1.740" in figure.axes[0].get_title(
        loc="left"
    )


def test_speedups_name_the_best_and_mark_what_is_slower() -> None:
    measured = {"a: x": 1.3, "b: y": 0.7}
    figure = plot_speedups({"b: y": 1.1}, {"a: x": 1.4, "b: y": 0.9}, measured)
    axes = figure.axes[0]
    title = axes.get_title(loc="left")
    assert title == "Fastest: a by x (1.30 times as fast); slowest: b by y (0.70)"
    assert [bar.get_width() for bar in axes.patches] == [1.3, 0.7]
    assert [to_hex(bar.get_facecolor()) for bar in axes.patches] == [BLUE, ORANGE]
    formula, replayed = (marks.get_offsets().tolist() for marks in axes.collections)
    assert formula == [[1.1, 1]] and replayed == [[1.4, 0], [0.9, 1]]


def test_choices_name_the_best_of_both() -> None:
    figure = plot_choices({0: 1, 1: 1.3, 2: 1.2}, {0: 1, 2: 1.25})
    title = figure.axes[0].get_title(loc="left")
    assert title == "Replay predicts k = 1 as the best; fastest in the race: k = 2"


def test_batches_show_the_parts_of_a_step() -> None:
    without = [StepParts(0.02, 0, 0.001), StepParts(0.03, 0, 0.002)]
    guessing = [StepParts(0.022, 0.004, 0.001), StepParts(0.07, 0.01, 0.002)]
    figure = plot_batches([1, 16], [1.2, 0.6], {"without": without, "with": guessing})
    speed, parts = figure.axes
    assert list(speed.lines[1].get_ydata()) == [1.2, 0.6]
    assert figure.get_suptitle().endswith("in a batch: 1.20 with 1, 0.60 with 16")
    bars = [[bar.get_height() for bar in group] for group in parts.containers]
    assert bars[:3] == [pytest.approx([0, 0]), pytest.approx([20, 30]), pytest.approx([1, 2])]
    assert bars[3:5] == [pytest.approx([4, 10]), pytest.approx([22, 70])]
    tops = [text.get_position()[1] for text in parts.texts]
    assert tops == pytest.approx([21, 32, 27, 82])
