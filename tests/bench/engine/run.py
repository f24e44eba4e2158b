#!/usr/bin/env python3
"""The engine against llama.cpp: the same GGUF, prompt and number of threads, alternating in one run.

  run.py --program build/gcc/bench_engine --model MODEL.gguf [--threads N] [--lengths 512,2048,8000]
         --prompt PROMPT.json [--rounds 3] [--steps 48] [--busy] [--processor-time] [--venv FOLDER] [--no-peer]

Builds llama-cpp-python from PyPI in a virtual environment (FOLDER, kept; minutes of compiling the first time) and prints
the table of docs/performance.md, with the processor and its measured peak. The best of the rounds counts, for both;
what is set against something measured beside it (reading, logging), the median.
--busy measures once more while another process keeps one core busy. --processor-time (one thread) counts the processes'
processor time, for a machine that has other things to do.
"""
import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

PEER = "llama-cpp-python==0.3.36"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", required=True, help="JSON with prompt_ids, repeated as often as needed")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--lengths", default="512,2048,8000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--venv", default="build/bench/venv")
    parser.add_argument("--no-peer", action="store_true")
    return parser.parse_args()


def enter_environment(folder):
    """Runs this script again inside the virtual environment, which is made when it is not there."""
    python = os.path.join(folder, "bin", "python")
    if os.path.realpath(sys.prefix) == os.path.realpath(folder):
        return
    if not os.path.exists(python):
        print(f"making {folder} with {PEER}: this compiles llama.cpp", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-binary", "llama-cpp-python", PEER], check=True)
    os.execv(python, [python, *sys.argv])


class Ours:
    def __init__(self, a, tokens):
        self.file = tempfile.NamedTemporaryFile("w", suffix=".txt")
        self.file.write("\n".join(map(str, tokens)))
        self.file.flush()
        command = [a.program, a.model, self.file.name, str(a.threads)] + (["processor"] if a.processor_time else [])
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit("the engine's side stopped")
        return answer.strip()

    def numbers(self, line):
        return [float(x) for x in self.ask(line).split()]


class Peer:
    """llama.cpp through its C interface: plain batches, greedy, nothing logged."""

    def __init__(self, a, tokens):
        import llama_cpp

        self.lib, self.tokens, self.threads = llama_cpp, tokens, a.threads
        self.clock = time.process_time if a.processor_time else time.perf_counter
        self.log = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self.log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        # Repacking for AMX ends in a segmentation fault at the first Q4_1 product of a batch (0.3.36, gcc 12).
        params.use_extra_bufts = not has_amx()
        self.model = llama_cpp.llama_model_load_from_file(a.model.encode(), params)

    def run(self, n, flash, batch, steps):
        """Seconds of a prompt of n tokens, and of `steps` tokens after it."""
        lib, params = self.lib, self.lib.llama_context_default_params()
        params.n_ctx = (n + steps + 255) // 256 * 256
        params.n_batch = params.n_ubatch = batch
        params.n_threads = params.n_threads_batch = self.threads
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        context = lib.llama_init_from_model(self.model, params)

        def decode(ids):
            array = (lib.llama_token * len(ids))(*ids)
            if lib.llama_decode(context, lib.llama_batch_get_one(array, len(ids))) != 0:
                sys.exit("llama_decode failed")

        started = self.clock()
        for at in range(0, n, batch):
            decode(self.tokens[at : min(at + batch, n)])
        lib.llama_synchronize(context)
        prefill = self.clock() - started
        started = self.clock()
        for i in range(steps):
            decode([self.tokens[n + i]])
        lib.llama_synchronize(context)
        seconds = self.clock() - started
        lib.llama_free(context)
        return prefill, seconds


def has_amx():
    with open("/proc/cpuinfo") as file:
        return any("amx_tile" in line for line in file)


def cpu_model():
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return "unknown"


class Busy:
    def __init__(self, wanted):
        self.process = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if wanted else None

    def end(self):
        if self.process:
            self.process.kill()
            self.process.wait()


def measure(a, ours, peer, lengths, busy):
    """{length: figures}; every round asks both, one after the other."""
    results = {}
    for n in lengths:
        names = "prefill plain logged log_ratio read read_share writing llama_prefill llama_decode"
        r = {name: [] for name in names.split()}
        settings = [(flash, batch) for flash in (False, True) for batch in (512, 2048)]
        if n > 4000:
            settings = [(False, 512), (True, 512)]
        best_setting = None
        for round_number in range(a.rounds):
            neighbour = Busy(busy)
            try:
                seconds, layer_end, gflop = ours.numbers(f"prefill {n}")
                r["prefill"].append(seconds)
                r["layer_end"], r["gflop"] = layer_end, gflop
                ours.numbers(f"context {n}")
                ours.numbers("decode 8 1")
                # What is compared stands side by side: the memory that a machine gives changes from second to second.
                steps = a.steps // 2
                for _ in range(3):
                    plain, _ = ours.numbers(f"decode {steps} 0")
                    logged, size = ours.numbers(f"decode {steps} 1")
                    r["plain"].append(plain / steps)
                    r["logged"].append(logged / steps)
                    r["log_ratio"].append(plain / logged)
                    r["read"].append(ours.numbers("read")[0])
                    r["read_share"].append(size * 1e-9 / logged / r["read"][-1])
                decoding, writing = ours.numbers(f"trace {n} 150")
                r["writing"].append(writing / (decoding + writing))
                if peer:
                    times = {s: peer.run(n, s[0], s[1], a.steps) for s in ([best_setting] if best_setting else settings)}
                    best_setting = min(times, key=lambda s: times[s][0])
                    r["llama_prefill"].append(times[best_setting][0])
                    r["llama_decode"].append(min(t[1] for t in times.values()) / a.steps)
            finally:
                neighbour.end()
        results[n] = r
        r["peak"] = ours.numbers("peak")[0]
        print(f"  {n} done", file=sys.stderr)
    return results


def table(title, results, ratios):
    print(f"\n{title}\n")
    print("| figure | " + " | ".join(str(n) for n in results) + " |")
    print("| --- |" + " --- |" * len(results))

    def row(name, value, form):
        cells = []
        for n, r in results.items():
            try:
                cells.append(form.format(value(n, r)))
            except (ValueError, ZeroDivisionError):
                cells.append("")
        print(f"| {name} | " + " | ".join(cells) + " |")

    row("prefill, tokens/s", lambda n, r: n / min(r["prefill"]), "{:.0f}")
    row("prefill, share of the measured peak", lambda n, r: 100 * r["gflop"] / min(r["prefill"]) / r["peak"], "{:.0f} %")
    row("layer ends, share of prefill", lambda n, r: 100 * r["layer_end"], "{:.1f} %")
    row("llama.cpp prefill, tokens/s", lambda n, r: n / min(r["llama_prefill"]), "{:.0f}")
    row("prefill against llama.cpp", lambda n, r: min(r["llama_prefill"]) / min(r["prefill"]), "{:.2f}")
    row("decode with log, tokens/s", lambda n, r: 1 / min(r["logged"]), "{:.1f}")
    row("decode without log, tokens/s", lambda n, r: 1 / min(r["plain"]), "{:.1f}")
    row("with log against without", lambda n, r: statistics.median(r["log_ratio"]), "{:.3f}")
    row("writing the trace, share of 150 steps", lambda n, r: 100 * min(r["writing"]), "{:.1f} %")
    row("llama.cpp decode, tokens/s", lambda n, r: 1 / min(r["llama_decode"]), "{:.1f}")
    row("decode with log against llama.cpp", lambda n, r: min(r["llama_decode"]) / min(r["logged"]), "{:.2f}")
    row("bytes read in decoding, share of bandwidth",
        lambda n, r: 100 * statistics.median(r["read_share"]), "{:.0f} %")
    row("measured peak, GFLOP/s", lambda n, r: r["peak"], "{:.0f}")
    row("measured read bandwidth, GB/s", lambda n, r: statistics.median(r["read"]), "{:.1f}")
    if ratios:
        row("slow-down of prefill", lambda n, r: min(r["prefill"]) / min(ratios[n]["prefill"]), "{:.2f}")
        row("slow-down of decoding", lambda n, r: min(r["logged"]) / min(ratios[n]["logged"]), "{:.2f}")


def main():
    a = parse()
    if a.processor_time and a.threads != 1:
        sys.exit("--processor-time counts one thread: --threads 1")
    if not a.no_peer:
        enter_environment(a.venv)
    with open(a.prompt) as file:
        tokens = json.load(file)["prompt_ids"]
    lengths = [int(x) for x in a.lengths.split(",")]
    tokens = (tokens * ((max(lengths) + a.steps) // len(tokens) + 1))[: max(lengths) + a.steps]
    ours, peer = Ours(a, tokens), None if a.no_peer else Peer(a, tokens)
    print(f"processor: {cpu_model()}, {a.threads} thread{'s' if a.threads > 1 else ''}; load {os.getloadavg()[0]:.1f}")
    print(f"engine: {ours.ask('describe')}")
    if peer:
        print(f"peer: {PEER}, best of flash attention on and off, batches of 512 and 2048 (512 beyond 4000 tokens)")
    print("times: " + ("processor time of the process" if a.processor_time else "the clock's"))
    quiet = measure(a, ours, peer, lengths, False)
    table(f"best of {a.rounds} rounds, by prompt length", quiet, None)
    if a.busy:
        table("while another process keeps a core busy", measure(a, ours, None, lengths, True), quiet)


main()
