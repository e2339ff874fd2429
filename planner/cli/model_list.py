"""The models of the zoo as text, without importing one of them; and one model in full."""

from __future__ import annotations

from planner.cli.arguments import ELSEWHERE
from planner.text import aligned, wrapped
from planner.zoo.catalogue import ALIASES, MODELS, Model, Named

_WIDTH = 100


def list_lines(*, width: int | None) -> list[str]:
    """The `zoo` command's answer: how many there are, then names with what each takes, then aliases.

    Args:
        width: of the terminal, in characters.
    """
    wide = width or _WIDTH
    names = aligned([["model", ""], *([name, ""] for name in MODELS)])
    gap = max(map(len, names)) + 4
    lines = [f"{len(MODELS)} models and {len(ALIASES)} aliases; planner zoo NAME shows what one takes"]
    for name, model in MODELS.items():
        text = f"{model.description} {_capital(model.argument)}."
        lines += _hanging(f"  {name}", text, gap=gap, width=wide)
    lines.append("Aliases")
    for alias, stands in ALIASES.items():
        lines += _hanging(f"  {alias}", str(stands), gap=max(map(len, ALIASES)) + 4, width=wide)
    return lines


def model_lines(named: Named, text: str, *, width: int | None) -> list[str]:
    """One model: what it is, what it takes, and how it is planned."""
    model = named.model
    spec = text if named.argument is not None or model.parse is None else f"{named.name}:..."
    alias = "" if named.title is None else f"{named.title} is {ALIASES[named.title]}: "
    needed = " ".join(f"--{ELSEWHERE.get(name, name)} 8" for name in model.required)
    lines = [
        f"{alias}{model.description}",
        f"  Argument: {model.argument}",
        f"  Options of the command: {', '.join(_own(model)) or 'none'}",
        "  Options to write as --option NAME=VALUE",
        *(f"    {typed.example}" for name, typed in model.typed_options.items() if name not in ELSEWHERE),
        f"Next: planner estimate {' '.join([spec, needed]).rstrip()}",
    ]
    return [part for line in lines for part in wrapped(line, width or _WIDTH)]


def _own(model: Model) -> list[str]:
    return [f"--{ELSEWHERE[name]}" for name in model.options if name in ELSEWHERE]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _hanging(head: str, text: str, *, gap: int, width: int) -> list[str]:
    """A name, and its text beside it in lines that begin in one column."""
    parts = wrapped(text, max(width - gap, 20))
    return [f"{head if not place else '':{gap}}{part.strip()}" for place, part in enumerate(parts)]
