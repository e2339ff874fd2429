"""A footprint as text: one row per component, one column per phase; and rows per batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

from planner.footprint.components import COMPONENTS, Iteration
from planner.footprint.estimate import Footprint
from planner.text import printable
from planner.units import format_bytes

Row = tuple[Optional[int], Footprint, Optional[bool]]  # batch, footprint, and whether it fits a device that was named


def as_lines(rows: Sequence[Row], *, device: str | None, most: Mapping[str, int], overhead: float | None) -> list[str]:
    """The `estimate` command's answer: one footprint in full, or a row for each of several batches."""
    lines = (
        [as_text(rows[0][1])] if len(rows) == 1 else [printable(rows[0][1].graph), *batch_table(rows, device=device)]
    )
    if device is not None:
        batch, found, fits = rows[0] if len(rows) == 1 else next((row for row in rows if not row[2]), rows[0])
        if not fits or len(rows) == 1:
            lines.append(f"  {'' if batch is None else f'Batch {batch}: '}{found.advice(device)}")
    if "largest_batch" in most:
        lines.append(f"  Largest batch that fits {device}: {most['largest_batch']}")
    if "largest_batch_planned" in most and overhead is not None:
        lines.append(f"  With a plan that costs at most {overhead:.0%} more: {most['largest_batch_planned']}")
    return lines


def as_object(batch: int | None, found: Footprint, fits: bool | None, *, device: str | None) -> dict[str, Any]:
    """One row for JSON."""
    row = {"batch": batch, "peak_bytes": found.peak_bytes, "needed_bytes": found.needed_bytes, "phase": found.phase}
    advice = None if device is None else found.advice(device)
    return {**row, "components": found.components, "fits": fits, "advice": advice, "footprint": found}


def as_text(found: Footprint) -> str:
    """The `estimate` command's answer for one graph, and `str(Footprint)`."""
    peak = found.peak
    lines = [
        f"{found.graph} · {found.parameters:,} parameters ·"
        f" {'training' if found.training else 'inference'}{_options(found)}",
        f"  Peak {format_bytes(peak.peak_bytes)} ({peak.peak_bytes} bytes) in phase {peak.phase}, op {peak.op}"
        f" · {found.worst.name} iterations · scope {found.memory.scope}",
    ]
    if found.calibration is not None:
        by_it = found.calibration.needed_bytes(peak.peak_bytes)
        lines.append(f"  Calibrated: {found.calibration} = {format_bytes(by_it)} ({by_it} bytes)")
    lines += _table(found.later)
    first = found.first
    if first.peak.peak_bytes != found.later.peak.peak_bytes or first.phases != found.later.phases:
        lines.append(
            "  First iteration:"
            f" {'; '.join(f'{moment.phase} {format_bytes(moment.peak_bytes)}' for moment in first.phases)}"
        )
    if peak.live:
        lines.append(
            "  Largest at the peak: " + ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in peak.live[:4])
        )
    for kind, sizes in found.by_dtype.items():
        if len(sizes) > 1:
            lines.append(
                f"  {_words(kind)} by dtype: "
                + ", ".join(f"{dtype} {format_bytes(nbytes)}" for dtype, nbytes in sizes.items())
            )
    where = f" (phase {found.floor_phase}{f', op {found.floor_op}' if found.floor_op else ''})"
    lines.append(f"  No recomputation goes below: {format_bytes(found.floor_bytes)}{where}")
    if found.rule is not None:
        rule = found.rule
        doubled = 2 if rule.factor > 1 else 1
        extra = f" + im2col {format_bytes(rule.lowering_bytes)}" if rule.lowering_bytes else ""
        lines.append(
            f"  Rule of thumb ({rule.name}): {format_bytes(rule.total_bytes)}"
            f" = {rule.factor} x parameters {format_bytes(rule.parameters_bytes)}"
            f" + {doubled} x activations {format_bytes(rule.activations_bytes)} + inputs"
            f" {format_bytes(rule.inputs_bytes)}{extra}"
        )
    lines.append(f"  Not counted: {', '.join(found.not_counted)}")
    return "\n".join(map(printable, lines))


def batch_table(rows: Sequence[Row], *, device: str | None) -> list[str]:
    """Rows for several batches, with a column that says what fits."""
    calibrated = any(found.calibration is not None for _, found, _ in rows)
    headings = ["batch", "peak", *(["calibrated"] if calibrated else []), "phase"]
    headings += ["parameters", "gradients", "optimizer", "activations", "loss tail"]
    ruled = any(found.rule is not None for _, found, _ in rows)
    headings += ["rule of thumb"] if ruled else []
    cells = [headings + ([f"fits {device}"] if device else [])]
    for batch, found, fits in rows:
        shown = [
            found.components[name]
            for name in ("parameters", "gradients", "optimizer_state", "activations", "loss_tail")
        ]
        rule = [format_bytes(found.rule.total_bytes)] if found.rule is not None else []
        verdict = [] if fits is None else ["yes" if fits else "no"]
        by_it = [] if found.calibration is None else [format_bytes(found.calibration.needed_bytes(found.peak_bytes))]
        cells.append(
            [
                str(batch or "-"),
                format_bytes(found.peak_bytes),
                *by_it,
                found.phase,
                *map(format_bytes, shown),
                *rule,
                *verdict,
            ]
        )
    return _aligned(cells)


def _table(iteration: Iteration) -> list[str]:
    cells = [["", *(moment.phase for moment in iteration.phases), "most"]]
    for component in COMPONENTS:
        if iteration.most[component]:
            sizes = [moment.components[component] for moment in iteration.phases]
            cells.append([_words(component), *map(format_bytes, sizes), format_bytes(iteration.most[component])])
    cells.append(
        [
            "peak",
            *(format_bytes(moment.peak_bytes) for moment in iteration.phases),
            format_bytes(iteration.peak.peak_bytes),
        ]
    )
    return _aligned(cells)


def _aligned(cells: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        first, *others = zip(row, widths, strict=True)
        lines.append("  ".join(["", first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip())
    return lines


def _words(component: str) -> str:
    return component.replace("_", " ")


def _options(found: Footprint) -> str:
    said = [found.optimizer, found.update and f"{found.update} update"]
    said += [f"{found.micro_batches} micro-batches" if found.micro_batches > 1 else None]
    said += [
        "gradients zeroed" if found.gradients == "zeroed" else None,
        "master weights" if found.master_weights else None,
    ]
    return "".join(f" · {word}" for word in said if word)
