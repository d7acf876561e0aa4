"""Loops are ended, also those that sleep or catch everything; pauses are no loops."""

from __future__ import annotations

import signal
import sys
import threading

import pytest

from utils.checks.kit import patience, runner
from utils.checks.kit.contracts import Raised
from utils.checks.kit.contracts.faults import NoEnd, attempt
from utils.checks.kit.patience import TimeUp, is_limited, limit, patience_of, watching


def turns_for_ever():
    while True:
        pass


def catches_all():
    while True:
        try:
            len("")
        except BaseException:
            continue


@pytest.mark.parametrize("loop", [turns_for_ever, catches_all])
def test_a_loop_that_computes_is_ended(loop):
    with pytest.raises(TimeUp), patience_of(2), limit():
        loop()


def ticks_for_ever(tick):
    while True:
        tick()


class WithoutEnd:
    """Collected, it computes until it is told to end."""

    def __init__(self, tick):
        self.tick = tick

    def __del__(self):
        ticks_for_ever(self.tick)


class WithAFaultyEnd(WithoutEnd):
    def __del__(self):
        raise ValueError("of the answer")


@pytest.fixture
def reported(monkeypatch, tick):
    """What Python would report of finalizers; a report takes longer than the limit."""
    reports = []

    def report(unraisable):
        reports.append("begun")
        for _ in range(3):
            tick()
        reports.append(unraisable.exc_type)

    monkeypatch.setattr(sys, "unraisablehook", report)
    return reports


@pytest.mark.parametrize(
    ("kind", "reports"), [(WithoutEnd, []), (WithAFaultyEnd, ["begun", ValueError])]
)
def test_what_is_collected_meanwhile_is_no_trouble(reported, tick, kind, reports):
    """Its end is broken off in silence, a report of it not at all; then the loop is ended."""
    hook = sys.unraisablehook
    with pytest.raises(TimeUp), patience_of(1), limit():
        kind(tick)
        ticks_for_ever(tick)
    assert reported == reports
    assert sys.unraisablehook is hook


def test_a_wait_is_ended(monkeypatch):
    monkeypatch.setattr(patience, "WAITING_S", 0.05)
    with pytest.raises(TimeUp), patience_of(2), limit():
        threading.Event().wait()


@pytest.mark.usefixtures("tick")  # no timer beside it
def test_a_long_pause_is_one_tick():
    """As of a garbage collection, in which no line of the answer runs."""
    with patience_of(2), limit():
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        for _ in range(10):
            signal.raise_signal(signal.SIGALRM)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    with pytest.raises(TimeUp), patience_of(2), limit():
        for _ in range(2):
            signal.raise_signal(signal.SIGALRM)


def test_an_import_is_not_broken_off_nor_counted(tmp_path, monkeypatch, tick):
    """It takes longer than the limit; half a module would stay for all that comes later."""
    (tmp_path / "large_part.py").write_text(
        "import signal\nfor _ in range(6): signal.raise_signal(signal.SIGVTALRM)\nwhole = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "large_part", raising=False)
    with patience_of(2), limit():
        import large_part

        tick()
    assert large_part.whole
    with pytest.raises(TimeUp), patience_of(2), limit():
        import large_part

        ticks_for_ever(tick)


def test_a_limit_holds_in_a_module_that_is_being_imported(tmp_path, monkeypatch):
    """As where a learner's script is imported by another one."""
    (tmp_path / "a_lab.py").write_text(
        "from utils.checks.kit.patience import TimeUp, limit, patience_of\n"
        "ended = False\n"
        "try:\n"
        "    with patience_of(2), limit():\n"
        "        while True: pass\n"
        "except TimeUp:\n"
        "    ended = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "a_lab", raising=False)
    import a_lab

    assert a_lab.ended


def test_timers_and_handlers_are_put_back():
    before = signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGVTALRM)
    with limit(), limit():
        pass
    assert (signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGVTALRM)) == before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)


def test_within_another_thread_there_is_no_limit():
    done = []

    def work():
        with limit():
            done.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [1]


def test_after_a_loop_was_ended_the_next_call_has_its_full_time():
    timers = {signal.ITIMER_VIRTUAL: patience.COMPUTING_S, signal.ITIMER_REAL: patience.WAITING_S}
    with watching():
        with pytest.raises(TimeUp), patience_of(2), limit():
            turns_for_ever()
        with limit():  # as many ticks as ever, and each of full length
            for timer, length in timers.items():
                assert signal.getitimer(timer)[1] == pytest.approx(length, abs=0.02)


def test_after_a_loop_was_ended_the_next_call_has_all_its_ticks(tick):
    with watching():
        with pytest.raises(TimeUp), patience_of(2), limit():
            ticks_for_ever(tick)
        with limit():
            for _ in range(patience.TICKS - 1):
                tick()
        with pytest.raises(TimeUp), limit():
            for _ in range(patience.TICKS):
                tick()


def test_what_runs_outside_the_learners_code_is_not_limited(tick):
    with watching(), patience_of(1):
        for _ in range(3):
            tick()
        with pytest.raises(TimeUp), limit():
            tick()


def test_a_call_by_itself_has_a_limit(monkeypatch):
    monkeypatch.setattr(runner, "LONG_TICKS", (2, 100))
    with pytest.raises(runner.Mismatch, match="does not come to an end"):
        runner.call(turns_for_ever, given="nothing")


def test_one_that_only_waits_too(monkeypatch):
    monkeypatch.setattr(runner, "LONG_TICKS", (10**6, 1))
    with pytest.raises(runner.Mismatch, match="does not come to an end"):
        runner.call(threading.Event().wait)


def test_what_is_called_within_a_long_call_has_its_own_short_limit():
    """The engine runs within `call`, and calls a learner's part, which hangs."""
    with patience_of(2):
        got = runner.call(lambda: attempt(turns_for_ever))
    assert got == Raised(NoEnd)
    assert not is_limited()


def test_a_long_call_within_a_limit_has_no_longer_one():
    with pytest.raises(TimeUp), patience_of(2), limit():
        runner.call(turns_for_ever)
