#!/usr/bin/env python3
"""How fast replay is, beside an independent Python replay of the same file on the same machine.

    make bench-replay                      makes build/bench/cot8b.h5 (2048 steps, 32 layers, 32 heads) and measures it
    tests/bench/replay.py TRACE.h5 BUILD   the same for a trace that is there, with the program under BUILD

Prints seconds in each stage; then, from file to CSV, the paper's table, 11 budgets and the whole curve, as wall time and as
processor time, and the ratio to replay_reference.py, which is timed on one layer (less what Python takes to start) and scaled to all of them. For the curve
the reference is timed on every fourth budget and scaled. Pairs are run one after the other, twice, the faster time counts.
"""
import os
import resource
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
REFERENCE_POLICIES = "full,reactive,evict,frozen,snapkv,rkv,reasonalloc"
# Name, budgets, budgets of the reference, what its time is multiplied by, target.
CASES = [
    ("paper's table, B = 8, 16, 32, 64", "8,16,32,64", "8,16,32,64", 1, 100),
    ("11 budgets", "1,2,4,8,16,24,32,48,64,96,128", "1,2,4,8,16,24,32,48,64,96,128", 1, 250),
    ("the whole curve, B = 1..64", "1..64", ",".join(str(b) for b in range(2, 65, 4)), 4, 1000),
]


def timed(command, env=None):
    """-> wall seconds, processor seconds, peak MB"""
    begin = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env)
    _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        sys.exit("failed: " + " ".join(command))
    return time.monotonic() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def shape(trace, python, env):
    code = "import h5py, sys; print(*h5py.File(sys.argv[1])['topk/position'].shape)"
    out = subprocess.run([python, "-c", code, trace], env=env, check=True, capture_output=True, text=True).stdout
    return list(map(int, out.split()))


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    trace, build = sys.argv[1], sys.argv[2]
    python = os.environ.get("PYTHON", "/usr/bin/python3")
    env = dict(os.environ, HDF5_PLUGIN_PATH=os.path.abspath(os.path.join(build, "plugin")))
    program, stages = os.path.join(build, "tidewake"), os.path.join(build, "bench", "replay")
    n_steps, n_layers, n_heads, top_k = shape(trace, python, env)
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    print(f"{cpu}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; {n_steps} steps, {n_layers} layers, "
          f"{n_heads} heads, top {top_k}", flush=True)
    for budgets in ("8,16,32,64", "1..64"):
        subprocess.run([stages, trace, budgets], check=True)
    subprocess.run([stages, trace, "16", "reactive"], check=True)
    half = f"0..{n_steps // 2 - 1}"
    print("from file to CSV (wall s, processor s):", flush=True)
    start = [min(times) for times in zip(*(timed([python, "-c", "import h5py, numpy"], env) for _ in range(3)))]
    for name, budgets, sample, factor, target in CASES:
        ours, theirs = None, None
        for _ in range(2):
            run = timed([program, "replay", trace, "--budget", budgets, "--format", "csv"])
            reference = timed([python, os.path.join(HERE, "replay_reference.py"), trace, "--policy", REFERENCE_POLICIES,
                               "--budget", sample, "--layers", "0..0"], env)
            ours = run if ours is None else tuple(map(min, ours, run))
            theirs = reference if theirs is None else tuple(map(min, theirs, reference))
        theirs = [a - b for a, b in zip(theirs, start)]  # starting Python is not scaled
        scale = n_layers * factor
        print(f"  {name}: {ours[0]:.2f} s, {ours[1]:.2f} s, {ours[2]:.0f} MB; Python, one layer{', a quarter of the budgets' if factor > 1 else ''} "
              f"x {scale}: {theirs[0] * scale:.0f} s, {theirs[1] * scale:.0f} s; ratio of wall times {theirs[0] * scale / ours[0]:.0f}, "
              f"of processor times on {os.cpu_count()} cores {theirs[1] * scale / ours[1] * os.cpu_count():.0f} (target {target})", flush=True)
    for name, arguments in (("all steps", []), ("half the steps", ["--steps", half])):
        print(f"  8, 16, 32, 64, {name}: {min(timed([program, 'replay', trace, *arguments, '--format', 'csv'])[1] for _ in range(3)):.2f} "
              "processor s", flush=True)
    for budgets in ("1..5", "1..50", "1..51", "1..512"):
        print(f"  B = {budgets}: {min(timed([program, 'replay', trace, '--budget', budgets, '--format', 'csv'])[1] for _ in range(3)):.2f} "
              "processor s", flush=True)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
