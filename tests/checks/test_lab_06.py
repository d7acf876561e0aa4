"""What lab 06 calls right, its known mistakes, and what its stories reach."""

from __future__ import annotations

import random

import pytest

from utils.checks import lab_06
from utils.checks.kit.contracts import Choices, Stage
from utils.checks.kit.contracts.shrinking import sample
from utils.checks.kit.runner import Mismatch
from utils.checks.lab_06 import (
    bare_requests,
    chunks,
    learners_engine,
    learners_parts,
    pictures,
    scheduler_mistakes,
    static_batches,
    token_choices,
)
from utils.checks.lab_06.giving_way import preemption, recovery, swapping
from utils.checks.lab_06.learners_parts import METHODS, engine_methods_refuse
from utils.checks.lab_06.pictures import Mark
from utils.checks.lab_06.scheduler_mistakes import RightScheduler
from utils.checks.lab_06.scheduler_stories import Teller
from utils.engine.core.scheduler import Scheduler

# The oracles, held against something independent.


def test_waste_is_what_one_counts_place_by_place():
    for given in sample(static_batches.draw, 60):
        *lists, size = given.args
        if sum(map(sum, lists)) > 50_000:
            continue
        counts = []
        for lens in lists:
            batches = [lens[i : i + size] for i in range(0, len(lens), size)]
            counts.append(sum(p >= n for b in batches for n in b for p in range(max(b))))
        assert static_batches.waste(*given.args) == tuple(counts)


def test_the_engine_chooses_the_same_tokens():
    """With whole prompts only: where the engine would cut one, nobody behind it is let in."""
    for case in sample(token_choices.draw, 200):
        want, (_, waiting) = token_choices.chosen(case), case.names
        left = case.budget - sum(want.values())
        behind = [name for name in waiting if name not in want]
        assert left >= 0
        assert len(want) == case.max_num_seqs or not behind or case.lacking[behind[0]] > left
        assert list(want) == [*case.names[0], *waiting][: len(want)]


def test_a_chunk_is_what_one_takes_token_by_token():
    for turn in sample(chunks.draw, 200):
        left, computed = turn.budget, turn.request.computed
        while left > turn.num_running_after and computed < turn.request.num_tokens:
            left, computed = left - 1, computed + 1
        complete = computed == turn.request.num_tokens
        assert chunks.chunk(turn) == (computed - turn.request.computed, complete)


