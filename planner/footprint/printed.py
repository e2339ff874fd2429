"""A footprint as text: one row per component, one column per phase; and rows per batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from planner.footprint.components import COMPONENTS, Iteration
from planner.text import fitting, printable
from planner.training_step import TrainingStep
from planner.units import format_bytes

if TYPE_CHECKING:
    from planner.footprint.estimate import Advice, Footprint

    Row = tuple[int | None, Footprint, tuple[Advice, ...]]  # batch, its footprint, and a verdict for each device named

_CALLED = {"loss_tail": "logits and loss"}
_SHORT = {"fits": "yes", "barely": "barely", "does not fit": "no"}
_BATCH_COLUMNS = ("parameters", "gradients", "optimizer_state", "activations", "loss_tail")


def as_lines(
    rows: Sequence[Row],
    *,
    devices: Sequence[str],
    most: Mapping[str, int],
    overhead: float | None,
    width: int | None = None,
) -> list[str]:
    """The `estimate` command's answer: verdicts first, then one footprint in full, or a row for each batch.

    Args:
        width: characters of a line of a table at most; None: all columns.
    """
    told = list(_verdicts(rows, devices=devices, most=most, overhead=overhead))
    if len(rows) == 1:
        return [*told, as_text(rows[0][1], width=width)]
    if not told:
        ends = " to ".join(
            f"{format_bytes(found.peak_bytes)} at batch {batch}" for batch, found, _ in (rows[0], rows[-1])
        )
        told = [f"Peak {ends}"]
    where = "Right of the phase: what is held at the moment of the peak"
    return [*told, printable(rows[0][1].graph), *batch_table(rows, devices=devices, width=width), f"  {where}"]


def _verdicts(
    rows: Sequence[Row], *, devices: Sequence[str], most: Mapping[str, int], overhead: float | None
) -> Iterator[str]:
    """What fits each device, and what would help where it does not; then the largest batches, if asked for."""
    for k, device in enumerate(devices):
        batch, _, verdicts = next((row for row in rows if not row[2][k].fits), rows[0])
        if len(rows) == 1 or not verdicts[k].fits:
            yield f"{'' if batch is None else f'Batch {batch}: '}{verdicts[k]}"
        else:
            yield f"Fits {device} at every batch asked for"
    if "largest_batch" in most:
        yield f"Largest batch that fits {devices[0]}: {most['largest_batch']}"
    if "largest_batch_planned" in most and overhead is not None:
        yield f"With a plan that costs at most {overhead:.0%} more: {most['largest_batch_planned']}"


def as_object(batch: int | None, found: Footprint, verdicts: tuple[Advice, ...]) -> dict[str, Any]:
    """One row for JSON: whether it fits every device named, the advice on the first, and that on each."""
    row = {"batch": batch, "peak_bytes": found.peak_bytes, "needed_bytes": found.needed_bytes, "phase": found.phase}
    fits, first = (all(advice.fits for advice in verdicts), verdicts[0]) if verdicts else (None, None)
    verdict = {"fits": fits, "advice": first, "verdicts": verdicts}
    content = {**msgspec.to_builtins(found), **msgspec.to_builtins(found.step or TrainingStep())}
    return {**row, "components": found.components, **verdict, "footprint": content}


def as_records(rows: Sequence[Row], *, devices: Sequence[str]) -> list[dict[str, object]]:
    """One record for each batch, with exact bytes and the verdict on each device, as a table of a file."""
    return [
        {
            "batch": batch,
            "peak_bytes": found.peak_bytes,
            "needed_bytes": found.needed_bytes,
            "phase": found.phase,
            "op": found.peak.op,
            **{f"{component}_bytes": nbytes for component, nbytes in found.components.items()},
            "lower_bound_bytes": found.floor_bytes,
            **{f"fits {device}": advice.verdict for device, advice in zip(devices, verdicts, strict=True)},
        }
        for batch, found, verdicts in rows
    ]


def as_text(found: Footprint, *, width: int | None = None) -> str:
    """The `estimate` command's answer for one graph, and `str(Footprint)`.

    Args:
        width: characters of a line of the table at most; None: all columns.
    """
    peak = found.peak
    micro = "" if found.micro_batch is None else f" of the {found.micro_batch} micro-batch"
    where = f"phase {peak.phase}{micro}, op {peak.op} · {found.worst.name} iterations · scope {found.memory.scope}"
    lines = [f"Peak {format_bytes(peak.peak_bytes)} in {where}"]
    lines.append(f"{found.graph} · {found.parameters:,} parameters · {_options(found)}")
    if found.calibration is not None:
        lines.append(
            f"  Calibrated: {found.calibration} = {format_bytes(found.calibration.needed_bytes(peak.peak_bytes))}"
        )
    lines += _table(found.later, width=width)
    first, later = found.first, found.later
    if first.peak.peak_bytes != later.peak.peak_bytes or first.phases != later.phases:
        lines.append(f"  First iteration: {_sizes((moment.phase, moment.peak_bytes) for moment in first.phases)}")
    if peak.live:
        lines.append(f"  Largest at the peak: {_sizes(peak.live[:4])}")
    for kind, sizes in found.by_dtype.items():
        if len(sizes) > 1:
            lines.append(f"  {_words(kind)} by dtype: {_sizes(sizes.items())}")
    where = f"phase {found.floor_phase}" + (f", op {found.floor_op}" if found.floor_op else "")
    lines.append(f"  Lower bound on memory: no plan's peak is below {format_bytes(found.floor_bytes)} ({where})")
    if found.copies is not None:
        lines.append(f"  {found.copies}")
    if found.rule is not None:
        rule = found.rule
        parts = [
            f"{rule.factor} x parameters {format_bytes(rule.parameters_bytes)}",
            f"{2 if rule.factor > 1 else 1} x activations {format_bytes(rule.activations_bytes)}",
            f"inputs {format_bytes(rule.inputs_bytes)}",
            *([f"im2col {format_bytes(rule.lowering_bytes)}"] if rule.lowering_bytes else []),
        ]
        lines.append(f"  Rule of thumb ({rule.name}): {format_bytes(rule.total_bytes)} = {' + '.join(parts)}")
    lines.append(f"  Not counted: {', '.join(found.not_counted)}")
    return "\n".join(map(printable, lines))


def batch_table(rows: Sequence[Row], *, devices: Sequence[str], width: int | None = None) -> list[str]:
    """Rows for several batches, with a column for each device that says what fits it."""
    cells = [_batch_cells(*row, devices) for row in rows]
    less_wanted = ("logits and loss", "optimizer", "phase", "gradients", "parameters", "activations")
    return _indented([list(cells[0]), *(list(row.values()) for row in cells)], width=width, less_wanted=less_wanted)


def _batch_cells(
    batch: int | None, found: Footprint, verdicts: tuple[Advice, ...], devices: Sequence[str]
) -> dict[str, str]:
    """One row of the table, by heading."""
    cells = {"batch": str(batch or "-"), "peak": format_bytes(found.peak_bytes)}
    if found.calibration is not None:
        cells["calibrated"] = format_bytes(found.calibration.needed_bytes(found.peak_bytes))
    cells["phase"] = found.phase
    for component in _BATCH_COLUMNS:
        cells[_words(component.removesuffix("_state"))] = format_bytes(found.components[component])
    if found.rule is not None:
        cells["rule of thumb"] = format_bytes(found.rule.total_bytes)
    return cells | {f"fits {device}": _SHORT[advice.verdict] for device, advice in zip(devices, verdicts, strict=True)}


def _table(iteration: Iteration, *, width: int | None) -> list[str]:
    moments = iteration.phases
    cells = [["at the peak of", *(moment.phase for moment in moments), "ever"]]
    for component in COMPONENTS:
        if most := iteration.most[component]:
            sizes = [*(moment.components[component] for moment in moments), most]
            cells.append([_words(component), *map(format_bytes, sizes)])
    peaks = [*(moment.peak_bytes for moment in moments), iteration.peak.peak_bytes]
    rows = [*cells, ["peak", *map(format_bytes, peaks)]]
    return _indented(rows, width=width, less_wanted=("loss", "update", "forward"))


def _indented(cells: list[list[str]], *, width: int | None, less_wanted: Sequence[str]) -> list[str]:
    """A table, and a line that says which columns were left out for the width."""
    lines, hidden = fitting(cells, width=None if width is None else width - 2, less_wanted=less_wanted)
    left_out = [f"Left out in {width} columns: {', '.join(hidden)}; --json has all"] if hidden else []
    return [f"  {line}" for line in (*lines, *left_out)]


def _sizes(sized: Iterable[tuple[str, int]]) -> str:
    """Pairs of a name and bytes, with commas between."""
    return ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in sized)


def _words(component: str) -> str:
    return _CALLED.get(component, component.replace("_", " "))


def _options(found: Footprint) -> str:
    said = ["training" if found.training else "inference", *([] if found.step is None else str(found.step).split(", "))]
    return " · ".join(said)
