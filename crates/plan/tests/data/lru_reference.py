#!/usr/bin/env python3
"""Writes lru_reference.txt: hits of LRU caches by libCacheSim, to compare `imago_plan::reuse::exact` with.

    pip install libcachesim==0.3.5
    python3 lru_reference.py > lru_reference.txt

libCacheSim is under the GPL: it is neither linked nor shipped, only its numbers are here. The traces are drawn by
the generator below, which the test `reuse_reference` repeats.
"""

import os
import sys
import tempfile

import libcachesim

HEADER = """\
# Hits of LRU caches of entries of equal size, by libCacheSim 0.3.5 (ignore_obj_size), written by lru_reference.py.
# A line is a trace: its seed, its references and its distinct keys; then the hits of a cache of one entry, and what
# each further entry adds, to as many entries as there are keys and one more."""
TRACES = 100


class Draw:
    """Numbers by the linear congruential generator of Knuth's MMIX."""

    def __init__(self, seed):
        self.state = seed

    def below(self, bound):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % bound


def trace(seed):
    """References of one of four kinds: uniform, skewed, in loops of growing length, and in changing regions."""
    draw = Draw(seed)
    references = 300 + draw.below(2200)
    keys = 10 + draw.below(300)
    kind = seed % 4
    at = 0
    drawn = []
    for n in range(references):
        if kind == 0:
            key = draw.below(keys)
        elif kind == 1:
            key = min(draw.below(keys), draw.below(keys), draw.below(keys))
        elif kind == 2:
            at = 0 if draw.below(40) == 0 else at + 1
            key = at % keys
        else:
            key = (n // 200 * 37 + draw.below(1 + keys // 5)) % keys
        drawn.append(1 + key)
    return drawn


def hits(path, references, entries):
    reader = libcachesim.TraceReader(
        trace=path,
        trace_type=libcachesim.TraceType.PLAIN_TXT_TRACE,
        reader_init_params=libcachesim.ReaderInitParam(ignore_obj_size=True),
    )
    miss_ratio = libcachesim.LRU(cache_size=entries).process_trace(reader)[0]
    return references - round(miss_ratio * references)


def line(path, seed):
    keys = trace(seed)
    with open(path, "w", encoding="ascii") as out:
        out.writelines(f"{key}\n" for key in keys)
    distinct = len(set(keys))
    told = [0] + [hits(path, len(keys), n) for n in range(1, distinct + 2)]
    added = (str(more - less) for less, more in zip(told, told[1:]))
    return " ".join([str(seed), str(len(keys)), str(distinct), *added])


def main():
    print(HEADER)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.txt")
        for seed in range(1, TRACES + 1):
            print(line(path, seed), flush=True)
            print(f"{seed} of {TRACES}", file=sys.stderr)


if __name__ == "__main__":
    main()
