"""What is wrong with a learner's step, in words. Compared with the plan of a plain scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from utils.checks.kit.block_pictures import count
from utils.checks.lab_06.bare_requests import WatchedManager
from utils.checks.lab_06.plain_scheduler import Job, Plan
from utils.engine.core.scheduler_output import SchedulerOutput
from utils.engine.request import Request, RequestStatus

Verdict = dict[str, str]  # empty: nothing is wrong. Else the arguments of `Mismatch`.


class Step(NamedTuple):
    """A step as it should be, and the learner's scheduler.

    `running`, `waiting` and `lacking` tell what was before the step; `jobs` what is now.
    """

    plan: Plan
    scheduler: Any
    manager: WatchedManager
    requests: Mapping[str, Request]
    jobs: Mapping[str, Job]
    budget: int
    max_num_seqs: int
    running: Sequence[str]
    waiting: Sequence[str]
    lacking: Mapping[str, int]


def _says(says: str, look: str = "", expected: Any = None, got: Any = None) -> Verdict:
    verdict = {"says": says, "look": look}
    if expected is not None:
        verdict |= {"expected": str(expected), "got": str(got)}
    return verdict


def wrong_plan(step: Step, output: SchedulerOutput) -> Verdict:
    """Judge what `schedule` returned, and what it did to the requests."""
    tokens = output.num_scheduled_tokens
    in_batch = [request.request_id for request in output.scheduled_requests]
    if unknown := [name for name in tokens if name not in step.requests]:
        return _says(f"`num_scheduled_tokens` has the unknown key {unknown[0]!r}.",
                     "`num_scheduled_tokens[request.request_id] = ...`")  # fmt: skip
    for judge in (_wrong_counts, _wrong_victims, _wrong_guests, _wrong_share):
        if verdict := judge(step, tokens, output.preempted_req_ids):
            return verdict
    if absent := [name for name in tokens if name not in in_batch]:
        return _says(
            f"{absent[0]} gets tokens, but is not in `running`.",
            "Who is let in moves from `self.waiting` to `self.running`.",
        )
    return _wrong_states(step)


def _wrong_counts(step: Step, tokens: Mapping[str, int], preempted: Sequence[str]) -> Verdict:
    """Limits that no plan may break."""
    for name, num_new in tokens.items():
        request, lacking = step.requests[name], step.lacking[name]
        if step.jobs[name].done:
            return _says(f"{name} is finished or aborted, and still gets tokens.")
        if not isinstance(num_new, int) or num_new < 1:
            return _says(
                f"{name} is scheduled with {num_new!r} tokens. Leave out who gets none.",
                "Stop when the budget is used up.",
            )
        if name not in preempted and num_new > lacking:
            if num_new == request.num_tokens:
                return _says(
                    f"{name} lacks {lacking} of its {num_new} tokens, but all {num_new} are "
                    "scheduled: what is computed already would be computed again.",
                    "`next_chunk` counts only what is lacking.",
                )
            return _says(f"{name} is scheduled with {num_new} tokens, and lacks only {lacking}.")
    if sum(tokens.values()) > step.budget:
        return _says(
            f"{sum(tokens.values())} tokens are scheduled; the budget is {step.budget}.",
            "Lower the budget with each request that gets tokens.",
            step.plan.tokens, dict(tokens),
        )  # fmt: skip
    runs = [n for n in step.running if n not in preempted]
    runs += [n for n in tokens if n not in step.running]
    if len(runs) > step.max_num_seqs:
        return _says(
            f"{len(runs)} requests run at a time; max_num_seqs is {step.max_num_seqs}.",
            "Look at `len(self.running)` before somebody is let in.",
            step.plan.tokens, dict(tokens),
        )  # fmt: skip
    return {}


def _wrong_victims(step: Step, tokens: Mapping[str, int], preempted: Sequence[str]) -> Verdict:
    """Who gives way, and what becomes of them."""
    want, got = step.plan.preempted, list(preempted)
    told = {"expected": f"preempted: {want}", "got": f"{got}"}
    if got != want:
        guests = [name for name in tokens if name in step.waiting]
        if not want and guests:
            return _says(
                f"{got[0]} loses its blocks so that {guests[0]} can join. Who waits must not drive "
                "out who runs.",
                "For a waiting request, `allocate_slots` is None: `break`.",
                **told,
            )
        if not want:
            return _says(f"{got[0]} is preempted, though there is room.", **told)
        if not got:
            return _says(
                f"There are too few blocks for all, and nobody gives way. Expected: {want[0]}, "
                "the least important one.", "`make_room` returns the victims.", **told,
            )  # fmt: skip
        if sorted(got) == sorted(want):
            return _says("The victims are listed in the wrong order.", **told)
        if got[0] != want[0]:
            return _says(
                f"{got[0]} is preempted, but {want[0]} is less important.",
                "`running` must be in order of importance, and the last one gives way.", **told,
            )  # fmt: skip
        if set(got) < set(want):
            return _says(
                f"{want[len(got)]} has to give way as well: there is still no room.",
                "`make_room` asks again after each victim.", **told,
            )  # fmt: skip
        if set(got) > set(want):
            return _says("More requests are preempted than needed.", **told)
        return _says("The wrong requests are preempted.", **told)
    if twice := [name for name in got if name in tokens]:
        return _says(
            f"{twice[0]} loses its blocks, and gets tokens in the same step.",
            "Who is preempted waits, at least until the next step.",
        )
    for name in got:
        request = step.requests[name]
        if request.num_computed_tokens:
            return _says(
                f"{name} is preempted, but keeps num_computed_tokens = "
                f"{request.num_computed_tokens}. Its blocks are gone, and what they held.",
                "`victim.num_computed_tokens = 0`.",
            )
        if step.manager.num_blocks(name):
            return _says(f"{name} is preempted, but keeps its blocks.",
                         "`kv_cache_manager.free(victim)`.")  # fmt: skip
        if request in step.scheduler.running:
            return _says(f"{name} is preempted, but still in `running`.")
        if request not in step.scheduler.waiting:
            return _says(f"{name} is preempted, and lost: it is not in `waiting`.")
    return {}


def _wrong_guests(step: Step, tokens: Mapping[str, int], preempted: Sequence[str]) -> Verdict:
    """Who runs gets something, and who waits comes in by order of importance."""
    guests = [name for name in tokens if name in step.waiting]
    told = {"expected": f"{step.plan.tokens}", "got": f"{dict(tokens)}"}
    if preempted and guests:
        return _says(
            f"{guests[0]} is let in, in a step in which {preempted[0]} lost its blocks. It would "
            "take the room that the running ones need, and somebody would be preempted again.",
            "`if not preempted:` before the loop over `waiting`.", **told,
        )  # fmt: skip
    for name in step.running:
        if name in preempted or name in tokens:
            continue
        if guests:
            return _says(
                f"{guests[0]} is served before {name}, which is running already and gets nothing.",
                "First the loop over `running`, then the one over `waiting`.", **told,
            )  # fmt: skip
        return _says(
            f"{name} is running, but gets no token in this step: it would stand still.",
            "Each request leaves one token of the budget for each running one after it.", **told,
        )  # fmt: skip
    as_planned = all(tokens[name] == step.plan.tokens.get(name) for name in guests)
    for place, name in enumerate(guests):
        ahead = step.waiting[place]
        if name != ahead and not as_planned:
            return _says(
                f"{name} overtakes {ahead}, which waits before it.",
                "`waiting` must be in order of importance. Stop at the first that cannot be let "
                "in.", **told,
            )  # fmt: skip
    if missing := [name for name in step.plan.admitted if name not in guests]:
        return _says(
            f"{missing[0]} could be let in, and is not: there is room in the budget, among the "
            "requests and in the blocks.",
            "Go on after the first one that fits.", **told,
        )  # fmt: skip
    if extra := [name for name in guests if name not in step.plan.admitted]:
        return _says(f"{extra[0]} is let in, but there is no room for it.", **told)
    return {}


def _wrong_share(step: Step, tokens: Mapping[str, int], preempted: Sequence[str]) -> Verdict:
    """How many tokens each gets, and whether its blocks have room for them."""
    for name, want in step.plan.tokens.items():
        if tokens[name] != want:
            return _says(
                f"{name} gets {tokens[name]} tokens; expected {want}.",
                "`next_chunk(request, budget, num_running_after)`. After a request in `running`, "
                "others still come; after one that is let in, nobody.",
                step.plan.tokens, dict(tokens),
            )  # fmt: skip
    for name in tokens:
        got, want = step.manager.num_blocks(name), step.jobs[name].blocks
        if got < want:
            return _says(
                f"{name} gets {count(tokens[name], 'token')}, but has no room for it: it holds "
                f"{count(got, 'block')}.",
                "`allocate_slots(request, num_new_tokens)` for everybody who gets tokens.",
                f"{want} blocks", got,
            )  # fmt: skip
        if got > want:
            return _says(
                f"{name} holds {count(got, 'block')}, and needs {want} so far. The others "
                "are missing elsewhere.",
                "Allocate for the chunk, not for the whole prompt.",
            )
    return {}


def _wrong_states(step: Step) -> Verdict:
    for name, request in step.requests.items():
        job = step.jobs[name]
        if job.done:
            continue
        if request.num_computed_tokens != job.computed:
            return _says(
                f"num_computed_tokens of {name} is {request.num_computed_tokens} after `schedule`; "
                f"expected {job.computed}. Nothing is computed yet.",
                "It moves on in `update_from_output`.",
            )
        waits, runs = request in step.scheduler.waiting, request in step.scheduler.running
        if job.runs and (waits or not runs):
            return _says(
                f"{name} runs, and must be in `running` only.",
                "Who is let in moves from `self.waiting` to `self.running`.",
            )
        if job.runs and request.status != RequestStatus.RUNNING:
            return _says(f"The status of {name} is {request.status.name}, though it runs.",
                         "`request.status = RequestStatus.RUNNING`.")  # fmt: skip
        if not job.runs and (runs or not waits):
            return _says(f"{name} waits, and must be in `waiting` only.")
    return {}


def wrong_update(step: Step, aborted: Sequence[str] = ()) -> Verdict:
    """Judge what `update_from_output` or `abort_requests` left behind."""
    for name, request in step.requests.items():
        job = step.jobs[name]
        runs, waits = request in step.scheduler.running, request in step.scheduler.waiting
        blocks = step.manager.num_blocks(name)
        if job.done:
            what = "aborted" if name in aborted else "finished"
            if runs or waits:
                return _says(
                    f"{name} is {what}, but stays in `{'running' if runs else 'waiting'}`.",
                    "Keep only those that are not `request.is_finished`.",
                )
            if blocks:
                return _says(
                    f"{name} is {what}, but keeps its blocks. They would be lost for good.",
                    "`self.kv_cache_manager.free(request)`.",
                )
            continue
        if (runs, waits) != (job.runs, not job.runs):
            where = "running" if job.runs else "waiting"
            return _says(f"{name} is not finished, and must stay in `{where}`.")
        if blocks != job.blocks:
            return _says(
                f"{name} is not finished, and must keep {count(job.blocks, 'block')}; it has "
                f"{blocks}."
            )
        if request.num_computed_tokens != job.computed:
            return _wrong_progress(step, name)
    return {}


def _wrong_progress(step: Step, name: str) -> Verdict:
    request, job = step.requests[name], step.jobs[name]
    got, num_new = request.num_computed_tokens, step.plan.tokens.get(name, 0)
    told = {"expected": f"{name}: num_computed_tokens {job.computed}", "got": f"{got}"}
    look = "`request.num_computed_tokens += output.num_scheduled_tokens[request.request_id]`."
    if num_new and got == job.computed - num_new:
        return _says(
            f"{name} has computed {count(num_new, 'token')}, and num_computed_tokens stays the "
            "same.", look, **told,
        )  # fmt: skip
    if got == job.computed + 1:
        return _says(
            f"The new token of {name} is counted as computed. It is only sampled; its keys and "
            "values come with the next step.", look, **told,
        )  # fmt: skip
    if got == num_new:
        return _says(f"num_computed_tokens of {name} is set to this step's tokens, not raised by "
                     "them.", look, **told)  # fmt: skip
    return _says(f"num_computed_tokens of {name} is wrong.", look, **told)
