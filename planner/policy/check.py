"""Check that a schedule obeys a policy, from its steps alone: no other module shares this code."""

from __future__ import annotations

from collections.abc import Collection

from planner.errors import VerificationError
from planner.graph import Graph
from planner.schedule import Compute, Schedule


def forward_ops(graph: Graph) -> frozenset[str]:
    """Ops of phases forward and loss, and ops without a phase before the first backward op; none without a backward."""
    first = next((place for place, op in enumerate(graph.ops) if op.phase == "backward"), None)
    if first is None:
        return frozenset()
    return frozenset(
        op.name
        for place, op in enumerate(graph.ops)
        if not op.resident and (op.phase in ("forward", "loss") or (op.phase is None and place < first))
    )


def check_obeyed(graph: Graph, schedule: Schedule, *, saved: Collection[str], rerun: Collection[str]) -> None:
    """Check a legal schedule against a policy.

    Args:
        saved: ops that run once.
        rerun: ops whose values do not wait for the backward pass. Only first runs of the forward part read what their
            first run makes, and it is freed right after the last of them; between a later run and the reading of what
            it makes there is no such first run.
    Raises:
        VerificationError: names the op, the value and the step.
    """
    forward = forward_ops(graph)
    marked = frozenset(rerun)
    runs: dict[str, int] = {}
    # by value of a marked op: run, Compute step that made it, step that last read it
    live: dict[str, tuple[int, int, int]] = {}
    edge = now = -1
    for index, step in enumerate(schedule.steps):
        if not isinstance(step, Compute):
            run, _, used = live.pop(step.value, (1, 0, now))
            if run == 0 and used < now:
                late = f"waited {now - used} steps to be freed"
                raise VerificationError(f"step {index}: {step.value!r} {late}; the policy says recompute")
            continue
        now += 1
        op = graph.op_named[step.op]
        run = runs[op.name] = runs.get(op.name, -1) + 1
        if run and op.name in saved:
            raise VerificationError(f"step {index}, op {op.name!r}: runs again; the policy says save")
        first = run == 0 and op.name in forward
        for value in op.reads:
            if value not in live:
                continue
            made_by, made_at, _ = live[value]
            if not first and (made_by == 0 or made_at < edge):
                kept = f"reads {value!r}, kept since it was made"
                raise VerificationError(f"step {index}, op {op.name!r}: {kept}; the policy says recompute")
            live[value] = (made_by, made_at, now)
        overwritten = {graph.storage_root[op.reads[i]] for i, _ in op.updates}
        if overwritten:
            live = {value: facts for value, facts in live.items() if graph.storage_root[value] not in overwritten}
        if first:
            edge = now
        if op.name in marked:
            for tensor in op.outputs:
                live.setdefault(tensor.name, (run, now, now))
    for value, (run, _, used) in live.items():
        if run == 0 and used < now and not graph.tensors[value].output:
            raise VerificationError(f"{value!r} is kept to the end; the policy says recompute")
