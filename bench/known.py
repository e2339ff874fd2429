"""The best plan known for each case: a file of op numbers that anybody can judge again, and that no worse plan
replaces.
"""

from __future__ import annotations

import base64
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

import planner
from planner import Graph
from planner.analysis.arrays import Ints
from planner.analysis.evaluator import evaluator_of
from planner.errors import PlanFileError, PlannerError
from planner.files import write_whole
from planner.memory import MemoryModel

SCHEMA: Final = "planner-best-known"
VERSION: Final = 1


class KnownPlan(msgspec.Struct, frozen=True):
    """A plan as the ops it runs; canonical frees make it a schedule.

    Args:
        overhead: extra cost as a fraction of keep-all's.
        found_by: strategy or peer.
        budget_bytes, peak_bytes, cost: as judged.
        fingerprint: of the graph.
        pinned: first runs are in the order of the program.
        runs: length of the sequence.
        sequence: differences of the op numbers, as little-endian int32, deflated, in base 64.
    """

    overhead: float
    found_by: str
    budget_bytes: int
    peak_bytes: int
    cost: float
    fingerprint: str
    pinned: bool
    runs: int
    sequence: str

    def ops(self) -> Ints:
        """Op numbers in the order they run.

        Raises:
            PlanFileError: damaged.
        """
        try:
            inflater = zlib.decompressobj()
            steps = np.frombuffer(
                inflater.decompress(base64.b64decode(self.sequence, validate=True), 4 * self.runs), dtype="<i4"
            )
        except (ValueError, zlib.error) as error:
            raise PlanFileError(f"a best known plan is damaged: {error}") from None
        if len(steps) != self.runs or inflater.unconsumed_tail:
            raise PlanFileError(f"a best known plan is damaged: it has not the {self.runs} runs it says")
        return np.cumsum(steps, dtype=np.int64)


def packed(ops: Ints) -> str:
    """Op numbers as text.

    >>> packed(np.array([0, 1, 2, 1]))
    'eNpjYGBgYITi/0AAAAoaA/8='
    """
    steps = np.diff(ops, prepend=0).astype("<i4").tobytes()
    return base64.b64encode(zlib.compress(steps, 9)).decode()


class _File(msgspec.Struct):
    plans: dict[str, KnownPlan]
    schema: str = SCHEMA
    version: int = VERSION


class BestKnown:
    """Best known plans by case, as "graph · budget"."""

    def __init__(self, plans: dict[str, KnownPlan] | None = None) -> None:
        self.plans = dict(plans or {})

    def __iter__(self) -> Iterator[tuple[str, KnownPlan]]:
        return iter(sorted(self.plans.items()))

    def offer(
        self, case: str, graph: Graph, ops: Ints, *, budget_bytes: int, found_by: str, pinned: bool = False
    ) -> tuple[float, int]:
        """Judge a plan, and keep it if it is cheaper than the one there, or that one is for another graph or budget.

        Returns:
            Its cost and peak bytes.
        Raises:
            AssertionError: above the budget, or in another order than the pinned one: whoever found it is wrong.
        """
        cost, peak_bytes, base = judged(graph, ops)
        if peak_bytes > budget_bytes:
            raise AssertionError(f"{case}: {found_by} takes {peak_bytes} bytes of {budget_bytes}")
        if pinned and not _in_order(ops):
            raise AssertionError(f"{case}: {found_by} changed the order, which is pinned")
        found = KnownPlan(
            cost / base - 1, found_by, budget_bytes, peak_bytes, cost, graph.fingerprint, pinned, len(ops), packed(ops)
        )
        old = self.plans.get(case)
        same = old is not None and (old.fingerprint, old.budget_bytes, old.pinned) == (
            found.fingerprint,
            budget_bytes,
            pinned,
        )
        if old is None or not same or cost < old.cost * (1 - 1e-12):
            self.plans[case] = found
        return cost, peak_bytes

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all."""
        text = msgspec.json.format(msgspec.json.encode(_File(dict(self))), indent=1)
        write_whole(path, text + b"\n")


def load(path: str | os.PathLike[str]) -> BestKnown:
    """Best known plans from their file.

    Raises:
        PlanFileError: missing, of another kind or version, or damaged.
    """
    try:
        file = msgspec.json.decode(Path(path).read_bytes(), type=_File)
    except OSError as error:
        raise PlanFileError(f"cannot read best known plans {str(path)!r}: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PlanFileError(f"{str(path)!r} is damaged: {error}") from None
    if (file.schema, file.version) != (SCHEMA, VERSION):
        raise PlanFileError(
            f"{str(path)!r} is not a {SCHEMA} file of version {VERSION}: remove it and run the suite again"
        )
    return BestKnown(file.plans)


def judged(graph: Graph, ops: Ints) -> tuple[float, int, float]:
    """(cost, peak bytes, cost of keep-all), by the judge.

    Raises:
        ScheduleError: illegal.
    """
    memory = MemoryModel()
    evaluator = evaluator_of(graph, memory)
    trace = planner.simulate(graph, evaluator.schedule(ops), memory=memory)
    return trace.cost, trace.peak_bytes, float(evaluator.encoded.arrays.cost[evaluator.keep_all].sum())


def verdict(plan: KnownPlan, graph: Graph, budget_bytes: int) -> str:
    """What is wrong with a plan of the file, or ""."""
    if plan.fingerprint != graph.fingerprint:
        return "of another graph"
    if plan.budget_bytes != budget_bytes:
        return f"for {plan.budget_bytes} bytes, not {budget_bytes}"
    try:
        ops = plan.ops()
        if len(ops) and (ops.min() < 0 or ops.max() >= len(graph.ops)):
            return "names ops that are not there"
        cost, peak_bytes, base = judged(graph, ops)
    except PlannerError as error:
        return str(error)
    if peak_bytes > budget_bytes or peak_bytes != plan.peak_bytes:
        return f"peak is {peak_bytes} bytes: {plan.peak_bytes} were claimed, {budget_bytes} are allowed"
    if abs(cost / base - 1 - plan.overhead) > 1e-9 or abs(cost - plan.cost) > 1e-9 * cost:
        return f"overhead is {100 * (cost / base - 1):.4f} %, not {100 * plan.overhead:.4f} %"
    return "changes the order, which is pinned" if plan.pinned and not _in_order(ops) else ""


def _in_order(ops: Ints) -> bool:
    """First runs are in the order of the program."""
    first = list(dict.fromkeys(ops.tolist()))
    return first == sorted(first)
