#!/bin/sh
# The CUDA backend on this machine's device: prefill against the measured peak of bf16 products, decoding against the measured
# bandwidth, tide beside postprefill, both allocators. A table a run on standard output, with the device's peaks in front.
# Without nvcc the peaks are measured by build/cuda-peak: peak.c, built where there is one.
# Usage: tests/bench/cuda/run.sh MODEL [CONTEXT...]    (default contexts: 4K 7K)
set -eu
cd "$(dirname "$0")/../../.."
model=$1
shift
[ $# -gt 0 ] || set -- 4K 7K
cuda=${CUDA_HOME:-/usr/local/cuda}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -x "$cuda/bin/nvcc" ]; then "$cuda/bin/nvcc" -O2 -o "$work/peak" tests/bench/cuda/peak.c -lcublas; else cp build/cuda-peak "$work/peak"; fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
peaks=$("$work/peak")
echo "peaks: ${peaks% *} TFLOP/s of bf16 products, ${peaks#* } GB/s of copies"
for context in "$@"; do
    for allocator in native async; do
        ./tidewake prefill "$model" --backend cuda --allocator $allocator --schedule tide,postprefill --budget 1024 \
            --context "$context" --repeat 3 --format json >"$work/$context.$allocator.json"
    done
done
./tidewake info "$model" --format json >"$work/info.json"
python3 - "$work" $peaks <<'PYTHON'
import glob, json, os, sys
work, tflops, bandwidth = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
# Multiplications and additions of the layers' products, attention left out: a lower bound of the share. Decoding reads
# every stored byte once a token.
info = {r["property"]: r["value"] for r in json.load(open(work + "/info.json"))["rows"]}
number = lambda name: int(info[name].split(",")[0])
heads, kv_heads = number("query heads") * number("head size"), number("KV heads") * number("head size")
parameters = number("layers") * number("width") * (2 * heads + 2 * kv_heads + 3 * number("MLP width"))
size = number("weight bytes")
print("context allocator schedule     ttft_s  tokens/s  of_peak  decode/s  of_bandwidth  peak_MiB  reserved_MiB")
for path in sorted(glob.glob(work + "/*.*.json")):
    context, allocator = os.path.basename(path).split(".")[:2]
    for row in json.load(open(path))["rows"]:
        rate, decode = row["prefill_tokens_per_second"], row["decode_tokens_per_second"]
        share = 2 * parameters * rate / (tflops * 1e12)
        print("%7s %9s %-12s %7.3f %9.0f %7.1f%% %9.1f %12.1f%% %9.1f %13.1f" % (
            context, allocator, row["schedule"], row["prefill_seconds"], rate, 100 * share, decode,
            100 * size * decode / (bandwidth * 1e9), row["peak_bytes"] / 2**20, row["reserved_bytes"] / 2**20))
PYTHON
echo "published (Llama-3.1-8B, A100, 64K, K = 4096): decode 30.5 / 37.1 tokens/s SnapKV / TideKV, time to first token +4.2 % at 128K"
