"""The checks of lab 06 beyond the bug zoo: half-written answers, the oracles, the pictures."""

from __future__ import annotations

import signal

import pytest

from utils.checks import lab_06
from utils.checks.kit.runner import Mismatch
from utils.checks.lab_06 import pictures, scheduler_stories
from utils.checks.lab_06.pictures import Mark
from utils.checks.lab_06.plain_scheduler import PlainScheduler
from utils.checks.lab_06.recovery import _CASES, _seconds
from utils.checks.lab_06.scheduler_stories import (
    METHODS,
    STORIES,
    Story,
    engine_methods_refuse,
    random_story,
)
from utils.engine.core.scheduler import Scheduler


@pytest.mark.parametrize("story", STORIES)
def test_the_engines_own_scheduler_passes_each_story(story):
    """The plain scheduler, the judge of all answers, agrees with the engine's in each step."""
    story(Scheduler)


@pytest.mark.parametrize("seed", range(1000, 1040))
def test_both_schedulers_agree_in_more_random_stories(seed):
    random_story(Scheduler, seed)


def test_the_random_stories_reach_every_corner():
    """Otherwise agreement in them would say little."""
    seen = {
        "preempted": 0,
        "two at once": 0,
        "computed again": 0,
        "in chunks": 0,
        "full": 0,
        "long beside others": 0,
    }

    class Observed(Scheduler):
        def schedule(self):
            output = super().schedule()
            seen["preempted"] += len(output.preempted_req_ids)
            seen["two at once"] += len(output.preempted_req_ids) > 1
            seen["full"] += len(self.running) == self.config.max_num_seqs and bool(self.waiting)
            for request in output.scheduled_requests:
                count = output.num_scheduled_tokens[request.request_id]
                end = request.num_computed_tokens + count
                seen["in chunks"] += end < request.num_tokens
                seen["computed again"] += bool(request.output_token_ids) and count > 1
                others = len(output.scheduled_requests) > 1
                seen["long beside others"] += others and request.num_computed_tokens > 0 < count - 1
            return output

    for seed in range(60):
        random_story(Observed, seed)
    assert seen.pop("two at once") > 1  # rare, and a story of its own
    assert min(seen.values()) > 20, seen


def test_the_plain_scheduler_finishes_everybody_and_keeps_all_blocks():
    plain = PlainScheduler(3, 5, 6, 4)
    for number in range(9):
        plain.add(str(number), 1 + number * 2, 1 + number % 4, number % 3)
    for _ in range(300):
        plan = plain.schedule()
        assert sum(plan.tokens.values()) <= 5
        assert len(plain.running()) <= 3
        assert 0 <= plain.free_blocks <= 6
        plain.finish(plan)
    assert all(job.done and job.answered == job.num_answer for job in plain.jobs.values())
    assert plain.free_blocks == 6


def stub(*_):
    raise NotImplementedError


@pytest.mark.parametrize("missing", METHODS)
def test_a_half_written_scheduler_is_told_so_not_that_it_is_wrong(missing, monkeypatch):
    monkeypatch.setattr(scheduler_stories, "METHODS", ())  # the others are inherited
    half = type("Half", (Scheduler,), {missing: stub})
    feedback = lab_06.scheduler(half)
    assert feedback.status == "not written yet"
    assert "stub" in feedback.headline


def test_the_last_check_names_what_is_missing_before_it_loads_the_model(monkeypatch):
    monkeypatch.setattr("utils.checks.lab_06.learners_engine.model", None)
    half = type("Half", (Scheduler,), {"update_from_output": stub})
    assert lab_06.engine(half).status == "not written yet"


@pytest.mark.parametrize("method", METHODS)
def test_the_engines_methods_refuse_only_while_they_are_asked_to(method):
    with engine_methods_refuse(), pytest.raises(Mismatch, match="engine's own scheduler"):
        getattr(Scheduler, method)(None)
    with pytest.raises(TypeError):
        getattr(Scheduler, method)()


def test_the_scheduler_is_passed_as_a_class():
    feedback = lab_06.scheduler(lambda config, manager: Scheduler(config, manager))
    assert "the class itself" in feedback.headline


def test_a_loop_without_end_leaves_no_alarm_behind():
    class Endless(Scheduler):
        def schedule(self):
            while True:
                pass

    before = signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(Mismatch, match="does not come to an end"):
        STORIES[0](Endless)
    assert signal.getsignal(signal.SIGVTALRM) == before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_brute_force_costs_equal_the_formulas():
    for n, c in _CASES:
        recompute = (2 * n * c.num_weights + n * (n + 1) / 2 * c.flops_per_pair) / c.flops
        swap = 2 * -(-n // c.block_size) * (c.seconds_per_copy + c.block_bytes / c.bandwidth)
        assert _seconds(n, c) == pytest.approx((recompute, swap))


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_picture_of_static_batches_counts_what_it_shows():
    figure = pictures.static_batches([3, 5, 2], [4, 1, 6], 2)
    titles = [figure.axes[0].get_title(loc=side) for side in ("left", "center")]
    assert "2 places are padding, 3 are idle" in titles  # on the side that the style says
    assert texts(figure) == ["2", "3", "4", "5", "1", "3", "2", "6"]
    assert legend(figure) == ["tokens of a prompt", "tokens of an answer", "padding", "idle slot"]


def test_the_gantt_chart_marks_what_differs():
    expected = [{"A": Mark("prompt", 4)}, {"A": Mark("lost"), "B": Mark("prompt", 2)}]
    yours = [{"A": Mark("prompt", 4)}, {"A": Mark("answer", 1), "B": Mark("prompt", 2)}]
    figure = pictures.gantt(["A", "B"], {"expected": expected, "yours": yours}, "")
    assert texts(figure) == ["4", "", "2", "4", "1", "2"]
    assert legend(figure) == ["tokens of a prompt", "loses its blocks", "not as expected"]
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["expected: A", "expected: B", "yours: A", "yours: B"]


def test_a_mismatch_shows_the_steps_so_far():
    class Idle(Scheduler):
        def schedule(self):
            output = super().schedule()
            if self.running and self.running[0].output_token_ids:
                output.num_scheduled_tokens.clear()
            return output

    with pytest.raises(Mismatch, match="would stand still") as caught:
        story = Story(Idle)
        story.add("A", 3, 3)
        story.run()
    assert texts(caught.value.figure) == ["3", "1", "3", ""]
    assert caught.value.alt
