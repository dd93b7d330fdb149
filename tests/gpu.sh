#!/usr/bin/env bash
# Runs what only a GPU can decide, on a bare machine with one: Python with torch and the toolkit's profilers, but none of
# Debian's packages. tests/gpu_pack.sh makes what travels: binaries, their libraries, golden cases.
#   tests/gpu.sh first    at most 400 s: every test, conformance cases, attention and forwards beside their predictions
#   tests/gpu.sh second   at most 260 s: tests that failed, PyTorch's step, the VAE, ranks that share the GPU, sanitizers
# Each group of tests is a process of its own, several at once, so a crash, a hang and a wrong result cost a row each.
# $OUT (default build-gpu/results) gets FIRST.jsonl (a row per test, case and measurement, with device, driver and
# commit) and FIRST.log. Ends with 1 where something failed, 3 where only time ran out.
# LIMIT=seconds shortens a run. FAILED=file names an earlier .jsonl, whose failed tests `second` repeats. TINY=1
# WEFT=binary CUDA_TEST=binary tries all of it on an emulated device.
cd "$(dirname "$0")/.." && exec python3 -u tests/gpu_steps.py "$@"
