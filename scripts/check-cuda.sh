#!/bin/sh
# On a machine with an NVIDIA GPU: builds the CUDA backend for it, runs the CUDA tests on it, compute-sanitizer on a part of
# them where there is one, and the benchmark. Meant to take under 8 minutes on 8 cores, build included.
# Usage: scripts/check-cuda.sh [MODEL.gguf]    (default: SmolLM2 in data/models, left out when it is not there)
set -eu
cd "$(dirname "$0")/.."
command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L || { echo "no NVIDIA GPU here: nvidia-smi finds none" >&2; exit 3; }
arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
cores=$(nproc)
build=build/gcc
make -j"$cores" cuda CUDA_ARCHS="$arch" CC=gcc
make -j"$cores" tidewake "$build/check" CC=gcc
TIDEWAKE_CUDA_LIBRARY=$PWD/libtidewake-cuda.so
export TIDEWAKE_CUDA_LIBRARY TW_BUILD=$build TW_PROGRAM=$build/tidewake TW_SOURCE=.
# A forked child cannot use a context of its parent, and an unforked run opens the device once.
CK_FORK=no "$build/check" cuda_cases models
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)
if [ -n "$sanitizer" ]; then
    for tool in memcheck racecheck initcheck synccheck; do
        echo "compute-sanitizer --tool $tool"
        CK_FORK=no CK_RUN_CASE=operations TW_CUDA_CASES=1 timeout 60 "$sanitizer" --tool "$tool" --error-exitcode 1 \
            "$build/check" cuda_cases >"$build/$tool.log" 2>&1 || { tail -20 "$build/$tool.log"; exit 1; }
    done
else
    echo "compute-sanitizer is not installed: left out"
fi
model=${1:-data/models/SmolLM2-135M-Instruct.Q4_1.gguf}
if [ -f "$model" ]; then exec tests/bench/cuda/run.sh "$model"; fi
echo "no model at $model (make model): the benchmark is left out"
