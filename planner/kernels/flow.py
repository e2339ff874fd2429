"""Minimum cuts: which ops come before and after an instant, the network of one instant, and push-relabel on it.

A network has a node per op ("run again"), then a node per value ("its storage is at hand"). Source and sink are no
nodes: `excess` holds what the source sends, `sink` what each node may still send to the sink.
"""

from __future__ import annotations

import numpy as np

from planner.kernels import Flags, Ints, kernel
from planner.kernels.csr import Arrays
from planner.kernels.structs import struct

#: A capacity that is never reached: sums of flows stay below it, and twice it is still an int64.
UNBOUNDED = 1 << 61


@kernel
def descendants(g: Arrays, row: int, found: Flags) -> None:
    """Mark the op `row` and every op that reads or follows it, at once or through others."""
    found[:] = False
    found[row] = True
    for op in range(row + 1, found.shape[0]):
        for r in range(g.read_ptr[op], g.read_ptr[op + 1]):
            if found[g.producer[g.read_value[r]]]:
                found[op] = True
        for a in range(g.after_ptr[op], g.after_ptr[op + 1]):
            if found[g.after_op[a]]:
                found[op] = True


@kernel
def ancestors(g: Arrays, row: int, found: Flags) -> None:
    """Mark every op that must have run before the first run of `row`, residents apart."""
    found[:] = False
    found[row] = True
    for op in range(row, -1, -1):
        if not found[op]:
            continue
        for r in range(g.read_ptr[op], g.read_ptr[op + 1]):
            found[g.producer[g.read_value[r]]] = True
        for a in range(g.after_ptr[op], g.after_ptr[op + 1]):
            found[g.after_op[a]] = True
    found[row] = False
    for op in range(row):
        if g.resident[op]:
            found[op] = False


@kernel
def holders(g: Arrays, storage_rep: Ints) -> None:
    """For each value, the value whose storage stands for its own: itself, what it is a view of, or -1 for none.

    Two live values with different holders are never on one storage: an update ends every older name on the storage it
    takes, and in-place does so too unless the pair is an identity. None have values on a resident, of 0 bytes, with
    several identity pairs, one of which will be taken, and views from an op that also updates what it views.
    """
    for v in range(storage_rep.shape[0]):
        op = g.producer[v]
        storage_rep[v] = v
        if g.resident[op] or g.storage_bytes[g.root[v]] == 0 or g.resident[g.producer[g.root[v]]]:
            storage_rep[v] = -1
        elif g.alias[v] >= 0:
            if not g.is_update[v]:
                storage_rep[v] = storage_rep[g.read_value[g.read_ptr[op] + g.alias[v]]]
                for other in range(g.out_ptr[op], g.out_ptr[op + 1]):
                    if g.is_update[other] and g.root[other] == g.root[v]:
                        storage_rep[v] = -1
        else:
            for pair in range(g.pair_ptr[op], g.pair_ptr[op + 1]):
                if not g.pair_identity[pair] or g.out_ptr[op] + g.pair_out[pair] != v:
                    continue
                under = g.read_value[g.read_ptr[op] + g.pair_in[pair]]
                if g.raw_bytes[g.root[under]] != g.raw_bytes[v] or g.resident[g.producer[g.root[under]]]:
                    continue
                if storage_rep[v] == v:
                    storage_rep[v] = storage_rep[under]
                elif storage_rep[v] != storage_rep[under]:
                    storage_rep[v] = -1


@kernel
def working_sets(g: Arrays, storage_rep: Ints, seen: Ints, working_bytes: Ints) -> None:
    """Bytes that nothing avoids at each op's step: residents, inputs, fresh outputs, workspace.

    In-place is granted wherever sizes allow.

    Args:
        seen [m]: working memory, -1 everywhere.
        working_bytes [n]: result.
    """
    for op in range(working_bytes.shape[0]):
        total = g.resident_bytes[0] + g.workspace[op]
        for r in range(g.read_ptr[op], g.read_ptr[op + 1]):
            h = storage_rep[g.read_value[r]]
            if h >= 0 and seen[h] != op:  # a storage read twice counts once
                seen[h] = op
                total += g.storage_bytes[g.root[h]]
        for v in range(g.out_ptr[op], g.out_ptr[op + 1]):
            granted = g.alias[v] >= 0 or g.resident[op]
            for pair in range(g.pair_ptr[op], g.pair_ptr[op + 1]):
                if g.out_ptr[op] + g.pair_out[pair] == v:
                    under = g.root[g.read_value[g.read_ptr[op] + g.pair_in[pair]]]
                    if g.raw_bytes[under] == g.raw_bytes[v] and not g.resident[g.producer[under]]:
                        granted = True
            if not granted:
                total += g.storage_bytes[v]
        working_bytes[op] = total


