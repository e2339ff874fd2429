"""python -m bench SUITE [-o FOLDER] | table RESULTS... | figure RESULTS -o FILE | compare OLD NEW | readme"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.results import Results, load
from planner.errors import PlannerError
from planner.files import write_whole

if TYPE_CHECKING:
    from bench.known import BestKnown
    from bench.measure import Case, Size

FOLDER = Path(__file__).parent
FIGURES = ("resnet",)
BEST_KNOWN = FOLDER / "results" / "best_known.json"


class _Commands(click.Group):
    """A wrong file is one line on stderr and exit code 3, as with `planner`."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except PlannerError as error:
            click.echo(f"error: {error}", err=True)
            context.exit(3)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """What the planner finds and how long it takes. See bench/README.md."""


def _suite_command(name: str, description: str) -> click.Command:
    @click.command(name, help=description)
    @click.option(
        "-o", "--output", type=click.Path(file_okay=False, path_type=Path), help="Folder for JSON, Markdown and figure."
    )
    @click.option("--quick", is_flag=True, help="A few small cases, in seconds.")
    @click.option("--slow", is_flag=True, help="Also the cases that take minutes.")
    @click.option(
        "--repeat", type=click.IntRange(min=1), default=1, show_default=True, help="Runs; the least CPU counts."
    )
    def command(output: Path | None, quick: bool, slow: bool, repeat: int, check_best: bool = False) -> None:
        from bench import known
        from bench.cases import SUITES
        from bench.run import run
        from bench.tables import table

        if quick and slow:
            raise click.UsageError("--quick and --slow exclude each other")
        if check_best:
            raise SystemExit(_check_best(known.load(BEST_KNOWN), SUITES[name].cases))
        best = known.load(BEST_KNOWN) if BEST_KNOWN.is_file() else known.BestKnown()
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
        with _progress() as progress:
            size: Size = "quick" if quick else "slow" if slow else "normal"
            found = run(SUITES[name], size=size, repeat=repeat, progress=progress, known=best)
        click.echo(table(found), nl=False)
        if output is not None:
            _write(found, output)
            if name == "remat":
                best.save(output / BEST_KNOWN.name)

    if name == "remat":
        click.option("--check-best", is_flag=True, help="Judge the best known plans again, and do nothing else.")(
            command
        )
    return command


def _check_best(known: BestKnown, cases: tuple[Case, ...]) -> int:
    """One line a plan; 1 if any does not hold."""
    from bench.overheads import Overheads, judged_again

    wrong, ours = 0, [case for case in cases if isinstance(case, Overheads)]
    gone = known.plans.keys() - {case.case(aim) for case in ours for aim in case.aims}
    for case, why in (*judged_again(known, ours), *((case, "no case of this suite") for case in sorted(gone))):
        plan = known.plans.get(case)
        claim = "" if plan is None else f"+{100 * plan.overhead:.4f} % by {plan.found_by}"
        click.echo(f"{case}: {claim}: {why or 'holds'}")
        wrong += bool(why)
    return int(wrong > 0)


@contextmanager
def _progress() -> Iterator[Any]:
    """A bar on stderr, and only on a terminal."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    rows, what = TextColumn("{task.fields[rows]} rows"), TextColumn("{task.description}")
    columns = (BarColumn(), MofNCompleteColumn(), rows, TimeElapsedColumn(), what)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, rows=0)
        yield lambda done, total, rows, what: bar.update(task, completed=done, total=total, rows=rows, description=what)


def _write(found: Results, folder: Path) -> None:
    from bench.tables import table

    found.save(folder / f"{found.suite}.json")
    write_whole(folder / f"{found.suite}.md", f"# {found.suite}\n\n{table(found)}".encode())
    if found.suite in FIGURES:
        _draw(found, folder / f"{found.suite}.svg", folder / f"{found.suite}.png")


def _draw(found: Results, *paths: Path) -> None:
    from bench.figures import rendered, small_multiples

    figure = small_multiples(found)
    for path in paths:
        write_whole(path, rendered(figure, path.suffix))


_results = click.argument("results", type=click.Path(dir_okay=False, path_type=Path), nargs=-1, required=True)


@main.command("table")
@_results
def print_table(results: tuple[Path, ...]) -> None:
    """Results files as Markdown."""
    from bench.tables import table

    click.echo("\n".join(table(load(path)) for path in results if path.name != BEST_KNOWN.name), nl=False)


@main.command()
@click.argument("results", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="A .svg or .png file."
)
def figure(results: Path, output: Path) -> None:
    """Overhead against arena, one panel a graph."""
    if output.suffix not in (".svg", ".png"):
        raise click.UsageError(f"cannot draw {str(output)!r}: end the name with .svg or .png")
    _draw(load(results), output)


@main.command()
@click.argument("old", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("new", type=click.Path(dir_okay=False, path_type=Path))
def compare(old: Path, new: Path) -> None:
    """Ratios of two runs of a suite; exit code 1 if anything got worse."""
    from bench.tables import changes, comparison, regressions

    before, after = load(old), load(new)
    if before.suite != after.suite:
        raise click.UsageError(f"{str(old)!r} is of suite {before.suite!r}, {str(new)!r} of {after.suite!r}")
    click.echo(comparison(before, after), nl=False)
    raise SystemExit(1 if regressions(changes(before, after)) else 0)


@main.command()
def readme() -> None:
    """Put the tables of bench/results into bench/README.md, between its marks."""
    from bench.tables import table

    path = FOLDER / "README.md"
    text = path.read_text()
    for results in sorted((FOLDER / "results").glob("*.json")):
        begin, end = f"<!-- results: {results.stem} -->", f"<!-- end: {results.stem} -->"
        if begin in text and end in text:
            text = f"{text[: text.index(begin)]}{begin}\n\n{table(load(results))}\n{text[text.index(end) :]}"
    write_whole(path, text.encode())


@main.command()
@click.argument("families", nargs=-1)
@click.option("--small", is_flag=True, help="The sizes of the tests, in minutes; else those that were published.")
@click.option(
    "--packages", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of installed packages."
)
def importers(families: tuple[str, ...], small: bool, packages: Path | None) -> None:
    """Exports of PyTorch, and files in packages of others, as the importer reads them."""
    import tempfile

    from bench import importers as bench

    if unknown := set(families) - bench.FAMILIES.keys():
        raise click.UsageError(f"no family {', '.join(sorted(unknown))}; there are {', '.join(bench.FAMILIES)}")
    click.echo(bench.EXPORTS_HEAD)
    with tempfile.TemporaryDirectory() as folder:
        for row in bench.export_rows(families or bench.FAMILIES, Path(folder), published=not small):
            click.echo(row)
    if packages is not None:
        click.echo(f"\n{bench.OTHERS_HEAD}")
        for row in bench.other_rows(packages):
            click.echo(row)


def _suites() -> None:
    from bench.cases import SUITES

    for suite in SUITES.values():
        main.add_command(_suite_command(suite.name, suite.description))


_suites()

if __name__ == "__main__":
    main(prog_name="python -m bench")
