"""The original's own search, for parity: Alg. 3 with memonger's thresholds, guesses and grid, costed by nnvm's sharing.

It minimises memory and knows no budget; ours asks it all the same, and says so where its one plan does not fit.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from planner.analysis.arrays import Flags, Ints
from planner.analysis.candidates import ForwardPart
from planner.analysis.evaluator import Evaluator
from planner.graph import Graph
from planner.kernels.segments import recompute
from planner.mxnet.nnvm import MATCH_RANGE, share_blocks
from planner.problem import Problem, Proposal
from planner.search.incumbent import Incumbent
from planner.units import MAX_BYTES

GUESSES: Final = 3
GRID_POINTS: Final = 6
_SHIFT: Final = 20  # thresholds, kept and segment sizes are whole MiB, rounded down
_VISIBLE_OUTPUTS: Final = {"BatchNorm": 1}  # the original lists neither its mean nor its variance
_BACKWARD: Final = "_backward"  # what the original adds to the name of a forward op


class Trial(NamedTuple):
    """One threshold.

    Args:
        phase: "guess" or "grid".
        threshold_mib: B.
        kept_bytes: x, bytes of the candidates kept.
        segment_bytes: y, bytes of the largest closed segment.
        cost_bytes: sum of nnvm's blocks of the planned schedule; `MAX_BYTES` where that is illegal.
        keep [n]: ops whose values are kept.
    """

    phase: str
    threshold_mib: int
    kept_bytes: int
    segment_bytes: int
    cost_bytes: int
    keep: Flags


def memonger(problem: Problem) -> Proposal:
    """The plan of least nnvm memory over three guessed thresholds and up to six grid points.

    Every droppable op that is not kept is recomputed, the last segment too. Candidates are the graph's `stage` marks,
    as the original asks its user to set them; a graph without marks is cut at its articulation storages.

    Raises:
        InfeasibleBudget: neither that plan nor keep-all fits.
    Source: dmlc/mxnet-memonger, which differs from Chen et al. 2016, Alg. 3 and appendix A: the guess is sqrt(x y / 2),
    there are three,
        all in whole MiB, and the grid starts from the smallest y. Ours differs: its peak is judged exactly, and
            keep-all is proposed
        where it is no worse.
    """
    incumbent = Incumbent(problem, "memonger")
    found = search_thresholds(problem.graph, incumbent.evaluator)
    if found:
        best = min(found, key=lambda trial: trial.cost_bytes >> _SHIFT)
        incumbent.evaluate(best.threshold_mib, lambda: planned_sequence(incumbent.evaluator, best.keep))
    return incumbent.proposal()


def search_thresholds(graph: Graph, evaluator: Evaluator) -> list[Trial]:
    """All trials in the order the original makes them; none where the graph has no forward and backward phases.

    Source: `search_plan` of memonger.
    """
    part = evaluator.forward_part()
    if part is None:
        return []
    incumbent: list[Trial] = []
    threshold = 0
    least_segment: int | None = None
    for _ in range(GUESSES):
        trial = _try(graph, evaluator, part, "guess", threshold)
        incumbent.append(trial)
        kept, segment = trial.kept_bytes >> _SHIFT, trial.segment_bytes >> _SHIFT
        least_segment = segment if least_segment is None else min(least_segment, segment)
        threshold = math.isqrt(kept * segment // 2)
    assert least_segment is not None
    step = int((threshold * math.sqrt(2) - least_segment) / GRID_POINTS)
    if step > 0:
        incumbent.extend(
            _try(graph, evaluator, part, "grid", least_segment + k * step) for k in range(1, GRID_POINTS + 1)
        )
    return incumbent


def planned_sequence(evaluator: Evaluator, keep: Flags) -> Ints:
    """Op rows of the plan that runs every droppable op not kept a second time."""
    part = evaluator.forward_part()
    assert part is not None
    counts = np.where(part.droppable & ~keep, 1, 0)
    rows = evaluator.encoded.op_index
    partners = (rows.get(name.removesuffix(_BACKWARD), -1) if name.endswith(_BACKWARD) else -1 for name in rows)
    gradient_of = np.fromiter(partners, dtype=np.int64)
    sequence = np.empty(len(evaluator.keep_all) + int(counts.sum()), dtype=np.int64)
    length = recompute(evaluator.encoded.arrays, evaluator.keep_all, counts, part.origin, gradient_of, sequence)
    return sequence[:length]


def _try(graph: Graph, evaluator: Evaluator, part: ForwardPart, phase: str, threshold_mib: int) -> Trial:
    keep, kept_bytes, segment_bytes = sweep(graph, evaluator, part, threshold_mib << _SHIFT)
    planned = planned_sequence(evaluator, keep)
    if evaluator.evaluate(planned) is None:  # an update before its time: the original knows no such programs
        return Trial(phase, threshold_mib, kept_bytes, segment_bytes, MAX_BYTES, keep)
    cost_bytes = share_blocks(evaluator, planned, match_range=MATCH_RANGE, first_outputs=True).total_bytes
    return Trial(phase, threshold_mib, kept_bytes, segment_bytes, cost_bytes, keep)


def sweep(graph: Graph, evaluator: Evaluator, part: ForwardPart, threshold_bytes: int) -> tuple[Flags, int, int]:
    """Alg. 3 as memonger has it: parameters apart, everything up to the end of the forward part counts into a segment,
    inputs too.

    Returns:
        keep [n], x and y in bytes. The last segment is never closed, so y ignores it.
    """
    stage_of = _stages(graph, part)
    keep = np.zeros(len(graph.ops), dtype=np.bool_)
    last_forward = int(np.flatnonzero(part.origin)[-1])
    kept_bytes = segment_bytes = since = 0
    last_stage: str | None = None
    closed = False
    for row, op in enumerate(graph.ops[: last_forward + 1]):
        if op.kind == "parameter" or not (op.resident or part.origin[row]):
            continue
        for tensor in op.outputs[: _VISIBLE_OUTPUTS.get(op.op or "", len(op.outputs))]:
            since += tensor.nbytes
            stage = stage_of.get(row)
            if stage is None:
                continue
            if stage != last_stage:
                last_stage = stage
                closed = since > threshold_bytes
                if closed:
                    segment_bytes = max(segment_bytes, since)
                    since = 0
            if closed:
                keep[row] = True
                kept_bytes += tensor.nbytes
    return keep, kept_bytes, segment_bytes


def _stages(graph: Graph, part: ForwardPart) -> dict[int, str]:
    """For each candidate op, the id of its decision."""
    stages = {
        row: f"row {row}" if op.stage is True else f"id {op.stage}"
        for row, op in enumerate(graph.ops)
        if op.stage is not None
    }
    if not stages:
        stages = {row: f"cut {cut}" for cut, members in enumerate(part.members) for row in members}
    return stages
