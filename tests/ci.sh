#!/usr/bin/env bash
# One subcommand per activity; developers and CI run the same lines.
#   lint [--fix]  formatting and structure      build  the default preset     test  every test
#   asan          address + undefined over the suite                          tsan  io, engine, parallel
#   cuda          compile the CUDA build and run its stubs (no GPU needed)
set -euo pipefail
cd "$(dirname "$0")/.."
export GOMP_SPINCOUNT=2000  # idle OpenMP threads sleep soon: tests share the cores
export CCACHE_NOHASHDIR=1  # the presets' build folders share compiled files

lint() {
  local files
  files=$(git ls-files -- '*.h' '*.cc' '*.cu' '*.cuh')
  if [ "${1:-}" = --fix ]; then
    clang-format -i $files
  else
    clang-format --dry-run --Werror $files
  fi
  python3 tests/lint/lint.py
}

build() {
  cmake --preset default >/dev/null
  cmake --build build
}

run_tests() { ctest --test-dir build --output-on-failure; }

sanitized() {  # preset, then the targets and tests to run (all when none are named)
  local preset=$1
  shift
  cmake --preset "$preset" >/dev/null
  cmake --build "build-$preset"
  if [ $# -gt 0 ]; then
    OMP_NUM_THREADS=1 ctest --test-dir "build-$preset" --output-on-failure -R "$(IFS='|'; echo "$*")"
  else
    ctest --test-dir "build-$preset" --output-on-failure
  fi
}

case "${1:-}" in
  lint) lint "${2:-}" ;;
  build) build ;;
  test) run_tests ;;
  asan) sanitized asan ;;
  tsan) sanitized tsan parallel io engine ;;
  cuda)
    cmake --preset cuda >/dev/null
    cmake --build build-cuda --target weft parallel_test
    build-cuda/tests/parallel/parallel_test --gtest_filter='Nccl*' --gtest_brief=1
    ;;
  *)
    sed -n '2,5p' "$0" >&2
    exit 2
    ;;
esac
