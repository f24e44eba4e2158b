"""An independent, slow and obvious replay of the policies of docs/spec/residency.md, to compare with and to time against.

    python3 replay_reference.py TRACE.h5 --policy full,reactive,... --budget 8,16 --page-size 16 --unit query

prints the columns of `tidewake replay` from page_size on. Needs numpy, h5py and hdf5plugin.

Unit-major: each unit (or, for reasonalloc, each layer) is replayed over all steps by itself and adds
its resident count to a per-step total.  Scores are integers (multiples of 2**-24, which every float16
is), and ReasonAlloc's shares are exact fractions, so no result depends on rounding.
"""
from fractions import Fraction
import numpy as np

SCALE = 1 << 24


def demand(position, weight, page_size, unit, n_kv):
    """-> list over layers of list over units of list over steps of (pages list ascending, int score list)"""
    S, L, H, K = position.shape
    out = []
    for l in range(L):
        pos = np.asarray(position[:, l])
        w = np.asarray(weight[:, l]).astype(np.float64) * SCALE
        wi = w.astype(np.int64)
        assert np.array_equal(wi.astype(np.float64), w)
        if unit == "kv":
            g = H // n_kv
            pos = pos.reshape(S, n_kv, g * K)
            wi = wi.reshape(S, n_kv, g * K)
        U = pos.shape[1]
        units = []
        for u in range(U):
            steps = []
            for t in range(S):
                m = pos[t, u] >= 0
                pg = pos[t, u][m] // page_size
                if pg.size == 0:
                    steps.append(((), ()))
                    continue
                p, inv = np.unique(pg, return_inverse=True)
                sc = np.zeros(p.size, np.int64)
                np.add.at(sc, inv, wi[t, u][m])
                steps.append((tuple(p.tolist()), tuple(sc.tolist())))
            units.append(steps)
        out.append(units)
    return out


class Tally:
    def __init__(self, S):
        self.accesses = self.misses = self.fetches = 0
        self.fetch_at = np.zeros(S, np.int64)
        self.resident = np.zeros(S, np.int64)

    def result(self):
        S = len(self.resident)
        return dict(accesses=self.accesses, misses=self.misses, fetches=self.fetches,
                    stall_steps=int((self.fetch_at > 0).sum()), resident_page_steps=int(self.resident.sum()),
                    peak_resident=int(self.resident.max()) if S else 0, steps=S)


def keep_top(score, n):
    """the n pages with the highest score; equal score: higher id preferred"""
    order = sorted(score, key=lambda p: (score[p], p))
    return set(order[len(order) - n:]) if n < len(order) else set(order)


def full(units, S, **_):
    r = Tally(S)
    for steps in units:
        seen = set()
        for t, (pg, _s) in enumerate(steps):
            r.accesses += len(pg)
            seen.update(pg)
            r.resident[t] += len(seen)
    return r


def reactive(units, S, B, destroy=False, **_):
    r = Tally(S)
    for steps in units:
        last = {}
        away = set()
        for t, (pg, _s) in enumerate(steps):
            r.accesses += len(pg)
            for p in pg:
                if p in away:
                    r.misses += 1
                    if destroy:
                        continue
                    r.fetches += 1
                    r.fetch_at[t] += 1
                    away.discard(p)
                last[p] = t
            over = len(last) - B
            if over > 0:
                for p in sorted(last, key=lambda q: (last[q], q))[:over]:
                    del last[p]
                    away.add(p)
            r.resident[t] += len(last)
    return r


def evict(units, S, B, **_):
    return reactive(units, S, B, destroy=True)


def frozen(units, S, B, refresh=16, unstable_frac=0.25, **_):
    r = Tally(S)
    key = []
    for u, steps in enumerate(units):
        js = []
        for a, b in zip(steps, steps[1:]):
            A, Bq = set(a[0]), set(b[0])
            if A or Bq:
                js.append(Fraction(len(A & Bq), len(A | Bq)))
        key.append((sum(js, Fraction(0)) / len(js) if js else Fraction(1), u))
    n = round(len(units) * unstable_frac)
    unstable = {u for _k, u in sorted(key)[:n]}
    for u, steps in enumerate(units):
        if u in unstable:
            seen = set()
            for t, (pg, _s) in enumerate(steps):
                r.accesses += len(pg)
                seen.update(pg)
                r.resident[t] += len(seen)
            continue
        fixed, count = set(), {}
        for t, (pg, _s) in enumerate(steps):
            r.accesses += len(pg)
            for p in pg:
                r.misses += p not in fixed
                count[p] = count.get(p, 0) + 1
            if (t + 1) % refresh == 0:
                if count:
                    new = keep_top(count, B)
                    k = len(new - fixed)
                    r.fetches += k
                    fixed = new
                count = {}
            r.resident[t] += len(fixed)
    return r


def snapkv(units, S, B, **_):
    r = Tally(S)
    for steps in units:
        pg, sc = steps[0]
        kept = keep_top(dict(zip(pg, sc)), B)
        boundary = 1 + max(pg) if pg else 0
        for t, (pg, _s) in enumerate(steps):
            r.accesses += len(pg)
            for p in pg:
                if p >= boundary:
                    kept.add(p)
                elif p not in kept:
                    r.misses += 1
            r.resident[t] += len(kept)
    return r


