"""A file of finished searches: a curve that was interrupted goes on from it where it stopped."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Optional, Union

import msgspec

from planner.errors import OutputError, PlanFileError, ScheduleError, VerificationError
from planner.memory import Allocation
from planner.planning.searches import Answer, Task, ranked
from planner.planning.session import Candidate, Session
from planner.problem import Proposal, Request
from planner.simulator import simulate
from planner.text import shown

FORMAT: Final = "planner-search"
_BEGINS: Final = f'{{"format":"{FORMAT}",'.encode()


class Question(msgspec.Struct, frozen=True):
    """What a curve is asked; the searches of another question may differ from those of this one.

    Args:
        planner: version of this package.
        fingerprint: of the graph.
        budgets: in bytes, or how many.
        strategies: names.
        request: all else.
    """

    planner: str
    fingerprint: str
    budgets: Union[int, tuple[int, ...]]
    strategies: tuple[str, ...]
    request: Request

    @classmethod
    def of(cls, session: Session, *, budgets: int | tuple[int, ...], strategies: tuple[str, ...]) -> Question:
        """The question of a session, asked of these strategies at these budgets."""
        try:
            planner = version("sublinear-planner")
        except PackageNotFoundError:
            planner = "not installed"
        return cls(planner, session.graph.fingerprint, budgets, strategies, session.request)

    def difference(self, other: Question) -> str:
        """What another question asks first that this one does not; empty where they are equal."""
        for name, (mine, its) in self._pairs(other).items():
            if mine != its:
                return f"of another {name}" if name == "graph" else f"of {name} {shown(its)}, not {shown(mine)}"
        return ""

    def _pairs(self, other: Question) -> dict[str, tuple[Any, Any]]:
        """The values of both, by the names that people know."""
        names = {"fingerprint": "graph", "budgets": "budgets", "strategies": "strategies"}
        own = {known: (getattr(self, name), getattr(other, name)) for name, known in names.items()}
        asked = {
            name: (getattr(self.request, name), getattr(other.request, name)) for name in Request.__struct_fields__
        }
        return {**own, **asked}


class _Origin(msgspec.Struct, frozen=True):
    """How a line begins, in whatever version: its other fields are those of its version."""

    format: str
    planner: str


class _Kept(msgspec.Struct, frozen=True):
    """A plan of a search; what it takes is found again when it is read."""

    proposal: Proposal
    allocation: Optional[Allocation]


class _Line(msgspec.Struct, frozen=True):
    """A finished search."""

    format: str
    planner: str
    question: Question
    strategy: str
    budget: Optional[int]
    effort: float
    plans: tuple[_Kept, ...]

    @property
    def task(self) -> Task:
        return Task(self.strategy, self.budget, self.effort)


class Journal:
    """Finished searches, by task, in a file with one JSON line each.

    Args:
        path: read where it exists, and written to. What a crash left of a last line is dropped.
        session: judges each plan of the file again: of what it takes, nothing in the file is believed.
        question: of every line.
    Raises:
        PlanFileError: the file holds something else, or searches of another question.
        OutputError: it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], session: Session, question: Question) -> None:
        self.path, self.session, self.question = Path(path), session, question
        content = self._content()
        whole = content.rfind(b"\n") + 1
        self._lines = {line.task: line for line in map(self._line, content[:whole].splitlines())}
        try:
            self._file = open(self.path, "ab")  # noqa: SIM115
            self._file.truncate(whole)
        except OSError as error:
            raise self._unwritable(error) from None

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        with suppress(OSError):  # each line was flushed when it was written
            self._file.close()

    def answer(self, task: Task) -> Answer | None:
        """What the file says that a search found, judged again; None: it has not ended yet.

        Raises:
            PlanFileError: a plan of the file is not legal.
        """
        if task not in self._lines:
            return None
        graph, memory = self.session.graph, self.session.memory
        found = []
        for kept in self._lines[task].plans:
            try:
                trace = simulate(graph, kept.proposal.schedule, memory=memory, allocation=kept.allocation)
            except (ScheduleError, VerificationError) as error:
                raise self._refused(f"has a plan that is not legal ({error})") from None
            found.append(ranked(Candidate(kept.proposal, kept.allocation, trace)))
        return Answer(tuple(found), cut_short=False)

    def write(self, task: Task, answer: Answer) -> None:
        """Add a search that ended by itself, and be sure that the line is in the file.

        Raises:
            OutputError: it cannot be written; the lines before it stay.
        """
        if answer.cut_short:
            return
        candidates = [found.candidate for found in answer.found]
        plans = tuple(_Kept(candidate.proposal, candidate.allocation) for candidate in candidates)
        line = _Line(FORMAT, self.question.planner, self.question, *task, plans)
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()
        except OSError as error:
            raise self._unwritable(error) from None

    def _content(self) -> bytes:
        """The file's bytes; none where there is no file yet."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise PlanFileError(f"cannot read {str(self.path)!r}: {error.strerror or error}") from None
        if content[: len(_BEGINS)] != _BEGINS[: len(content)]:
            raise self._refused("holds something else than searches")
        return content

    def _line(self, line: bytes) -> _Line:
        """A line that answers the question."""
        try:
            origin = msgspec.json.decode(line, type=_Origin)
            if origin.planner != self.question.planner:
                raise self._refused(f"is of planner {origin.planner}, not {self.question.planner}")
            read = msgspec.json.decode(line, type=_Line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._refused(f"is damaged ({error})") from None
        differs = self.question.difference(read.question)
        if differs:
            raise self._refused(f"holds searches {differs}")
        return read

    def _refused(self, why: str) -> PlanFileError:
        return PlanFileError(f"{str(self.path)!r} {why}: ask the same again, or name another file to resume from")

    def _unwritable(self, error: OSError) -> OutputError:
        why = error.strerror or str(error)
        return OutputError(f"cannot write {str(self.path)!r}: {why}; name a file that can be written to resume from")
