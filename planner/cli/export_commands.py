"""Commands that write a plan for people's eyes, and for the tools people have."""

from __future__ import annotations

import click
from click import option

from planner.cli.console import check_file_or_stream, check_output, print_bytes, print_json, print_lines, shown
from planner.cli.options import FORCE, JSON, PLAN_ARGUMENT, Word, options_of
from planner.cli.progress import phase

_REPORT = (
    option("-o", "--output", metavar="FILE", required=True, help="Write .html, .svg, .png or .pdf."),
    option("--figure", type=Word("timeline", "arena", "recomputation"), default="timeline", show_default=True,
           help="Of .svg, .png and .pdf: memory over time, where every buffer lies, or which ops run again when."),
    option("--explain", "explained", type=click.IntRange(min=0), default=0, metavar="N",
           help="Of .html: what the other decision would cost for the N largest tensors at the peak; each takes as long"
                " as the plan did."),
    option("--effort", type=float, metavar="E",
           help="Of --explain: of each of these searches. [the plan's, so that costs compare]"),
    option("--curve", metavar="FILE", help="Of .html: show this trade-off too, as curve -o curve.json writes it."),
)  # fmt: skip
_EXPORT = (
    option("--to", "form", type=Word("csv", "perfetto", "torch-snapshot"), required=True,
           help="csv: a line a buffer, which pack reads; perfetto: for ui.perfetto.dev and chrome://tracing;"
                " torch-snapshot: for pytorch.org/memory_viz."),
    option("-o", "--output", metavar="FILE", required=True, help="Write it here; - is standard output."),
)  # fmt: skip


@click.command(epilog="Example: planner report plan.json -o plan.html")
@PLAN_ARGUMENT
@options_of(_REPORT, FORCE, JSON)
def report(
    plan: str,
    output: str,
    figure: str,
    explained: int,
    effort: float | None,
    curve: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Draw a plan: a page to search and click on, or memory over time, the arena, what runs again."""
    from planner.views.plan_files import PICTURES, check_suffix, content_of

    suffix = check_suffix(output, allowed=(".html", *PICTURES))
    if suffix != ".html" and (explained or curve is not None):
        raise click.UsageError(f"--explain and --curve are for .html, not {suffix}")
    if effort is not None and not explained:
        raise click.UsageError("--effort is of the searches of --explain N; give both")
    check_output(output, force=force)
    from planner.api import load
    from planner.files import write_whole

    loaded = load(plan)
    if suffix == ".html":
        from planner.planning.curve import load_curve
        from planner.views.page import largest_at_peak, page

        with phase("planning again with other decisions"):
            largest = largest_at_peak(loaded, explained)
            with_effort = f"Planned again with effort {loaded.effort if effort is None else effort:g}."
            said = {value: (*loaded.explain(value, effort=effort).lines, with_effort) for value in largest}
        drawn = None if curve is None else load_curve(curve)
        content = page(loaded, curve=drawn, explained=said, plan_file=plan)
    else:
        content = content_of(loaded, suffix, figure=figure)
    write_whole(output, content)
    _say_written(plan, output, form="page" if suffix == ".html" else figure, as_json=as_json)


@click.command(epilog="Example: planner export plan.json --to perfetto -o plan.trace.json")
@PLAN_ARGUMENT
@options_of(_EXPORT, FORCE, JSON)
def export(plan: str, form: str, output: str, force: bool, as_json: bool) -> None:
    """Write a plan for other tools: a CSV table, a Chrome trace, or a snapshot for PyTorch's memory viewer."""
    check_file_or_stream(output, force=force, as_json=as_json)
    from planner.files import write_whole
    from planner.plan import load
    from planner.views.exports import EXPORTS

    content = EXPORTS[form](load(plan))
    if output == "-":
        print_bytes(content)
        return
    write_whole(output, content)
    _say_written(plan, output, form=form, as_json=as_json)


def _say_written(plan: str, output: str, *, form: str, as_json: bool) -> None:
    if as_json:
        print_json("planner-file", {"plan_file": shown(plan), "form": form, "file": shown(output)})
    else:
        print_lines(f"Saved to {output}")
