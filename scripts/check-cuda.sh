#!/bin/sh
# On a machine with an NVIDIA GPU: builds the CUDA backend for it, runs the CUDA tests on it, the benchmark, and
# compute-sanitizer on a part of the tests where there is one. No network. Under 8 minutes on 8 cores, build included: what
# could take longer has a limit. Where there is no nvcc, a libtidewake-cuda.so that is there is used as it is.
# Usage: scripts/check-cuda.sh [MODEL.gguf]    (default: SmolLM2 in data/models, left out when it is not there)
set -eu
cd "$(dirname "$0")/.."
command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L || { echo "no NVIDIA GPU here: nvidia-smi finds none" >&2; exit 3; }
cuda=${CUDA_HOME:-/usr/local/cuda}
build=build/gcc
cores=$(nproc)
if command -v nvcc >/dev/null 2>&1 || [ -x "$cuda/bin/nvcc" ]; then
    arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
    make -j"$cores" cuda CUDA_ARCHS="$arch" CC=gcc
elif [ ! -f libtidewake-cuda.so ]; then
    echo "no nvcc here and no libtidewake-cuda.so: run 'make cuda' where there is one and bring the file" >&2
    exit 3
fi
make -j"$cores" tidewake "$build/check" CC=gcc
TIDEWAKE_CUDA_LIBRARY=$PWD/libtidewake-cuda.so
export TIDEWAKE_CUDA_LIBRARY TW_BUILD=$build TW_PROGRAM=$build/tidewake TW_SOURCE=.
# A forked child cannot use a context of its parent, and an unforked run opens the device once.
CK_FORK=no "$build/check" cuda_cases models
CK_FORK=no CK_RUN_CASE=ranking "$build/check" selectors

model=${1:-data/models/SmolLM2-135M-Instruct.Q4_1.gguf}
if [ -f "$model" ]; then
    status=0
    timeout 150 tests/bench/cuda/run.sh "$model" || status=$?
    [ "$status" = 0 ] || { echo "the benchmark ended with status $status (124: stopped after 150 seconds)"; [ "$status" = 124 ]; }
else
    echo "no model at $model (make model): the benchmark is left out"
fi

sanitizer=$(command -v compute-sanitizer || ls "$cuda/bin/compute-sanitizer" 2>/dev/null || true)
[ -n "$sanitizer" ] || { echo "compute-sanitizer is not installed: left out"; exit 0; }
for tool in memcheck racecheck initcheck synccheck; do
    echo "compute-sanitizer --tool $tool"
    status=0
    CK_FORK=no CK_RUN_CASE=operations TW_CUDA_CASES=1 timeout 40 "$sanitizer" --tool "$tool" --error-exitcode 1 \
        "$build/check" cuda_cases >"$build/$tool.log" 2>&1 || status=$?
    case $status in
    0) ;;
    124) echo "  found nothing in 40 seconds, and was stopped" ;;
    *) tail -20 "$build/$tool.log"; exit 1 ;;
    esac
done
