"""Reads a trace with h5py and compares it with what `tidewake convert TRACE -` printed. Needs HDF5_PLUGIN_PATH.

    python3 read_trace.py TRACE.h5 TRACE.csv [attribute=text ...]
"""
import sys

import h5py
import numpy as np

f = h5py.File(sys.argv[1], "r")
n = int(f.attrs["n_steps"])
position, weight = f["topk/position"][:n], f["topk/weight"][:n]
assert position.dtype == "<i4" and weight.dtype in ("<f2", "<f4"), (position.dtype, weight.dtype)
for name in ("topk/position", "topk/weight", "step/token_id", "step/context_length"):
    plan = f[name].id.get_create_plist()
    last = plan.get_filter(plan.get_nfilters() - 1)
    assert last[0] == 32015 and not last[1] & 1, (name, last)  # zstd, and not optional
    assert f[name].shape[0] >= n
rows = np.loadtxt(sys.argv[2], delimiter=",", skiprows=1, ndmin=2)
seen = np.full(position.shape, -1)
got = np.zeros(position.shape, np.float16)
index = tuple(rows[:, :4].astype(int).T)
seen[index] = rows[:, 4]
got[index] = rows[:, 5]
assert np.array_equal(seen, position)
assert np.array_equal(got[position >= 0], weight[position >= 0].astype(np.float16))
for wanted in sys.argv[3:]:
    name, value = wanted.split("=", 1)
    assert isinstance(f.attrs[name], str) and f.attrs[name] == value, (name, f.attrs[name])
print(n, int(position.sum(dtype=np.int64)), f["topk/position"].id.get_storage_size() / position.nbytes if n else 0)
