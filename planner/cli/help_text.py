"""How help looks: commands in groups, options in sections, examples to copy. A command is imported when it is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final, NamedTuple

import click

_PLAIN: Final = "Options"
_LAST: Final = "Output and help"


class Listed(NamedTuple):
    """A command in the list of all.

    Args:
        home: its module in this room, whose attribute of the command's name it is.
        summary: what it does, in a line of 80 columns.
    """

    home: str
    summary: str


class Option(click.Option):
    """An option in a section of its command's help."""

    def __init__(self, *names: Any, section: str = _PLAIN, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.section = section


def section(title: str) -> Callable[..., Callable[[Any], Any]]:
    """`click.option` for the options of one section."""
    return partial(click.option, cls=Option, section=title)


#: The options that every command has.
last_section: Final = section(_LAST)


class Command(click.Command):
    """A command whose help has its options in sections, and ends with examples.

    Args:
        examples: whole commands; a test runs each of them, in this order.
    """

    def __init__(self, *names: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.examples = tuple(examples)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                title = getattr(parameter, "section", _LAST if "--help" in parameter.opts else _PLAIN)
                sections.setdefault(title, []).append(record)
        for title in sorted(sections, key=lambda title: (title == _LAST, title != _PLAIN)):
            with formatter.section(title):
                formatter.write_dl(sections[title])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{example}\n")
        super().format_epilog(ctx, formatter)


class Commands(click.Group):
    """All commands, in groups; bare `planner` prints them.

    Args:
        listed: per group its commands by name.
    """

    def __init__(self, *names: Any, listed: Mapping[str, Mapping[str, Listed]], **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.listed = listed

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for group in self.listed.values() for name in group]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        home = next((group[name].home for group in self.listed.values() if name in group), None)
        if home is None:
            return None
        command: click.Command = getattr(import_module(f"planner.cli.{home}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == "version":
            ctx.fail("No such command 'version'; write planner --version")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, group in self.listed.items():
            with formatter.section(title):
                formatter.write_dl([(name, command.summary) for name, command in group.items()])
