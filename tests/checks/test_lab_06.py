"""What lab 06 calls right, against something independent; what its stories reach; its pictures."""

from __future__ import annotations

import random

import pytest

from utils.checks import lab_06
from utils.checks.kit.contracts import Choices
from utils.checks.kit.contracts.shrinking import sample
from utils.checks.lab_06 import answers, learners_engine, memory, pictures, steps
from utils.checks.lab_06.pictures import Mark
from utils.checks.lab_06.scheduler_story import SchedulerStory
from utils.engine.core.sched.scheduler import Scheduler


def test_waste_is_what_one_counts_place_by_place():
    for given in sample(steps.draw_batches, 60):
        *lists, size = given.args
        if sum(map(sum, lists)) > 50_000:
            continue
        counts = []
        for lens in lists:
            batches = [lens[i : i + size] for i in range(0, len(lens), size)]
            counts.append(sum(p >= n for b in batches for n in b for p in range(max(b))))
        assert steps.waste(*given.args) == tuple(counts)


def test_a_chunk_is_what_one_takes_token_by_token():
    for given in sample(steps.draw_chunk, 100):
        request, left, after = given.args
        computed = request.num_computed_tokens
        while left > after and computed < request.num_tokens:
            left, computed = left - 1, computed + 1
        complete = computed == request.num_tokens
        assert steps.in_reach(*given.args) == (computed - request.num_computed_tokens, complete)


def test_victims_are_those_that_plain_numbers_tell():
    for case in sample(memory.draw_shortage, 300):
        held = [-(-r.num_computed_tokens // case.block_size) for r in case.running]
        asking = case.running[case.asks].num_computed_tokens + case.num_new_tokens
        needed = -(-asking // case.block_size) - held[case.asks]
        free, left = case.num_free, len(held)
        while needed > free and left > case.asks:
            left -= 1
            free += held[left]
        assert len(memory.Scene(case).ask(answers.make_room)) == len(held) - left


def test_brute_force_costs_equal_the_formulas():
    for given in sample(lab_06.draw_costs, 100):
        assert lab_06.seconds(*given.args) == pytest.approx(answers.recovery_seconds(*given.args))


def test_the_stories_of_swapping_reach_every_corner():
    """Each decision is held against what plain sums say."""
    corners = ("swapped", "a tie", "host memory full", "back", "no room", "back, no new block")
    seen = dict.fromkeys(corners, 0)

    class Observed(answers.SwapOrRecompute):
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

    contract = lab_06.swap_or_recompute.contract
    for told in sample(memory.SwapStory.draw, contract.examples):
        assert contract.judge.fault(Observed, told, contract.judge.expect(told)) is None
    assert min(seen.values()) > 5, seen


def test_the_engines_own_scheduler_does_the_same_step_by_step():
    judge = lab_06.SCHEDULER.judge
    for told in sample(SchedulerStory.draw, 250):
        times = [arguments[1].time for kind, arguments in told.steps if kind == "add"]
        if times == sorted(set(times)):  # the engine's counts requests as they come
            assert judge.fault(Scheduler, told, judge.expect(told)) is None, str(told)


def test_the_stories_reach_every_corner():
    corners = (
        "two victims of one",
        "a victim aborted",
        "two aborted",
        "computed again",
        "in chunks",
        "full",
        "more than eight let in",
        "large",
        "another order",
    )
    seen = dict.fromkeys(corners, 0)

    class Observed(answers.MyScheduler):
        def schedule(self):
            before = len(self.running)
            output = super().schedule()
            seen["full"] += len(self.running) == self.config.max_num_seqs and bool(self.waiting)
            seen["two victims of one"] += len(output.preempted_req_ids) > 1
            seen["more than eight let in"] += len(self.running) - before > 8
            for request in output.scheduled_requests:
                seen["in chunks"] += not request.is_complete
                has_output = request.num_tokens > request.num_prompt_tokens
                seen["computed again"] += has_output and request.num_scheduled_tokens > 1
            return output

        def abort_requests(self, requests):
            seen["two aborted"] += sum(not request.is_finished for request in requests) > 1
            seen["a victim aborted"] += any(r.status.name == "PREEMPTED" for r in requests)
            super().abort_requests(requests)

    for number in range(lab_06.SCHEDULER.examples):
        told = SchedulerStory.draw(Choices(random.Random(number)))
        arrivals = [arguments[1] for kind, arguments in told.steps if kind == "add"]
        times = [arrival.time for arrival in arrivals]
        seen["large"] += max(arrival.num_prompt for arrival in arrivals) > 1024
        seen["another order"] += times != sorted(times)
        SchedulerStory.of(Observed, told.setting, told.steps).end()
    assert min(seen.values()) > 1, seen


def stub(*_):
    raise NotImplementedError


@pytest.mark.parametrize("missing", lab_06.METHODS)
def test_a_half_written_scheduler_is_told_so_before_a_model_is_loaded(missing, monkeypatch):
    monkeypatch.setattr(learners_engine, "model", None)
    half = type("Half", (answers.MyScheduler,), {missing: stub})
    for check in (lab_06.scheduler, lab_06.engine):
        feedback = check(half)
        assert feedback.status == "not written yet"
        assert "stub" in feedback.headline


def test_the_scheduler_is_passed_as_a_class():
    feedback = lab_06.scheduler(lambda config, manager: Scheduler(config, manager))
    assert "the class itself" in feedback.headline


class ShyWithHundreds(answers.MyScheduler):
    """Wrong only where no story goes: the engine alone shows it."""

    def schedule(self):
        few = self.kv_cache_manager.block_pool.num_gpu_blocks == 80
        held, self.waiting = (
            self.waiting[2 * few :] if few else [],
            self.waiting[: 2 if few else None],
        )
        output = super().schedule()
        self.waiting += held
        return output


def test_a_fault_that_only_the_engine_shows_is_told_with_its_step(monkeypatch):
    monkeypatch.setattr(learners_engine, "SCENES", learners_engine.SCENES[:1])
    feedback = lab_06.engine(ShyWithHundreds)
    assert "steps are not those of the engine's own" in feedback.headline
    assert dict(feedback.details)["Input"].endswith("step 1")


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
