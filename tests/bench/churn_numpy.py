#!/usr/bin/env python3
"""Churn of page sets in numpy: to compare `tidewake churn` with, in figures and in time.

    python3 tests/bench/churn_numpy.py RUN.h5 [--program ./tidewake] [--page-size 16] [--layers N]

Computes temporal stability, drift events and adjacent-step Jaccard as docs/spec/churn.md defines them, a head at a time
with whole-run array operations, and the activity of the score thresholds. Prints both times, their ratio, and the largest
difference. With --layers only the first N layers are measured here (and the time is scaled up), for large traces.
Needs numpy, h5py and hdf5plugin.
"""
import argparse
import json
import subprocess
import time

import h5py
import hdf5plugin  # noqa: F401  registers the zstd filter
import numpy as np

WINDOW = 16


def presence(rows, page_size, n_pages):
    """[S, K] positions of one head -> [S, n_pages] bool."""
    wanted = np.zeros((rows.shape[0], n_pages), bool)
    step, k = np.nonzero(rows >= 0)
    wanted[step, rows[step, k] // page_size] = True
    return wanted


def rco(both, a, b, n):
    k = np.minimum(a, b).astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.maximum(0, (np.minimum(1, both / k) - k / n) / (1 - k / n))
    return np.where((k == 0) | (n <= k), 1.0, value)


def stability(wanted, size, pool):
    n = wanted.shape[0]
    window = min(WINDOW, n)
    starts = n - window + 1
    total = np.zeros(starts)
    for d in range(1, window):
        both = (wanted[:starts] & wanted[d:d + starts]).sum(1)
        total += rco(both, size[:starts], size[d:d + starts], pool[d:d + starts])
    return (total / (window - 1)).mean()


def drifts(wanted, size):
    """Baselines follow each other, so that the overlaps with one are computed until its event."""
    events, base, t, n = 0, 0, 1, wanted.shape[0]
    while t < n:
        both = (wanted[t:] & wanted[base]).sum(1)
        smaller = np.minimum(size[t:], size[base])
        overlap = np.where(smaller > 0, both / np.maximum(smaller, 1), 0.0)
        if overlap.size < 8:
            break
        median = np.median(np.lib.stride_tricks.sliding_window_view(overlap, 8), axis=1)
        below = np.nonzero(median < 0.5)[0]
        if below.size == 0:
            break
        events += 1
        base = t + below[0] + 7
        t = base + 1
    return events


def jaccard(wanted, size):
    both = (wanted[:-1] & wanted[1:]).sum(1)
    either = size[:-1] + size[1:] - both
    return np.where(either > 0, both / np.maximum(either, 1), 1.0).mean()


def measure(path, page_size, layers):
    with h5py.File(path, "r") as f:
        position = f["/topk/position"]
        context = f["/step/context_length"][...].astype(np.int64)
        n_layers = min(layers or position.shape[1], position.shape[1])
        n_pages = int((context.max() - 1) // page_size + 1)
        pool = np.maximum(1, context // page_size + 1).astype(float)
        result = {"stability": [], "drift": 0, "jaccard": []}
        for layer in range(n_layers):
            block = position[:, layer]
            for head in range(block.shape[1]):
                wanted = presence(block[:, head], page_size, n_pages)
                size = wanted.sum(1)
                result["stability"].append(stability(wanted, size, pool))
                result["drift"] += drifts(wanted, size)
                result["jaccard"].append(jaccard(wanted, size))
        return result, position.shape[1] / n_layers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace")
    parser.add_argument("--program", default="./tidewake")
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--layers", type=int, default=0)
    args = parser.parse_args()

    begin = time.perf_counter()
    out = subprocess.run([args.program, "churn", args.trace, "--page-size", str(args.page_size), "--format", "json"],
                         check=True, capture_output=True, text=True).stdout
    ours = time.perf_counter() - begin
    churn = json.loads(out)

    begin = time.perf_counter()
    result, scale = measure(args.trace, args.page_size, args.layers)
    theirs = (time.perf_counter() - begin) * scale

    n = len(result["stability"])
    per_head = np.array(churn["temporal_stability"]["per_head"][:n], float)
    difference = np.abs(per_head - np.array(result["stability"])).max()
    events = sum(1 for head, _ in churn["drift"]["events"] if head < n)
    print(f"tidewake {ours:.2f} s, numpy {theirs:.2f} s{' (scaled up)' if scale > 1 else ''}, ratio {theirs / ours:.1f}")
    print(f"stability: largest difference {difference:.2e}; drift events {events} and {result['drift']}")
    if scale == 1:
        print(f"page Jaccard: {churn['page_jaccard']['adjacent_jaccard']:.12f} and {np.mean(result['jaccard']):.12f}")
    if difference > 1e-9 or events != result["drift"]:
        raise SystemExit("the figures differ")


if __name__ == "__main__":
    main()
