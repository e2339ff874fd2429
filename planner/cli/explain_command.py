"""The command that answers why."""

from __future__ import annotations

import click
from click import option

from planner.cli.console import print_answer, print_json
from planner.cli.options import JSON, PLAN_ARGUMENT, options_of
from planner.cli.progress import phase

_EXPLAIN = (
    option("--effort", type=float, metavar="E",
           help="Of the search that forces the other decision. [the plan's, so that costs compare]"),
    option("--no-search", is_flag=True, help="Say what is; leave out what is found by planning again."),
    option("--against", metavar="PLAN", help="Instead: what that plan of the same graph does differently."),
)  # fmt: skip


@click.command(epilog="Example: planner explain plan.json stage1.block1.conv1")
@PLAN_ARGUMENT
@click.argument("subject", required=False)
@options_of(_EXPLAIN, JSON)
def explain(
    plan: str, subject: str | None, effort: float | None, no_search: bool, against: str | None, as_json: bool
) -> None:
    """Say why a plan keeps or recomputes SUBJECT (a value, an op or a module), or what its peak is made of."""
    if against is not None and (subject is not None or no_search or effort is not None):
        raise click.UsageError("--against compares two whole plans; give it alone")
    from planner.api import load

    loaded = load(plan)
    if against is not None:
        difference = loaded.diff(load(against))
        if as_json:
            print_json("planner-difference", {"difference": difference})
        else:
            print_answer(str(difference))
        return
    with phase("planning again with the other decision"):
        found = loaded.explain(subject, search=not no_search, effort=effort)
    if as_json:
        print_json("planner-explanation", {"explanation": found})
    else:
        print_answer(str(found))
