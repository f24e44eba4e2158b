#!/usr/bin/env python3
"""What ptxas says of each kernel and what a processor holds of it, as a table in Markdown.

Usage: scripts/cuda-listing.py SHARED PTXAS...    (make cuda-listing)
SHARED: the program that prints threads and dynamic shared memory (tests/bench/cuda/shared.cpp). PTXAS: listings of ptxas -v.
A cell: registers a thread, blocks and warps that a processor (SM) of that architecture holds at once, and bytes spilled if any.
Fails when a kernel of the tiled attention spills.
"""
import re
import subprocess
import sys

# Of a processor: warps, blocks, KiB of shared memory (CUDA programming guide, "Compute Capabilities"; cuda_occupancy.h). All
# have 65536 registers, given to a warp in steps of 256 and to warps in fours, and take 1 KiB of shared memory a block for
# themselves; shared memory comes in steps of 128 bytes.
LIMITS = {80: (64, 32, 164), 86: (48, 16, 100), 87: (48, 16, 164), 89: (48, 24, 100), 90: (64, 32, 228),
          100: (64, 32, 228), 120: (48, 24, 100)}


def up(value, step):
    return -(-value // step) * step


def blocks(arch, threads, registers, shared):
    warps_most, blocks_most, kib = LIMITS[arch]
    warps = up(threads, 32) // 32
    by_registers = 65536 // up(registers * 32, 256) // 4 * 4 // warps
    by_shared = kib * 1024 // (up(shared, 128) + 1024)
    return min(warps_most // warps, blocks_most, by_registers, by_shared)


def shown(name):
    """The name without its arguments and with all stored types in one: product<type, 8>."""
    name = re.sub(r"^void ", "", name)
    depth = 0
    for at, c in enumerate(name):
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0:
            name = name[:at]
            break
    return re.sub(r"tw_stored<\d+>", "any type", name)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    launch = {}
    for row in subprocess.run([sys.argv[1]], check=True, capture_output=True, text=True).stdout.splitlines():
        name, threads, shared = row.split("\t")
        launch[name] = int(threads), int(shared)
    found = []
    pattern = re.compile(r"Compiling entry function '(\S+)' for 'sm_(\d+)'\n.*\n\s+\d+ bytes stack frame, (\d+) bytes spill stores, "
                         r"(\d+) bytes spill loads\nptxas info\s+: Used (\d+) registers(.*)")
    for path in sys.argv[2:]:
        found += pattern.findall(open(path).read())
    names = subprocess.run(["c++filt"], input="\n".join(f[0] for f in found), check=True, capture_output=True, text=True).stdout.split("\n")
    table = {}
    for (_, arch, stores, loads, registers, rest), name in zip(found, names):
        name = shown(name)
        static = re.search(r"(\d+) bytes smem", rest)
        threads, dynamic = launch.get(name) or launch.get(name.split("<")[0]) or sys.exit(f"{sys.argv[1]} does not know '{name}'")
        shared = dynamic + (int(static.group(1)) if static else 0)
        # The most of all stored types.
        old = table.setdefault(name, {}).get(int(arch), (0, 0, 0, 0))
        table[name][int(arch)] = tuple(max(pair) for pair in zip(old, (int(registers), int(stores) + int(loads), shared, threads)))
    archs = sorted({arch for row in table.values() for arch in row})
    print("| kernel | threads | shared, bytes |" + "".join(f" sm_{arch} |" for arch in archs))
    print("| --- " * (3 + len(archs)) + "|")
    key = lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
    spilled = []
    for name in sorted(table, key=key):
        row, cells = table[name], []
        for arch in archs:
            registers, spill, shared, threads = row[arch]
            held = blocks(arch, threads, registers, shared)
            cells.append(f"{registers}, {held} x {up(threads, 32) // 32}" + (f", spills {spill}" if spill else ""))
            if spill and name.startswith("attend<"):
                spilled.append(f"{name} on sm_{arch}")
        first = row[archs[0]]
        print(f"| `{name.replace('__nv_bfloat16', 'bf16')}` | {first[3]} | {max(r[2] for r in row.values())} | " + " | ".join(cells) + " |")
    if spilled:
        sys.exit("attention spills: " + ", ".join(spilled))


main()
