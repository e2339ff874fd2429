"""The memory rules on bit masks: the states a small graph can be in, and the moves between them."""

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
        reads, outs: value rows by position; read_mask and out_mask are the same as masks.
        updated, aliased: (input, output) pairs; `aliased` holds updates and views.
        fresh_mask: outputs that are neither view nor update.
        pairs: in-place (input, output, identity) that sizes allow.
        permitted: all in-place (input, output).
        after: mask of ops that must have run before the first run.
        once: the op cannot run again.
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


Storages = tuple[int, ...]  # the mask of the names on each live storage, sorted
#: Ops that ran; storages; names that must stay until the next run; room: 0, or an op and a place in the order of frees.
State = tuple[int, Storages, int, int]


class Program(NamedTuple):
    """A graph as masks.

    Args:
        rows, costs, op_names: one per op; residents are left out.
        value_names: one per value.
        maker: row of the op that makes each value; -1 for residents.
        nbytes: of the storage each value lies on; 0 if it is resident.
        group: for a value on a resident, the mask of all values on it; else 0.
        kept_mask: values that are never freed.
        output_mask, resident_mask: values live at the end, and at the start.
        early_mask: values worth recomputing early. They share a storage that an update or an in-place op will
            overwrite, and a recomputed copy gets its own.
        resident_bytes: live at every step.
        grain_bytes: divides every other size.
        pinned: first runs are in program order.
        plain: no two names share a storage that can be freed.
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
    """Encode a graph as masks."""
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
    """`Program.early_mask`; names are grouped that views, updates or identity pairs may put on one storage."""
    group = {name: {name} for name in value}
    for op in graph.ops:
        identities = [(i, o) for i, o, identity in op.inplace if identity]
        for i, o in (*((i, o) for i, o, _ in op.view), *op.updates, *identities):
            both = group[op.reads[i]] | group[op.outputs[o].name]
            group.update(dict.fromkeys(both, both))
    found = 0
    for op in graph.ops:
        names = {name for i, _ in op.updates for name in group[op.reads[i]]}
        if op.inplace:
            names |= {name for read in op.reads for name in group[read] if len(group[read].intersection(op.reads)) > 1}
        found |= mask_of(value[name] for name in names if not graph.on_resident(name))
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
        read_mask=mask_of(reads),
        out_mask=mask_of(outs),
        updated=op.updates,
        aliased=aliased,
        fresh_mask=mask_of(v for o, v in enumerate(outs) if o not in {out for _, out in aliased}),
        pairs=pairs,
        permitted=frozenset((i, o) for i, o, _ in op.inplace),
        after=mask_of(number[name] for name in op.after if name in number),
        once=not op.recomputable or not op.outputs,
        workspace=op.workspace,
    )


class Machine:
    """Moves of one program within a budget.

    Names are freed only where the next step does not fit with them: a whole storage, or an output that will be made
    anew. Names of `Program.early_mask` may be freed at any time. A move also chooses what the op's in-place pairs do,
    since that depends on the frees right after it: which storages lose all their names, and which outputs of identity
    pairs are freed at once. An output that stays on its input's storage by an identity pair is not freed before the
    next run.

    Args:
        budget: most bytes at a step.
        costless: mask of ops that may run again for nothing.
    """

    def __init__(self, program: Program, budget: int, costless: int = 0) -> None:
        self.program = program
        self.room = budget - program.resident_bytes
        self.costless = costless
        self.everything = (1 << len(program.rows)) - 1
        self._useful: dict[int, int] = {}
        self._wanted: dict[int, int] = {}
        self._expanded: dict[tuple[int, int, int], list[tuple[Storages, int, int, int]]] = {}
        self._order = sorted(range(len(program.nbytes)), key=lambda v: (-program.nbytes[v], v))
        self._place = {v: place for place, v in enumerate(self._order)}
        # For each place in the order of frees, the values that are not freed from there on.
        self._passed = [mask_of(self._order[:place]) for place in range(len(self._order) + 1)]

    def runnable(self, ran: int, live: int) -> Iterator[int]:
        """Ops whose inputs are live and whose run, first or again, can be of use."""
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
        """True if no other move is worth trying before a first run of this op that fits.

        What it makes can be freed at once and made again for nothing, or is of no use. An update is never harmless: it
        overwrites the older version.
        """
        row = self.program.rows[k]
        if ran >> k & 1 or row.updated:
            return False
        return bool(self.costless >> k & 1 and not row.once) or not row.out_mask & self.useful(ran | 1 << k)

    def useful(self, ran: int) -> int:
        """Values that are still read, live at the end or never freed, once the ops of `ran` have run."""
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

    def owed(self, state: State) -> int | None:
        """Ops that must run again, since a freed value of theirs is still needed; None if one of them cannot."""
        program, ran, live = self.program, state[0], _union(state[1])
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

    def start(self) -> State:
        """The state before any run: each resident is a storage."""
        return 0, tuple(1 << v for v in bits(self.program.resident_mask)), 0, 0

    def done(self, state: State) -> bool:
        """True if every op ran and the outputs are live."""
        return state[0] == self.everything and not self.program.output_mask & ~_union(state[1])

    def dominated(self, state: State, extra: int) -> bool:
        """True if frees alone lead here from an earlier state with the same ops at no higher cost; else remember it."""
        ran, storages, locked, room = state
        live = _union(storages)
        passed = self._passed[(room - 1) % len(self._passed)] if room else 0
        fixed = self.program.early_mask | self.program.kept_mask | passed
        before = self._expanded.setdefault((ran, room, live & fixed), [])
        for others, alive, stays, paid in before:
            if paid <= extra and not live & ~alive and not stays & ~locked and _within(others, live) == storages:
                return True
        before.append((storages, live, locked, extra))
        return False

    def moves(self, state: State) -> Iterator[tuple[State, Move]]:
        """Each op that can run, with each choice for its in-place pairs, or one free that makes room for it."""
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
        for v in bits(live & self.program.early_mask & ~self.program.kept_mask & ~locked):
            yield (ran, _within(storages, ~(1 << v)), locked, 0), Move(-1, 1 << v, 0)
        for k in runnable:
            yield from self._runs(k, 0, state, live)

    def _storage_bytes(self, names: int) -> int:
        return self.program.nbytes[(names & -names).bit_length() - 1]

    def _runs(self, k: int, place: int, state: State, live: int) -> Iterator[tuple[State, Move]]:
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
        units = {names for names in storages if not names & ~spare} | {1 << v for v in bits(spare & outs)}
        places = sorted((min(self._place[v] for v in bits(names)), names) for names in units)
        # A freed output may be made in place by the run: that saves its bytes once more.
        saved = {names: self._storage_bytes(names) * (1 + (names & outs).bit_count()) for names in units}
        places = [(at, names) for at, names in places if at >= place and saved[names]]
        rest = sum(saved[names] for _, names in places)
        for at, names in places:
            if rest < min(lacks):
                return
            rest -= saved[names]
            room = 2 + k * (len(program.maker) + 1) + at
            yield (ran, _within(storages, ~names), locked, room), Move(-1, names, 0)

    def _variants(self, k: int, state: State, live: int) -> Iterator[tuple[int, State, Move]]:
        """(bytes lacking, state after a run, move) for each choice for the in-place pairs."""
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
        identities = mask_of(row.outs[o] for _, o, identity in pairs if identity)
        for dying in _subsets(mask_of(under[i] for i, _, _ in pairs)) if pairs else (0,):
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
                everything = (*joined, *(1 << v for v in bits(fresh)))
                after = _within(everything, (useful | stays) & ~(at_once & ~stays))
                made = _union(storages) | placed | fresh  # an update drops the names it overwrites by itself
                yield needed - self.room, (ran | 1 << k, after, stays, 0), Move(k, 0, made & ~_union(after))

    def _lawful(self, row: Row, under: list[int], kept: int, updated: set[int]) -> list[tuple[int, int, bool]]:
        """In-place pairs that would happen if the right names were freed after the run."""
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
    ones = [1 << v for v in bits(mask)]
    return map(sum, chain.from_iterable(combinations(ones, k) for k in range(len(ones) + 1)))


def _within(storages: Storages, live: int) -> Storages:
    """The storages once only these names are live."""
    return tuple(sorted(names & live for names in storages if names & live))


def _union(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def mask_of(rows: Iterable[int]) -> int:
    """The mask with a bit for each row."""
    found = 0
    for row in rows:
        found |= 1 << row
    return found


def bits(mask: int) -> Iterator[int]:
    """The rows whose bits are set, lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