@kernel
def needs(g: Arrays, storage_rep: Ints, after: Flags, live_here: Flags, needed: Flags) -> None:
    """Mark the holders that ops still to run for the first time, and the outputs at the end, ask for.

    Args:
        after [n]: ops whose first run is at the instant or later.
        live_here [m]: holders that the op running at the instant reads.
        needed [m]: result; holders made before that have to be live, or made again.
    """
    needed[:] = False
    for op in range(after.shape[0]):
        if after[op]:
            for r in range(g.read_ptr[op], g.read_ptr[op + 1]):
                v = g.read_value[r]
                if storage_rep[v] >= 0 and not live_here[storage_rep[v]] and not after[g.producer[v]]:
                    needed[storage_rep[v]] = True
    for v in range(storage_rep.shape[0]):
        if g.is_output[v] and storage_rep[v] >= 0 and not live_here[storage_rep[v]] and not after[g.producer[v]]:
            needed[storage_rep[v]] = True


class Network:
    """Arcs of k nodes, both directions of each, and a flow on them."""

    first: Ints  # [k+1]: CSR of the arcs that leave each node
    to: Ints
    mate: Ints  # the other direction of each arc
    residual: Ints  # what each arc can still carry
    sink: Ints  # [k], as are excess, arc and label
    excess: Ints
    arc: Ints  # the arc of each node to look at next
    label: Ints  # above k after `push`: the node is on the source's side of a least cut
    active: Ints  # [2, k+2]: the first node with excess of each label, and the next of each node
    level: Ints  # [3, k+2]: the first node of each label, and the next and the previous of each node


NetworkType, NetworkProxy, new_network = struct(Network)


@kernel
def arcs_of(
    g: Arrays, storage_rep: Ints, after: Flags, live_here: Flags, needed: Flags, first: Ints, arcs: Ints
) -> int:
    """Arcs of the closure problem of one instant, as CSR with both directions of each.

    "Run again" demands what the op reads (unbounded); "at hand" but not run again costs the storage's bytes. A needed
    value is at the source: what demands it is no arc, and its bytes are the source's arc to its op.

    Args:
        needed [m]: see `needs`.
        first [n + m + 1], arcs [3, 2 * (reads + m)]: result: the node an arc goes to, its other direction, and its
            weight: -1 if unbounded, the holder's row if it costs its bytes, -2 on the backward directions.
    Returns:
        number of arcs.
    """
    n = after.shape[0]
    m = storage_rep.shape[0]
    none = np.int64(-1)  # a literal would have `_arc` compiled once more
    first[:] = 0
    for count in (True, False):  # first count, then fill
        for op in range(n):
            if after[op] or g.resident[op]:
                continue
            for r in range(g.read_ptr[op], g.read_ptr[op + 1]):
                h = storage_rep[g.read_value[r]]
                if h < 0 or live_here[h] or needed[h]:
                    continue
                if count:
                    first[op + 1] += 1
                    first[n + h + 1] += 1
                else:
                    _arc(op, n + h, none, first, arcs)
        for h in range(m):
            if storage_rep[h] != h or live_here[h] or needed[h] or after[g.producer[h]]:
                continue
            if count:
                first[n + h + 1] += 1
                first[g.producer[h] + 1] += 1
            else:
                _arc(n + h, g.producer[h], h, first, arcs)
        if count:
            for node in range(n + m):
                first[node + 1] += first[node]
    for node in range(n + m, 0, -1):  # filling moved each pointer to the next node's
        first[node] = first[node - 1]
    first[0] = 0
    return int(first[n + m])


@kernel
def _arc(tail: int, head: int, kind: int, first: Ints, arcs: Ints) -> None:
    forth, back = first[tail], first[head]
    first[tail] += 1
    first[head] += 1
    arcs[0, forth], arcs[0, back] = head, tail
    arcs[1, forth], arcs[1, back] = back, forth
    arcs[2, forth], arcs[2, back] = kind, -2


