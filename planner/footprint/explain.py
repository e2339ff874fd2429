"""Why a plan keeps a tensor or recomputes it, and what its peak is made of: in sentences, each number from a replay.

What another decision would cost is found by planning again with that decision forced, never by a formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Literal, Optional

import msgspec

from planner.analysis.roles import roles
from planner.bounds.peak import peak_lower_bound
from planner.errors import InfeasibleBudget, PlannerError
from planner.footprint.components import Simulated
from planner.footprint.relief import reliefs
from planner.graph import Graph, Op
from planner.patterns import modules_around
from planner.remedies import Remedy
from planner.text import printable, shown
from planner.units import counted, format_bytes
from planner.views.course import WORDS, Course

if TYPE_CHECKING:
    from planner.plan import Plan

_SHOWN: Final = 20
_STAYS: Final = {"input": "an input", "parameter": "a weight", "state": "a state"}


#: `planner.optimize`: what was asked of the plan is asked again, with one more rule.
Search = Callable[..., "Plan"]


class Life(msgspec.Struct, frozen=True):
    """From when to when a tensor's bytes are held.

    Args:
        made_by, made: the op that makes it, and its step, from 1.
        held_to, held_by: the last step during which its bytes are held, and the op there; None: to the end.
        taken: True if that op writes its own output in place of the tensor.
    """

    made_by: str
    made: int
    held_to: int
    held_by: Optional[str]
    taken: bool = False

    def __str__(self) -> str:
        until = "to the end" if self.held_by is None else f"to step {self.held_to:,}"
        why = (
            "" if self.held_by is None else f" for {self.held_by}{', which writes in its place' if self.taken else ''}"
        )
        return f"made at step {self.made:,}, held {until}{why}"


class Instead(msgspec.Struct, frozen=True):
    """The plan that the same search finds where one decision is forced.

    Args:
        option, pattern: the rule that forces it, as `optimize` takes it.
        effort: of the search.
        peak_bytes, arena_bytes, cost, overhead: of that plan; None where there is none.
        needed_again: False if no plan has to run these ops twice under the rule.
        why_not: why there is none, in a sentence.
    """

    option: Literal["save", "recompute"]
    pattern: str
    effort: float
    peak_bytes: Optional[int] = None
    arena_bytes: Optional[int] = None
    cost: Optional[float] = None
    overhead: Optional[float] = None
    needed_again: bool = True
    why_not: Optional[str] = None

    @property
    def written(self) -> str:
        """The rule as an option of `planner optimize`."""
        return f"--{self.option} '{self.pattern}'"


class Explanation(msgspec.Struct, frozen=True):
    """Why a tensor, an op or a module is as it is in a plan, or what the plan's peak is made of.

    Args:
        subject: what was asked about; None: the peak.
        step, op: where the peak is; steps count from 1.
        nbytes: of the subject at the peak: all its tensors that are live there.
        kept, recomputed: ops of the subject that run once, and more than once.
        lives: of a single tensor, from when to when its bytes are held.
        shares: (owner, component, bytes) of what is live at the peak, largest first; they add up to it. Owners are the
            outermost modules, or ops that are in none.
        instead: what the plan would be with the other decision; empty where no search was asked for.
        lines: all of it in sentences.
    """

    subject: Optional[str]
    step: int
    op: Optional[str]
    nbytes: int
    kept: tuple[str, ...] = ()
    recomputed: tuple[str, ...] = ()
    lives: tuple[Life, ...] = ()
    shares: tuple[tuple[str, str, int], ...] = ()
    instead: tuple[Instead, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(printable, self.lines))

    def __repr__(self) -> str:
        return f"Explanation({'the peak' if self.subject is None else shown(self.subject, 60)})"


def explain(plan: Plan, subject: str | None, *, search: Search | None, effort: float | None = None) -> Explanation:
    """Explain a tensor, an op or a module of a plan; None: its peak.

    Args:
        search: plans again with the other decision forced; None: nothing is searched.
        effort: of that search. Default: the plan's own, so that costs compare.
    Raises:
        PlannerError: nothing of that name.
    """
    course = Course(plan.graph, plan.schedule, plan.memory)
    if subject is None:
        return _of_peak(plan, course, search=search, effort=plan.effort if effort is None else effort)
    effort = plan.effort if effort is None else effort
    if subject in plan.graph.tensors:
        return _of_value(plan, course, subject, search=search, effort=effort)
    ops = _ops_of(plan.graph, subject)
    if len(ops) == 1 and len(ops[0].outputs) == 1:
        return _of_value(plan, course, ops[0].outputs[0].name, search=search, effort=effort)
    return _of_ops(plan, course, subject, ops, search=search, effort=effort)


def _ops_of(graph: Graph, subject: str) -> list[Op]:
    """The op, or the ops of the module, of that name."""
    if subject in graph.op_named:
        return [graph.op_named[subject]]
    found = [op for op in graph.ops if subject in modules_around(op)]
    if not found:
        names = {*graph.tensors, *graph.op_named, *(module for op in graph.ops for module in modules_around(op))}
        near = get_close_matches(subject, sorted(names)[:20_000], n=3)
        instead = f"; did you mean {', '.join(map(repr, near))}?" if near else "; planner inspect lists the names"
        raise PlannerError(f"no value, op or module {shown(subject)} in {graph.name!r}{instead}")
    return found


def _of_value(plan: Plan, course: Course, value: str, *, search: Search | None, effort: float) -> Explanation:
    graph, trace = plan.graph, course.trace
    op, root = graph.producer[value], graph.storage_root[value]
    owner, size = graph.producer[root], plan.memory.round_up(graph.tensors[root].nbytes)
    lines = [f"{value}: {_sized(size, WORDS[roles(graph)[value]])}"]
    if root != value:
        lines[0] += f", on the bytes of {root}"
    step, at = trace.peak_step + 1, trace.peak_op
    if owner.resident:
        counts = "" if plan.memory.scope == "total" else "; the budget leaves it out"
        lines.append(f"It is there from start to end: {_STAYS[owner.kind]}, which no plan frees{counts}.")
        held = size if plan.memory.scope == "total" else 0
        return Explanation(value, step, at, held, kept=() if op.resident else (op.name,), lines=tuple(lines))
    lives, at_peak = _lives(course, root), _at_peak(course, {root})
    runs = trace.recomputed.get(op.name, 0) + 1
    fate = f"It is recomputed: op {op.name} runs {runs} times." if runs > 1 else f"It is kept: op {op.name} runs once."
    lines.append(fate)
    lines += [f"  {str(life)[0].upper()}{str(life)[1:]}." for life in lives[:_SHOWN]]
    lines.append(_peak_share(plan, course, at_peak))
    never = None if runs > 1 else _never_again(op)
    if never is not None:
        lines.append(f"It can only be kept: {never}.")
    option: Literal["save", "recompute"] = "save" if runs > 1 else "recompute"
    instead = () if search is None or never else (_force(plan, option, op.name, search, effort),)
    lines += [_compared(plan, other, "it") for other in instead]
    names = ((op.name,), ()) if runs == 1 else ((), (op.name,))
    return Explanation(value, step, at, at_peak, kept=names[0], recomputed=names[1], lives=lives,
                       instead=instead, lines=tuple(lines))  # fmt: skip


def _never_again(op: Op) -> str | None:
    """Why no rule makes an op run again, as far as the op itself tells."""
    if op.phase in ("backward", "update"):
        return f"rules recompute the forward pass, and op {op.name} is of the {op.phase}"
    return None if op.recomputable else f"the graph says that op {op.name} may run only once"


def _of_ops(
    plan: Plan, course: Course, subject: str, ops: Sequence[Op], *, search: Search | None, effort: float
) -> Explanation:
    running = [op.name for op in ops if not op.resident]
    again = [name for name in running if name in course.trace.recomputed]
    once = [name for name in running if name not in course.trace.recomputed]
    at_peak = _at_peak(course, {name for op in ops for name in (op.name, *(tensor.name for tensor in op.outputs))})
    if plan.memory.scope == "total":
        at_peak += sum(plan.memory.round_up(t.nbytes) for op in ops if op.resident for t in op.outputs)
    lines = [f"{subject}: {counted(len(ops), 'op')}; {len(again):,} are recomputed, {len(once):,} run once"]
    if again:
        lines.append(f"  Recomputed: {_listed(again)}")
    lines.append(_peak_share(plan, course, at_peak))
    instead: list[Instead] = []
    pattern = subject if len(ops) == 1 else f"module:{subject}"
    if search is not None:
        able = any(_never_again(plan.graph.op_named[name]) is None for name in once)
        instead += [_force(plan, "save", pattern, search, effort)] if again else []
        instead += [_force(plan, "recompute", pattern, search, effort)] if able else []
    lines += [_compared(plan, other, "all of it") for other in instead]
    step, at = course.trace.peak_step + 1, course.trace.peak_op
    return Explanation(subject, step, at, at_peak, kept=tuple(once), recomputed=tuple(again),
                       instead=tuple(instead), lines=tuple(lines))  # fmt: skip


def _of_peak(plan: Plan, course: Course, *, search: Search | None, effort: float) -> Explanation:
    trace, report = course.trace, plan.report
    peak = format_bytes(trace.peak_bytes)
    if trace.peak_op is None:
        return Explanation(None, 0, None, trace.peak_bytes, lines=(f"Nothing runs; the peak is {peak}",))
    at = f"step {trace.peak_step + 1:,} of {len(trace.timeline_bytes):,}, op {trace.peak_op}"
    lines = [f"The peak is {peak}, at {at}. It is made of"]
    shares = _shares(plan, course)
    shown_bytes, told = 0, 0
    for owner, component, nbytes in shares:
        if 10 * shown_bytes >= 9 * trace.peak_bytes and told:
            break
        shown_bytes, told = shown_bytes + nbytes, told + 1
        lines.append(f"  {format_bytes(nbytes):>11}  {100 * nbytes / trace.peak_bytes:4.1f} %  {component} of {owner}")
    rest = trace.peak_bytes - shown_bytes
    if rest:
        lines.append(
            f"  {format_bytes(rest):>11}  {100 * rest / trace.peak_bytes:4.1f} %  {len(shares) - told:,} others"
        )
    bound = peak_lower_bound(plan.graph, plan.memory)
    alone = "the outputs together need that" if bound.op is None else f"op {bound.op} alone needs that"
    lines.append(f"No plan's peak is below {format_bytes(bound.nbytes)}: {alone}.")
    if plan.budget is not None:
        least = f"no plan that fits costs less than {100 * (report.overhead - report.gap):+.2f} %"
        lines.append(f"This plan costs {100 * report.overhead:+.2f} %; {least}, as proven.")

    def again(program: Graph) -> Plan | None:
        try:
            return None if search is None else search(program, plan.budget, **_asked(plan, effort))
        except PlannerError:  # nothing fits, or a rule means nothing there
            return None

    run = Simulated(plan.graph, plan.memory, schedule=plan.schedule, trace=trace)
    remedies = reliefs(plan, run, again=again)
    if remedies:
        lines.append("What would help:")
        lines += [f"  {remedy.action}: {remedy.note}" for remedy in remedies]
    return Explanation(None, trace.peak_step + 1, trace.peak_op, trace.peak_bytes, shares=shares, remedies=remedies,
                       lines=tuple(lines))  # fmt: skip


def _lives(course: Course, root: str) -> tuple[Life, ...]:
    """From when to when the bytes that a value made are held under its name or that of a view of it."""
    takers = {(step, course.graph.storage_root[source]) for step, _, source in course.trace.inplace_taken}
    stays = any(t.output and course.graph.storage_root[t.name] == root for t in course.graph.tensors.values())
    found = []
    for held in course.stretches:
        if held.name != root or held.component == "workspace":
            continue
        taken = (held.end, root) in takers
        last = held.end if taken else held.end - 1
        forever = not taken and held.end == len(course.ops) and stays
        holder = None if forever else course.ops[last]
        found.append(Life(course.ops[held.start], held.start + 1, last + 1, holder, taken))
    return tuple(found)


def _at_peak(course: Course, names: set[str]) -> int:
    """Bytes of these values, and of workspaces of ops of these names, at the peak."""
    step = course.trace.peak_step
    held = [stretch for stretch in course.stretches if stretch.start <= step < stretch.end]
    return sum(stretch.nbytes for stretch in held if stretch.name in names)


def _shares(plan: Plan, course: Course) -> tuple[tuple[str, str, int], ...]:
    """Bytes at the peak by outermost module and component, largest first."""
    graph, step, found = plan.graph, course.trace.peak_step, dict[tuple[str, str], int]()
    component = roles(graph)
    held = [(h.name, h.component, h.nbytes) for h in course.stretches if h.start <= step < h.end]
    if plan.memory.scope == "total":
        residents = [tensor for op in graph.ops if op.resident for tensor in op.outputs]
        held += [(t.name, component[t.name], plan.memory.round_up(t.nbytes)) for t in residents]
    for name, kind, nbytes in held:
        op = graph.op_named[name] if kind == "workspace" else graph.producer[name]
        owner = next(reversed([*modules_around(op)]), op.name)
        stays = op.resident and not op.module  # weights are in no module: one owner for all of them
        key = ("the model" if stays else owner, WORDS[kind])
        found[key] = found.get(key, 0) + nbytes
    ranked = sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))
    return tuple((owner, kind, nbytes) for (owner, kind), nbytes in ranked if nbytes)


def _peak_share(plan: Plan, course: Course, nbytes: int) -> str:
    peak, at = course.trace.peak_bytes, f"the peak (step {course.trace.peak_step + 1:,}, op {course.trace.peak_op})"
    if not nbytes:
        return f"Nothing of it is live at {at}: dropping it there frees nothing."
    percent = 100 * nbytes / peak
    share = f"{percent:.0f}" if percent >= 10 else f"{percent:.2g}"
    return f"It has {format_bytes(nbytes)} of the {format_bytes(peak)} at {at}, {share} %."


def _force(plan: Plan, option: Literal["save", "recompute"], pattern: str, search: Search, effort: float) -> Instead:
    """Plan again with one more rule."""
    if not pattern.startswith("module:"):
        pattern = f"name:{''.join(f'[{char}]' if char in '*?[' else char for char in pattern)}"
    asked = _asked(plan, effort)
    asked[option] = (*asked[option], pattern)
    try:
        other = search(plan.graph, plan.budget, **asked)
    except InfeasibleBudget as error:
        least = "" if error.minimum is None else f"; the least that works is {format_bytes(error.minimum)}"
        why = f"no plan fits then{least}"
        return Instead(option, pattern, effort, why_not=why)
    except PlannerError as error:
        why = str(error).removeprefix(f"{option}: {pattern!r} ").removesuffix("; leave it out")
        return Instead(option, pattern, effort, why_not=why)
    report, figures = other.report, other.report.plan
    rule = next((rule for rule in report.rules if (rule.kind, rule.pattern) == (option, pattern)), None)
    again = option == "save" or rule is None or rule.run_again > 0
    return Instead(
        option, pattern, effort, figures.peak_bytes, figures.arena_bytes, figures.cost, report.overhead, again
    )


def _asked(plan: Plan, effort: float) -> dict[str, Any]:
    """What was asked of a plan, beside its graph and budget, as `optimize` takes it."""
    asked = {"strategy": plan.strategy, "allocator": plan.allocator, "memory": plan.memory, "order": plan.order}
    rules = {"save": plan.save_rules, "recompute": plan.recompute_rules}
    return {**asked, **rules, "seed": plan.seed, "effort": effort}


def _compared(plan: Plan, other: Instead, what: str) -> str:
    """What the forced plan costs or frees, as a sentence."""
    verb = f"{'Keeping' if other.option == 'save' else 'Recomputing'} {what} instead ({other.written})"
    if other.cost is None or other.arena_bytes is None or other.overhead is None:
        return f"{verb}: {other.why_not}."
    if not other.needed_again:
        return f"{verb}: the backward pass reads nothing of {what}, so no plan needs to run it again."
    report, figures = plan.report, plan.report.plan
    pair = (100 * other.overhead, 100 * report.overhead)
    digits = 2 if other.cost == figures.cost or f"{pair[0]:.2f}" != f"{pair[1]:.2f}" else 5
    cost = (
        f"{pair[0]:+.{digits}f} % cost in place of {pair[1]:+.{digits}f} %"
        if other.cost != figures.cost
        else "as cheap"
    )
    sizes = [format_bytes(nbytes) for nbytes in (other.arena_bytes, figures.arena_bytes)]
    memory = "in the same memory" if sizes[0] == sizes[1] else f"{sizes[0]} in place of {sizes[1]}"
    found = (other.cost, other.arena_bytes) if plan.budget is not None else (other.arena_bytes, other.cost)
    mine = (figures.cost, figures.arena_bytes) if plan.budget is not None else (figures.arena_bytes, figures.cost)
    better = ". That is the better plan: take it by this option" if found < mine else ""
    return f"{verb}: {cost}, {memory}{better}."


def _sized(nbytes: int, component: str) -> str:
    return f"{format_bytes(nbytes)} of {component}"


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _SHOWN:,} more" if len(every) > _SHOWN else ""
    return f"{', '.join(every[:_SHOWN])}{more}"
