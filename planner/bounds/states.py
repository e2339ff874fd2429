"""The machine of the memory rules in bit masks: states of a small graph, and what each move makes of them.

A `Plain` machine has at most one name on any storage that can go, so a state is what ran and what is live. An `Aliased`
machine knows every storage by the names on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import chain, combinations
from typing import NamedTuple

from planner.analysis.arrays import resident_bytes
from planner.graph import Graph, Op
from planner.memory import MemoryModel


class Move(NamedTuple):
    """Values freed, an op run, values freed right after it.

    Args:
        op: its row among the program's ops, or -1 where nothing runs.
        freed_before, freed_after: masks of values.
    """

    op: int
    freed_before: int
    freed_after: int


class Row(NamedTuple):
    """An op as masks of values; see `planner.graph.Op`.

    Args:
        reads, outs: value rows by position; read_mask, out_mask the same as masks.
        updated, aliased: (input, output) pairs: updates; then updates and views.
        fresh_mask: outputs that are neither view nor update.
        pairs: in-place (input, output, identity) that sizes allow.
        permitted: all in-place (input, output).
        after: mask of ops to wait for.
        once: it cannot run again.
    """

    reads: tuple[int, ...]
    outs: tuple[int, ...]
    read_mask: int
    out_mask: int
    updated: tuple[tuple[int, int], ...]
    aliased: tuple[tuple[int, int], ...]
    fresh_mask: int
    pairs: tuple[tuple[int, int, bool], ...]
    permitted: frozenset[tuple[int, int]]
    after: int
    once: bool
    workspace: int


Storages = tuple[int, ...]  # masks of the names on each, sorted


class Program(NamedTuple):
    """A graph for the machines.

    Args:
        rows, costs, op_names: of the ops, residents left out.
        value_names: of all values; maker: row of the op that makes each, -1 for residents; nbytes: of the storage each
            lies on, 0 where that is resident.
        group: for a value on a resident, the mask of all values on it; else 0.
        kept_mask: values that are never freed; output_mask: live at the end; resident_mask: live at the start.
        early_mask: values with others on their storage that an update may take, or that an op with in-place pairs reads
            beside them: made anew on a storage of its own, such a value is out of the others' way.
        resident_bytes: at every step. grain_bytes: divides every other size.
        pinned: first runs in program order.
        plain: no two names share a storage that can go.
    """

    rows: tuple[Row, ...]
    costs: list[float]
    op_names: list[str]
    value_names: list[str]
    maker: list[int]
    nbytes: list[int]
    group: list[int]
    kept_mask: int
    output_mask: int
    resident_mask: int
    early_mask: int
    resident_bytes: int
    grain_bytes: int
    pinned: bool
    plain: bool


def compile_program(graph: Graph, memory: MemoryModel, *, pinned: bool) -> Program:
    """A graph as masks."""
    value = {name: v for v, name in enumerate(graph.tensors)}
    ops = [op for op in graph.ops if not op.resident]
    number = {op.name: k for k, op in enumerate(ops)}
    root = graph.storage_root
    on_root: dict[str, int] = {}
    for name, v in value.items():
        on_root[root[name]] = on_root.get(root[name], 0) | 1 << v
    resident = {name: graph.on_resident(name) for name in value}
    nbytes = [0 if resident[name] else memory.round_up(graph.tensors[root[name]].nbytes) for name in value]
    rows = tuple(_row(op, graph, value, number) for op in ops)
    shared = any(row_pair[2] for row in rows for row_pair in row.pairs)
    shared = shared or any(not resident[op.reads[i]] for op in ops for i, *_ in (*op.view, *op.updates))
    return Program(
        rows=rows,
        costs=[op.cost for op in ops],
        op_names=[op.name for op in ops],
        value_names=list(value),
        maker=[number.get(graph.producer[name].name, -1) for name in value],
        nbytes=nbytes,
        group=[on_root[root[name]] if resident[name] else 0 for name in value],
        kept_mask=sum(1 << v for name, v in value.items() if graph.carries_resident(name)),
        output_mask=sum(1 << value[name] for name in graph.outputs),
        resident_mask=sum(1 << v for name, v in value.items() if graph.producer[name].resident),
        early_mask=_early(graph, value),
        resident_bytes=resident_bytes(graph, memory),
        grain_bytes=math.gcd(*nbytes, *(op.workspace for op in ops)) or 1,
        pinned=pinned,
        plain=not shared,
    )


def _early(graph: Graph, value: dict[str, int]) -> int:
    """See `Program`: of all names that may come to lie on one storage, by views, updates or identity pairs."""
    group = {name: {name} for name in value}
    for op in graph.ops:
        for i, o in (
            *((i, o) for i, o, _ in op.view),
            *op.updates,
            *((i, o) for i, o, identity in op.inplace if identity),
        ):
            both = group[op.reads[i]] | group[op.outputs[o].name]
            group.update(dict.fromkeys(both, both))
    found = 0
    for op in graph.ops:
        names = {name for i, _ in op.updates for name in group[op.reads[i]]}
        if op.inplace:
            names |= {name for read in op.reads for name in group[read] if len(group[read].intersection(op.reads)) > 1}
        found |= _mask(value[name] for name in names if not graph.on_resident(name))
    return found


def _row(op: Op, graph: Graph, value: dict[str, int], number: dict[str, int]) -> Row:
    aliased = (*op.updates, *((i, o) for i, o, _ in op.view))
    root, tensors = graph.storage_root, graph.tensors
    outs = tuple(value[tensor.name] for tensor in op.outputs)
    reads = tuple(value[name] for name in op.reads)
    pairs = tuple(
        (i, o, identity)
        for i, o, identity in op.inplace
        if not graph.on_resident(op.reads[i])
        and tensors[root[op.reads[i]]].nbytes == op.outputs[o].nbytes
        and o not in {out for _, out in aliased}
    )
    return Row(
        reads=reads,
        outs=outs,
        read_mask=_mask(reads),
        out_mask=_mask(outs),
        updated=op.updates,
        aliased=aliased,
        fresh_mask=_mask(v for o, v in enumerate(outs) if o not in {out for _, out in aliased}),
        pairs=pairs,
        permitted=frozenset((i, o) for i, o, _ in op.inplace),
        after=_mask(number[name] for name in op.after if name in number),
        once=not op.recomputable or not op.outputs,
        workspace=op.workspace,
    )


class _Machine:
    """What both machines share.

    Args:
        budget: most bytes at a step.
        costless: mask of ops that may run again for nothing.
    """

    def __init__(self, program: Program, budget: int, costless: int) -> None:
        self.program = program
        self.room = budget - program.resident_bytes
        self.costless = costless
        self.everything = (1 << len(program.rows)) - 1
        self._useful: dict[int, int] = {}
        self._wanted: dict[int, int] = {}

    def runnable(self, ran: int, live: int) -> Iterator[int]:
        """Ops that may run, first or again, and where that can be of use."""
        program = self.program
        following = (~ran & -~ran).bit_length() - 1  # the first that has not run
        useful = self.useful(ran)
        for k, row in enumerate(program.rows):
            if row.read_mask & ~live:
                continue
            if ran >> k & 1:
                if row.once or not row.out_mask & ~live & useful:
                    continue
            elif row.after & ~ran or (program.pinned and k != following):
                continue
            yield k

    def harmless(self, ran: int, k: int) -> bool:
        """True if a first run of this op, where it fits, is never too early: what it makes may go at once and come
        again for nothing.

        So it need not be weighed against anything else. Updates are: they take the older version away.
        """
        row = self.program.rows[k]
        if ran >> k & 1 or row.updated:
            return False
        return bool(self.costless >> k & 1 and not row.once) or not row.out_mask & self.useful(ran | 1 << k)

    def useful(self, ran: int) -> int:
        """Values that may be read yet, or must be live at the end, once these ops have run; and those that are never
        freed.
        """
        found = self._useful.get(ran)
        if found is None:
            program = self.program
            found = program.output_mask | program.kept_mask
            waiting = []
            for k, row in enumerate(program.rows):
                if not ran >> k & 1:
                    found |= row.read_mask
                elif not row.once:
                    waiting.append(row)
            changed = True
            while changed:
                changed = False
                for row in waiting:
                    if row.out_mask & found and row.read_mask & ~found:
                        found |= row.read_mask
                        changed = True
            self._useful[ran] = found
        return found

    def owed(self, ran: int, live: int) -> int | None:
        """Ops that have to run again: they made what is still to be read and is gone. None where one of them cannot."""
        program = self.program
        wanted = self._wanted.get(ran)
        if wanted is None:
            wanted = program.output_mask
            for k, row in enumerate(program.rows):
                if not ran >> k & 1:
                    wanted |= row.read_mask
            self._wanted[ran] = wanted
        missing, seen, owed = wanted & ~live, 0, 0
        while missing:
            lowest = missing & -missing
            missing ^= lowest
            seen |= lowest
            maker = program.maker[lowest.bit_length() - 1]
            if maker < 0:
                return None
            if ran >> maker & 1 and not owed >> maker & 1:
                row = program.rows[maker]
                if row.once:
                    return None
                owed |= 1 << maker
                missing |= row.read_mask & ~live & ~seen
        return owed

    def bytes_of(self, mask: int) -> int:
        """Summed bytes of values."""
        total, nbytes = 0, self.program.nbytes
        while mask:
            lowest = mask & -mask
            total += nbytes[lowest.bit_length() - 1]
            mask ^= lowest
        return total


class Plain(_Machine):
    """States (ops that ran, live values, what is being made room for: 0, or 1 + an op and a place among the values).

    A value is freed only where a step would not fit with it: with one name on a storage, holding a value longer never
    does harm that freeing it later does not undo. So what has more live at no more cost is never worse. Values are
    freed one by one, larger ones first, so that sets of them are weighed by what they cost, and dear ones are never
    listed.
    """

    def __init__(self, program: Program, budget: int, costless: int = 0) -> None:
        super().__init__(program, budget, costless)
        self._expanded: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        self._order = sorted(
            (v for v, nbytes in enumerate(program.nbytes) if nbytes), key=lambda v: (-program.nbytes[v], v)
        )
        # not to be freed from that place on
        self._passed = [_mask(self._order[:place]) for place in range(len(self._order) + 1)]

    def start(self) -> tuple[int, int, int]:
        """Nothing ran; residents are live."""
        return 0, self.program.resident_mask, 0

    def done(self, state: tuple[int, int, int]) -> bool:
        """Everything ran and the outputs are live."""
        return state[0] == self.everything and not self.program.output_mask & ~state[1]

    def dominated(self, state: tuple[int, int, int], extra: int) -> bool:
        """True if one with the same ops, no less live and no higher cost came before; else it is one to compare
        with.
        """
        ran, live, room = state
        passed = self._passed[(room - 1) % len(self._passed)] if room else 0
        before = self._expanded.setdefault((ran, room, live & passed), [])
        if any(not live & ~other and paid <= extra for other, paid in before):
            return True
        before.append((live, extra))
        return False

    def live(self, state: tuple[int, int, int]) -> int:
        """Mask of live values."""
        return state[1]

    def moves(self, state: tuple[int, int, int]) -> Iterator[tuple[tuple[int, int, int], Move]]:
        """Each op that can run, with each set of inputs that die of it; where that does not fit, each value freed for
        it.
        """
        ran, live, room = state
        if room:
            yield from self._runs(ran, live, *divmod(room - 1, len(self._order) + 1))
            return
        runnable = list(self.runnable(ran, live))
        for k in runnable:
            if self.harmless(ran, k) and self._lack(live, k) <= 0:
                after = (live | self.program.rows[k].out_mask) & self.useful(ran | 1 << k)
                yield (ran | 1 << k, after, 0), Move(k, 0, (live | self.program.rows[k].out_mask) & ~after)
                return
        for k in runnable:
            yield from self._runs(ran, live, k, 0)

    def _lack(self, live: int, k: int) -> int:
        """Bytes that an op needs beside what is live, nothing in place, less those there are."""
        row = self.program.rows[k]
        return self.bytes_of(live) + self.bytes_of(row.fresh_mask) + row.workspace - self.room

    def _runs(self, ran: int, live: int, k: int, place: int) -> Iterator[tuple[tuple[int, int, int], Move]]:
        program = self.program
        row = program.rows[k]
        useful = self.useful(ran | 1 << k)
        needed = self._lack(live, k)
        excess = 0
        for dying, saved in self._in_place(row, live):
            excess = max(excess, needed - saved)
            if needed > saved:
                continue
            left = live
            for i, _ in row.updated:  # on residents: older names are gone
                left &= ~program.group[row.reads[i]]
            after = (left & ~dying | row.out_mask) & useful
            yield (ran | 1 << k, after, 0), Move(k, 0, (left | row.out_mask) & ~after)
        if excess <= 0:
            return
        spare = [(at, v) for at, v in enumerate(self._order[place:], start=place) if live & ~row.read_mask & 1 << v]
        rest = sum(program.nbytes[v] for _, v in spare)
        least = needed - self.bytes_of(_mask(row.reads[i] for i, _, _ in row.pairs))
        for at, v in spare:
            if rest < least:
                return
            rest -= program.nbytes[v]
            yield (ran, live & ~(1 << v), 1 + k * (len(self._order) + 1) + at + 1), Move(-1, 1 << v, 0)

    def _in_place(self, row: Row, live: int) -> Iterator[tuple[int, int]]:
        """Sets of inputs that are freed right after, each of which gives its storage to an output; and the bytes that
        saves.
        """
        yield 0, 0
        pairs = [
            (row.reads[i], row.outs[o])
            for i, o, _ in row.pairs
            if not live >> row.outs[o] & 1
            and all((p, o) in row.permitted for p, v in enumerate(row.reads) if v == row.reads[i])
        ]
        for dying in _subsets(_mask(v for v, _ in pairs)) if pairs else ():
            taken, placed = 0, 0
            for v, out in pairs:
                if dying >> v & 1 and not (taken >> v & 1 or placed >> out & 1):
                    taken |= 1 << v
                    placed |= 1 << out
            if dying and taken == dying:
                yield dying, self.bytes_of(taken)


class Aliased(_Machine):
    """States (ops that ran, the names on each storage, names that must stay until something runs, what is being made
    room for).

    As on a plain machine, names are freed where a step would not fit with them: whole storages, or outputs that are to
    be made anew. Where a second storage for a value can be worth more than the bytes it takes (`Program.early_mask`),
    its names are freed at any time too. What an op's in-place pairs do depends on what is freed right after it, so that
    much is chosen with it: which storages lose all their names, and which outputs of identity pairs go at once. One
    that stays on its input's storage by such a pair is not freed before the next step; one that is freed had its own.
    """

    def __init__(self, program: Program, budget: int, costless: int = 0) -> None:
        super().__init__(program, budget, costless)
        self._expanded: dict[tuple[int, int, int], list[tuple[Storages, int, int, int]]] = {}
        self._order = sorted(range(len(program.nbytes)), key=lambda v: (-program.nbytes[v], v))
        self._place = {v: place for place, v in enumerate(self._order)}
        # not to be freed from that place on
        self._passed = [_mask(self._order[:place]) for place in range(len(self._order) + 1)]

    def start(self) -> tuple[int, Storages, int, int]:
        """Nothing ran; each resident is a storage."""
        return 0, tuple(1 << v for v in _rows(self.program.resident_mask)), 0, 0

    def done(self, state: tuple[int, Storages, int, int]) -> bool:
        """Everything ran and the outputs are live."""
        return state[0] == self.everything and not self.program.output_mask & ~_union(state[1])

    def dominated(self, state: tuple[int, Storages, int, int], extra: int) -> bool:
        """True if one that came before, with the same ops and no higher cost, becomes this one by frees alone."""
        ran, storages, locked, room = state
        live = _union(storages)
        fixed = (
            self.program.early_mask | self.program.kept_mask | (room and self._passed[(room - 1) % len(self._passed)])
        )
        before = self._expanded.setdefault((ran, room, live & fixed), [])
        for others, alive, stays, paid in before:
            if paid <= extra and not live & ~alive and not stays & ~locked and _within(others, live) == storages:
                return True
        before.append((storages, live, locked, extra))
        return False

    def live(self, state: tuple[int, Storages, int, int]) -> int:
        """Mask of live values."""
        return _union(state[1])

    def moves(self, state: tuple[int, Storages, int, int]) -> Iterator[tuple[tuple[int, Storages, int, int], Move]]:
        """Each op that can run, with each choice of what its in-place pairs do; where one does not fit, what is freed
        for it.
        """
        ran, storages, locked, room = state
        live = _union(storages)
        if room:
            yield from self._runs(*divmod(room - 1, len(self.program.maker) + 1), state, live)
            return
        runnable = list(self.runnable(ran, live))
        for k in runnable:
            if self.harmless(ran, k):
                found = list(self._variants(k, state, live))
                if len(found) == 1 and found[0][0] <= 0:  # nothing to choose
                    yield found[0][1:]
                    return
        for v in _rows(live & self.program.early_mask & ~self.program.kept_mask & ~locked):
            yield (ran, _without(storages, 1 << v), locked, 0), Move(-1, 1 << v, 0)
        for k in runnable:
            yield from self._runs(k, 0, state, live)

    def _storage_bytes(self, names: int) -> int:
        return self.program.nbytes[(names & -names).bit_length() - 1]

    def _runs(
        self, k: int, place: int, state: tuple[int, Storages, int, int], live: int
    ) -> Iterator[tuple[tuple[int, Storages, int, int], Move]]:
        lacks = []
        for lack, after, move in self._variants(k, state, live):
            lacks.append(lack)
            if lack <= 0:
                yield after, move
        if max(lacks) <= 0:
            return
        program, (ran, storages, locked, _) = self.program, state
        outs = program.rows[k].out_mask
        spare = live & ~program.rows[k].read_mask & ~program.kept_mask & ~program.early_mask & ~locked
        units = {names for names in storages if not names & ~spare} | {1 << v for v in _rows(spare & outs)}
        places = sorted((min(self._place[v] for v in _rows(names)), names) for names in units)
        # An output that is not kept may then be made in place: that saves its bytes once more.
        saved = {names: self._storage_bytes(names) * (1 + (names & outs).bit_count()) for names in units}
        places = [(at, names) for at, names in places if at >= place and saved[names]]
        rest = sum(saved[names] for _, names in places)
        for at, names in places:
            if rest < min(lacks):
                return
            rest -= saved[names]
            yield (
                (ran, _without(storages, names), locked, 1 + k * (len(program.maker) + 1) + at + 1),
                Move(-1, names, 0),
            )

    def _variants(
        self, k: int, state: tuple[int, Storages, int, int], live: int
    ) -> Iterator[tuple[int, tuple[int, Storages, int, int], Move]]:
        """What a run makes of a state, for each choice of what its in-place pairs do; and the bytes that it lacks."""
        ran, before, _, _ = state
        used = sum(self._storage_bytes(names) for names in before)
        row = self.program.rows[k]
        under = [next(s for s, names in enumerate(before) if names >> v & 1) for v in row.reads]
        kept = live & row.out_mask
        storages = list(before)
        updated = {under[i] for i, _ in row.updated}
        for s in updated:
            storages[s] = 0
        for i, o in row.aliased:
            if not kept >> row.outs[o] & 1:
                storages[under[i]] |= 1 << row.outs[o]
        pairs = self._lawful(row, under, kept, updated)
        useful = self.useful(ran | 1 << k)
        identities = _mask(row.outs[o] for _, o, identity in pairs if identity)
        for dying in _subsets(_mask(under[i] for i, _, _ in pairs)) if pairs else (0,):
            for at_once in _subsets(identities) if identities else (0,):
                joined, stays, placed, taken = list(storages), 0, 0, 0
                for i, o, identity in pairs:
                    s, out = under[i], 1 << row.outs[o]
                    dies = dying >> s & 1
                    if placed & out or taken >> s & 1 or not (dies or (identity and not at_once & out)):
                        continue
                    taken |= 1 << s
                    placed |= out
                    joined[s] = (0 if dies else joined[s]) | out
                    stays |= 0 if dies else out
                if dying & ~taken:
                    continue
                fresh = row.fresh_mask & ~kept & ~placed
                needed = used + self.bytes_of(fresh) + self.bytes_of(kept & row.fresh_mask) + row.workspace
                left = tuple(
                    names & (useful | stays) & ~(at_once & ~stays)
                    for names in (*joined, *(1 << v for v in _rows(fresh)))
                )
                after = tuple(sorted(names for names in left if names))
                made = _union(storages) | placed | fresh  # what updates overwrote is gone by itself
                yield needed - self.room, (ran | 1 << k, after, stays, 0), Move(k, 0, made & ~_union(after))

    def _lawful(self, row: Row, under: list[int], kept: int, updated: set[int]) -> list[tuple[int, int, bool]]:
        """In-place pairs that only frees can forbid now."""
        return [
            (i, o, identity)
            for i, o, identity in row.pairs
            if not kept >> row.outs[o] & 1
            and under[i] not in updated
            and all(
                row.reads[p] == row.reads[i] and (p, o) in row.permitted for p, s in enumerate(under) if s == under[i]
            )
        ]


def _subsets(mask: int) -> Iterator[int]:
    """All masks within a mask."""
    ones = [1 << v for v in _rows(mask)]
    return map(sum, chain.from_iterable(combinations(ones, k) for k in range(len(ones) + 1)))


def _without(storages: Storages, gone: int) -> Storages:
    return _within(storages, ~gone)


def _within(storages: Storages, live: int) -> Storages:
    return tuple(sorted(names & live for names in storages if names & live))


def _union(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def _mask(rows: Iterable[int]) -> int:
    found = 0
    for row in rows:
        found |= 1 << row
    return found


def _rows(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
