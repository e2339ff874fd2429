"""The search of the original: Alg. 3 with memonger's thresholds, guesses and grid, costed by nnvm's shared blocks.

It minimises memory and knows no budget; under a budget its one plan is proposed if it fits.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from planner.analysis.arrays import Flags, Ints
from planner.analysis.candidates import ForwardPart
from planner.analysis.evaluator import Evaluator
from planner.graph import Graph
from planner.mxnet.nnvm import MATCH_RANGE, share_blocks
from planner.problem import Problem, Proposal
from planner.search.incumbent import Incumbent
from planner.units import MAX_BYTES

GUESSES: Final = 3
GRID_POINTS: Final = 6
_SHIFT: Final = 20  # thresholds, kept bytes and segments are rounded down to whole MiB
_VISIBLE_OUTPUTS: Final = {"BatchNorm": 1}  # the original does not list its mean and variance
_BACKWARD: Final = "_backward"  # suffix of a backward op to the name of its forward op


class Trial(NamedTuple):
    """One threshold.

    Args:
        phase: "guess" or "grid".
        threshold_mib: B.
        kept_bytes: x, bytes of the candidates kept.
        segment_bytes: y, bytes of the largest closed segment.
        cost_bytes: sum of nnvm's blocks of the planned schedule; `MAX_BYTES` if the schedule is illegal.
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
    Source: dmlc/mxnet-memonger. It differs from Chen et al. 2016, Alg. 3 and appendix A: the guess is sqrt(x y / 2),
        there are three, all in whole MiB, and the grid starts from the smallest y. Ours differs: peaks are judged
        exactly, and keep-all is proposed if it is no worse.
    """
    incumbent = Incumbent(problem, "memonger")
    found = search_thresholds(problem.graph, incumbent.evaluator)
    if found:
        best = min(found, key=lambda trial: trial.cost_bytes >> _SHIFT)
        incumbent.evaluate(best.threshold_mib, lambda: planned_sequence(incumbent.evaluator, best.keep))
    return incumbent.proposal()


def search_thresholds(graph: Graph, evaluator: Evaluator) -> list[Trial]:
    """All trials in the order of the original; none if the graph has no forward and backward phases.

    Source: `search_plan` of memonger.
    """
    part = evaluator.forward_part()
    if part is None:
        return []
    trials: list[Trial] = []
    threshold = 0
    for _ in range(GUESSES):
        trial = _try(graph, evaluator, part, "guess", threshold)
        trials.append(trial)
        threshold = math.isqrt((trial.kept_bytes >> _SHIFT) * (trial.segment_bytes >> _SHIFT) // 2)
    least_segment = min(trial.segment_bytes for trial in trials) >> _SHIFT
    step = int((threshold * math.sqrt(2) - least_segment) / GRID_POINTS)
    grid = [least_segment + k * step for k in range(1, GRID_POINTS + 1)] if step > 0 else []
    return trials + [_try(graph, evaluator, part, "grid", threshold) for threshold in grid]


def planned_sequence(evaluator: Evaluator, keep: Flags) -> Ints:
    """Op rows of the plan that runs every droppable op not kept a second time."""
    part = evaluator.forward_part()
    assert part is not None
    counts = np.where(part.droppable & ~keep, 1, 0)
    rows = evaluator.encoded.op_index
    partners = (rows.get(name.removesuffix(_BACKWARD), -1) if name.endswith(_BACKWARD) else -1 for name in rows)
    gradient_of = np.fromiter(partners, dtype=np.int64)
    return evaluator.just_in_time(counts, part.origin, gradient_of)


def _try(graph: Graph, evaluator: Evaluator, part: ForwardPart, phase: str, threshold_mib: int) -> Trial:
    keep, kept_bytes, segment_bytes = sweep(graph, evaluator, part, threshold_mib << _SHIFT)
    planned = planned_sequence(evaluator, keep)
    cost_bytes = MAX_BYTES  # illegal if an op would run again after an update; the original has no such programs
    if evaluator.evaluate(planned) is not None:
        cost_bytes = share_blocks(evaluator, planned, match_range=MATCH_RANGE, first_outputs=True).total_bytes
    return Trial(phase, threshold_mib, kept_bytes, segment_bytes, cost_bytes, keep)


def sweep(graph: Graph, evaluator: Evaluator, part: ForwardPart, threshold_bytes: int) -> tuple[Flags, int, int]:
    """Alg. 3 as memonger has it: all values of the forward part and the inputs count, parameters do not.

    Returns:
        keep [n], x and y in bytes; y ignores the last segment, which is never closed.
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
    """The id of the decision that each candidate op belongs to."""
    marked = [(row, op.stage) for row, op in enumerate(graph.ops) if op.stage is not None]
    if not marked:
        return {row: f"cut {cut}" for cut, members in enumerate(part.members) for row in members}
    return {row: f"row {row}" if stage is True else f"id {stage}" for row, stage in marked}