def test_victims_are_those_that_plain_numbers_tell():
    for case in sample(preemption.draw, 300):
        if any(case.shares):
            continue
        held = [-(-r.computed // case.block_size) for r in case.running]
        asking = case.running[case.asks]
        needed = -(-(asking.computed + case.num_new_tokens) // case.block_size) - held[case.asks]
        free, left = case.num_free, len(held)
        while needed > free and left > case.asks:
            left -= 1
            free += held[left]
        scene = preemption.Scene(case)
        assert len(scene.ask(preemption.make_room)) == len(held) - left


def test_brute_force_costs_equal_the_formulas():
    for given in sample(recovery.draw, 100):
        n, c = given.args
        recompute = (2 * n * c.num_weights + n * (n + 1) / 2 * c.flops_per_pair) / c.flops
        swap = 2 * -(-n // c.block_size) * (c.seconds_per_copy + c.block_bytes / c.bandwidth)
        assert recovery.seconds(n, c) == pytest.approx((recompute, swap))


def test_the_stories_of_swapping_reach_every_corner():
    """Counted with a manager's own numbers, and each decision held against what plain sums say."""
    corners = ("swapped", "a tie", "host memory full", "back", "no room", "back, no new block")
    seen = dict.fromkeys(corners, 0)

    class Observed(swapping.SwapOrRecompute):
        def give_way(self, victim):
            recompute, swap = self.recovery(victim.num_computed_tokens)
            needed = -(-victim.num_computed_tokens // self.kv_cache_manager.block_size)
            fits = needed <= self.kv_cache_manager.swap_space.num_free_blocks
            seen["a tie"] += swap == recompute
            seen["host memory full"] += swap < recompute and not fits
            super().give_way(victim)
            is_out = victim.request_id in self.kv_cache_manager.swap_space
            seen["swapped"] += is_out
            assert is_out == (swap < recompute and fits)

        def come_back(self, request, num_new_tokens):
            manager, computed = self.kv_cache_manager, request.num_computed_tokens
            was_out, size = request.request_id in manager.swap_space, manager.block_size
            needed = -(-(computed + num_new_tokens) // size)
            fits = needed <= manager.block_pool.get_num_free_blocks()
            assert super().come_back(request, num_new_tokens) == fits
            seen["back"] += was_out and fits
            seen["no room"] += was_out and not fits
            seen["back, no new block"] += was_out and fits and needed == -(-computed // size)
            return fits

    for story in sample(swapping.draw, swapping.SWAP.examples):
        swapping.play(Stage(), Observed, story)
    assert min(seen.values()) > 5, seen


def steps_of(scheduler_class, story):
    stage = Stage()
    Teller(stage, scheduler_class, story).tell()
    return stage.seen


def test_the_engines_own_scheduler_does_the_same_step_by_step():
    for story in sample(bare_requests.draw_story, 250):
        if list(story.times) == sorted(story.times):  # the engine's counts requests as they come
            assert steps_of(Scheduler, story) == steps_of(RightScheduler, story), str(story)


def test_the_stories_reach_every_corner():
    seen = dict.fromkeys(
        (
            "two victims of one",
            "computed again",
            "in chunks",
            "full",
            "two aborted",
            "a victim aborted",
            "large",
            "many",
            "a twin",
            "another order",
        ),
        0,
    )

    class Observed(RightScheduler):
        def make_room(self, request, count, **switches):
            victims = super().make_room(request, count, **switches)
            seen["two victims of one"] += len(victims) > 1 and request not in victims
            return victims

        def schedule(self):
            output = super().schedule()
            seen["full"] += self.is_full() and bool(self.waiting)
            for request in output.scheduled_requests:
                seen["in chunks"] += not request.is_complete
                has_output = request.num_tokens > request.num_prompt_tokens
                seen["computed again"] += has_output and request.num_scheduled_tokens > 1
            return output

        def abort_requests(self, requests):
            seen["two aborted"] += sum(not request.is_finished for request in requests) > 1
            seen["a victim aborted"] += any(r.status.name == "PREEMPTED" for r in requests)
            super().abort_requests(requests)

    for number in range(scheduler_mistakes.SCHEDULER.examples):
        story = bare_requests.draw_story(Choices(random.Random(number)))
        seen["large"] += max(a.num_prompt for a in story.arrivals) > 1024
        seen["many"] += len(story.arrivals) > 32
        seen["a twin"] += story.has_twin
        seen["another order"] += list(story.times) != sorted(story.times)
        steps_of(Observed, story)
    assert min(seen.values()) > 1, seen
    assert min(seen[name] for name in ("computed again", "in chunks", "full")) > 50, seen


# Half-written answers, and answers that let others do the work.


def stub(*_):
    raise NotImplementedError


@pytest.mark.parametrize("missing", METHODS)
def test_a_half_written_scheduler_is_told_so_not_that_it_is_wrong(missing):
    half = type("Half", (RightScheduler,), {missing: stub})
    feedback = lab_06.scheduler(half)
    assert feedback.status == "not written yet"
    assert "stub" in feedback.headline


def test_the_last_check_names_what_is_missing_before_it_loads_the_model(monkeypatch):
    monkeypatch.setattr(learners_engine, "model", None)
    half = type("Half", (RightScheduler,), {"update_from_output": stub})
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


def next_chunk(request, budget, after):  # a learner's exercise 3, found by the class below
    count = min(request.num_tokens, budget - after)
    return count, count == request.num_tokens - request.num_computed_tokens


class UsesItsParts(RightScheduler):
    def chunk(self, request, after):
        return next_chunk(request, self.budget, after)[0]


@pytest.mark.parametrize(("check", "first"), [(lab_06.scheduler, "Your"), (lab_06.engine, "Exer")])
def test_a_faulty_part_is_named(check, first):
    feedback = check(UsesItsParts)
    assert feedback.headline.startswith(first)
    assert "`next_chunk`, and that is not right yet (exercise 3). What is" in feedback.headline
    assert learners_parts.faulty_part(RightScheduler) is None


class ShyWithHundreds(RightScheduler):
    """Wrong only where no story goes: the engine alone shows it."""

    def is_full(self):
        many = self.kv_cache_manager.block_pool.num_gpu_blocks == 80
        return super().is_full() or (many and len(self.running) == 2)


def test_a_fault_that_only_the_engine_shows_comes_with_few_questions(monkeypatch):
    monkeypatch.setattr(learners_engine, "SCENES", learners_engine.SCENES[:1])
    feedback = lab_06.engine(ShyWithHundreds)
    assert "steps are not those of the engine's own" in feedback.headline
    told = dict(feedback.details)
    assert "What is here that none of its stories has?" in told["Where to look"]
    assert "the sea" in told["Input"] and "prime number" not in told["Input"]  # three questions


# The pictures.


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