def budgets(scores, B, mu=Fraction(1, 4)):
    """scores: list over heads of {page: score}"""
    H = len(scores)
    b = B * H
    pool = sorted((s for d in scores for s in d.values()), reverse=True)
    tau = pool[b - 1] if len(pool) >= b and b > 0 else None
    r = [sum(1 for s in d.values() if tau is None or s >= tau) for d in scores]
    f = mu * b / H
    if f * H >= b:
        share = [Fraction(b, H)] * H
    else:
        x = [max(Fraction(ri) - f, Fraction(0)) for ri in r]
        tot = sum(x)
        rest = b - f * H
        share = [f + (rest * xi / tot if tot else rest / H) for xi in x]
    out = [int(s) for s in share]
    left = b - sum(out)
    for i in sorted(range(H), key=lambda i: (-(share[i] - out[i]), i))[:left]:
        out[i] += 1
    assert sum(out) == b
    return out


def scored(layers, S, B, every, dynamic):
    r = Tally(S)
    for units in layers:
        res = [dict() for _ in units]
        gone = [set() for _ in units]
        for t in range(S):
            for u, steps in enumerate(units):
                pg, sc = steps[t]
                r.accesses += len(pg)
                for p, s in zip(pg, sc):
                    if p in gone[u]:
                        r.misses += 1
                    else:
                        res[u][p] = res[u].get(p, 0) + s
            if (t + 1) % every == 0:
                bs = budgets(res, B) if dynamic else [B] * len(units)
                for u in range(len(units)):
                    keep = keep_top(res[u], bs[u])
                    gone[u] |= res[u].keys() - keep
                    res[u] = {p: 0 for p in keep}
            r.resident[t] += sum(map(len, res))
    return r


def replay(layers, S, policy, B, **kw):
    flat = [u for units in layers for u in units]
    if policy == "rkv":
        return scored(layers, S, B, kw.get("interval", 128), False).result()
    if policy == "reasonalloc":
        return scored(layers, S, B, kw.get("delta", 128), True).result()
    return dict(full=full, reactive=reactive, evict=evict, frozen=frozen, snapkv=snapkv, min=minimum)[policy](
        flat, S, B=B, **kw).result()


def minimum(units, S, B, **_):
    """Belady: after a step keep the B pages whose next use is soonest; never used again goes first, then lower ids."""
    r = Tally(S)
    for steps in units:
        uses = {}
        for t, (pg, _s) in enumerate(steps):
            for p in pg:
                uses.setdefault(p, []).append(t)
        resident, seen, at = set(), set(), {}
        for t, (pg, _s) in enumerate(steps):
            r.accesses += len(pg)
            for p in pg:
                if p in seen and p not in resident:
                    r.misses += 1
                    r.fetches += 1
                    r.fetch_at[t] += 1
                seen.add(p)
                at[p] = at.get(p, 0) + 1
            resident |= set(pg)
            if len(resident) > B:
                def next_use(p):
                    return uses[p][at[p]] if at[p] < len(uses[p]) else S
                order = sorted(resident, key=lambda p: (-next_use(p), p))
                resident = set(order[len(order) - B:]) if B else set()
            r.resident[t] += len(resident)
    return r


def main():
    import argparse
    import h5py
    try:
        import hdf5plugin  # noqa: F401  (registers the zstd filter; without it HDF5_PLUGIN_PATH has to)
    except ImportError:
        pass
    a = argparse.ArgumentParser()
    a.add_argument("trace")
    a.add_argument("--policy", default="full,reactive,evict,frozen,snapkv,rkv,reasonalloc,min")
    a.add_argument("--budget", default="8,16,32,64")
    a.add_argument("--page-size", default="16")
    a.add_argument("--unit", default="query")
    a.add_argument("--layers", help="A..B, inclusive: only these layers")
    a = a.parse_args()
    f = h5py.File(a.trace)
    a0, b0 = map(int, a.layers.split("..")) if a.layers else (0, f["topk/position"].shape[1] - 1)
    pos, w = f["topk/position"][:, a0:b0 + 1], f["topk/weight"][:, a0:b0 + 1]
    print("page_size,unit,policy,budget,steps,units,accesses,misses,miss_rate,fetches,stall_steps,resident_page_steps,mean_resident,peak_resident")
    for page in map(int, a.page_size.split(",")):
        for unit in a.unit.split(","):
            layers = demand(pos, w, page, unit, int(f.attrs["n_kv_heads"]))
            for policy in a.policy.split(","):
                for B in [0] if policy == "full" else map(int, a.budget.split(",")):
                    x = replay(layers, pos.shape[0], policy, B)
                    rate = x["misses"] / x["accesses"] if x["accesses"] else ""
                    print(",".join(str(v) for v in (page, unit, policy, "" if policy == "full" else B, x["steps"], sum(map(len, layers)), x["accesses"],
                          x["misses"], rate, x["fetches"], x["stall_steps"], x["resident_page_steps"], x["resident_page_steps"] / x["steps"], x["peak_resident"])))


if __name__ == "__main__":
    main()