@kernel
def _label_all(network: Network) -> int:
    """Exact distances to the sink, by breadth-first search; returns the largest label of a node with excess."""
    first, to, mate, residual = network.first, network.to, network.mate, network.residual
    sink, label, active, level = network.sink, network.label, network.active, network.level
    nodes = sink.shape[0]
    label[:] = nodes + 1
    active[0, :] = -1
    level[0, :] = -1
    queue = active[1]  # no node is active while labels are made
    filled = 0
    for node in range(nodes):
        network.arc[node] = first[node]
        if sink[node] > 0:
            label[node] = 1
            queue[filled] = node
            filled += 1
    done = 0
    while done < filled:
        node = queue[done]
        done += 1
        for e in range(first[node], first[node + 1]):
            other = to[e]
            if label[other] > nodes and residual[mate[e]] > 0:
                label[other] = label[node] + 1
                queue[filled] = other
                filled += 1
    highest = 0
    for node in range(nodes):
        if label[node] > nodes:
            continue
        _enter(node, label[node], level)
        if network.excess[node] > 0:
            active[1, node] = active[0, label[node]]
            active[0, label[node]] = node
            highest = max(highest, label[node])
    return highest


@kernel
def _enter(node: int, height: int, level: Ints) -> None:
    """Put a node on the list of its label: see `Network.level`."""
    following = level[0, height]
    level[1, node] = following
    level[2, node] = -1
    if following >= 0:
        level[2, following] = node
    level[0, height] = node


@kernel
def _exit(node: int, height: int, level: Ints) -> None:
    """Take a node off the list of its label."""
    following, previous = level[1, node], level[2, node]
    if previous >= 0:
        level[1, previous] = following
    else:
        level[0, height] = following
    if following >= 0:
        level[2, following] = previous


@kernel
def push(network: Network, most_work: int) -> bool:
    """Send what excess can reach the sink: highest label first, labels made anew from time to time, cut off at gaps.

    Flow that is there already is kept, so after raising capacities (`residual`, `excess`, `sink`) the call goes on from
    where the one before ended. Excess that cannot reach the sink stays where it is: that is enough for the cut.

    Args:
        most_work: arcs looked at before it returns.
    Returns:
        True if the flow is a largest one.
    Source: Cherkassky & Goldberg 1997, "On implementing the push-relabel method for the maximum flow problem".
    """
    first, to, mate, residual = network.first, network.to, network.mate, network.residual
    sink, excess, arc = network.sink, network.excess, network.arc
    label, active, level = network.label, network.active, network.level
    nodes = sink.shape[0]
    period = 2 * nodes + to.shape[0]
    total = 0
    work = 0
    highest = _label_all(network)
    while highest > 0:
        node = active[0, highest]
        if node < 0:
            highest -= 1
            continue
        active[0, highest] = active[1, node]
        height = highest
        while True:
            if height == 1 and sink[node] > 0:
                amount = min(excess[node], sink[node])
                sink[node] -= amount
                excess[node] -= amount
            e = arc[node]
            stop = first[node + 1]
            while excess[node] > 0 and e < stop:
                other = to[e]
                if residual[e] > 0 and label[other] == height - 1:
                    amount = min(excess[node], residual[e])
                    if excess[other] == 0:
                        active[1, other] = active[0, height - 1]
                        active[0, height - 1] = other
                    residual[e] -= amount
                    residual[mate[e]] += amount
                    excess[node] -= amount
                    excess[other] += amount
                    if excess[node] == 0:
                        break
                e += 1
            work += e - arc[node] + 1
            arc[node] = e
            if excess[node] == 0:
                break
            _exit(node, height, level)
            lowest = nodes + 1
            if level[0, height] < 0:  # a gap: nothing above it reaches the sink any more
                above = height + 1
                while above <= nodes and level[0, above] >= 0:
                    other = level[0, above]
                    while other >= 0:
                        label[other] = nodes + 1
                        other = level[1, other]
                    level[0, above] = -1
                    active[0, above] = -1
                    above += 1
            else:
                lowest = 1 if sink[node] > 0 else nodes + 1
                for e in range(first[node], stop):
                    if residual[e] > 0 and label[to[e]] + 1 < lowest:
                        lowest = label[to[e]] + 1
                work += stop - first[node]
            label[node] = lowest
            if lowest > nodes:
                break
            _enter(node, lowest, level)
            arc[node] = first[node]
            height = lowest
        highest = max(highest, height)
        if work > period:
            total += work
            work = 0
            highest = _label_all(network)
            if total > most_work and highest > 0:
                return False
    _label_all(network)
    return True
