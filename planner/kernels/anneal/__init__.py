"""Search over sequences of runs: what is dropped, when it is made again, and the order of everything.

A state is a list of *runs* (one execution of an op each) with canonical frees, so it determines the memory at every
step. A move is a few insertions and deletions of runs, evaluated as they happen and undone in reverse.

    state                       the struct, and a graph in it
    liveness                    bytes at every run
    runs                        runs put in and taken out, and who reads what
    changes                     legal changes, and their undoing
    draws, moves, annealing     random ones, cooled
    drops, orders               greedy ones

The model knows storages as lifetimes of values; where views are made anew apart from their base it is approximate, so
the caller confirms what it keeps by the exact replay.
"""
