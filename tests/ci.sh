#!/usr/bin/env bash
# One subcommand per activity; developers and CI run the same lines.
#   lint [--fix]  formatting and structure      build  the default preset; a new folder: in units
#   test          every test but the thorough   thorough  those too: golden cases once more on other kernels
#   asan          address + undefined over the suite                          tsan  io, engine, parallel
#   fuzz [SECONDS]  each reader of others' bytes, 60 s unless told
#   cuda [ARCHITECTURES]  compile the CUDA build (90a-real unless told; "all"), check what ptxas says, run its stubs and
#                 what tests/gpu_pack.sh packs in a bare root; needs no GPU, but root
#   cuda-changed  the same, unless it passed with these files before: a stamp lies beside the compiler cache
#   release       the README's commands, and the image of apps/deploy with the .deb, in bare Debian roots (needs root)
set -euo pipefail
cd "$(dirname "$0")/.."
export GOMP_SPINCOUNT=2000  # idle OpenMP threads sleep soon: tests share the cores
# Build folders and clones share compiled files in the compiler cache, wherever they lie.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1

lint() {
  local files
  files=$(git ls-files -co --exclude-standard -- '*.h' '*.cc' '*.cu' '*.cuh')
  if [ "${1:-}" = --fix ]; then
    clang-format -i $files
  else
    clang-format --dry-run --Werror $files
  fi
  python3 tests/lint/lint.py
}

build() {
  local units=-DCMAKE_UNITY_BUILD=ON
  [ ! -e build/build.ninja ] || units=  # a folder that is configured already keeps its choice
  cmake --preset default -DBUILD_TESTING=ON $units >/dev/null
  cmake --build build
}

# Runs two computing tests at a time, but for the label that is named, then those that live by the clock.
run_tests() {
  local failed=0
  ctest --test-dir build --output-on-failure -j2 -LE "clock${1:+|$1}" || failed=1
  ctest --test-dir build --output-on-failure -j3 -L clock ${1:+-LE "$1"} || failed=1
  return $failed
}

cuda() {
  # This is the build of tests/gpu_pack.sh, which then compiles nothing.
  local build=build-gpu/build log=build-gpu/build.log architectures=-DWEFT_CUDA_ARCHITECTURES=${1:-90a-real} check
  [ "${1:-}" != all ] || architectures=-UWEFT_CUDA_ARCHITECTURES
  cmake --preset gpu "$architectures" >/dev/null
  ninja -C $build -t clean weft_kernels >/dev/null  # so that the compiler cache repeats what ptxas said
  if ! cmake --build $build --target weft weft_ops_bench parallel_test cuda_test sdpa_graph_check conv_graph_check \
    >"$log" 2>&1; then
    grep -v '^ptxas info\|bytes stack frame' "$log"
    return 1
  fi
  python3 tests/ptxas_log.py "$log" 90a
  for check in sdpa conv; do
    LD_LIBRARY_PATH=$PWD/$build/tests/cuda/driver "$build/tests/cuda/${check}_graph_check"
  done
  $build/tests/parallel/parallel_test --gtest_filter='Nccl*' --gtest_brief=1
  if [ -z "${1:-}" ]; then tests/gpu_pack.sh --check; fi
}

cuda_changed() {
  local files stamp
  files=$(git ls-files -s CMakeLists.txt CMakePresets.json 'kernels/*' 'tests/kernels/*' 'tests/cuda/*' 'tests/support/*' \
    'tests/parallel/nccl*' tests/parallel/CMakeLists.txt tests/ci.sh tests/gpu_pack.sh tests/ptxas_log.py parallel/CMakeLists.txt 'parallel/transport/*' parallel/communicator.h tests/CMakeLists.txt)
  stamp=${XDG_CACHE_HOME:-$HOME/.cache}/weft/cuda-$( (nvcc --version; echo "$files") | sha256sum | cut -c1-16)
  if [ -e "$stamp" ] && git diff --quiet; then
    echo "cuda: passed with these files before ($stamp)"
  else
    cuda
    mkdir -p "$(dirname "$stamp")"
    if git diff --quiet; then touch "$stamp"; fi
  fi
}

sanitized() {  # preset, then the targets and tests to run (all when none are named)
  local preset=$1
  shift
  export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
  cmake --preset "$preset" -DBUILD_TESTING=ON >/dev/null
  cmake --build "build-$preset"
  if [ $# -gt 0 ]; then
    OMP_NUM_THREADS=1 ctest --test-dir "build-$preset" --output-on-failure -R "$(IFS='|'; echo "$*")"
  else
    ctest --test-dir "build-$preset" --output-on-failure
  fi
}

fuzz_one() {  # a target and its longest input
  local folder=build-fuzz/findings/$1 seconds=$3
  mkdir -p "$folder" "build-fuzz/corpus/$1"
  if build-fuzz/tests/fuzz/weft_fuzz "--target=$1" -max_len="$2" -max_total_time="$seconds" -timeout=40 \
    -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix="$folder/" \
    "build-fuzz/corpus/$1" "tests/fuzz/corpus/$1" >"$folder.log" 2>&1; then
    echo "$1: $(sed -n 's/^stat::number_of_executed_units: *//p' "$folder.log") inputs, no finding"
  else
    echo "$1: FINDING, see $folder.log and $folder/"
    grep -m 3 'ERROR\|runtime error\|CHECK' "$folder.log"
    return 1
  fi
}

fuzz() {
  bash apps/setup.sh fuzz
  cmake --preset fuzz -DBUILD_TESTING=ON >/dev/null
  cmake --build build-fuzz --target weft_fuzz
  export -f fuzz_one
  export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 OMP_NUM_THREADS=1
  build-fuzz/tests/fuzz/weft_fuzz --list | TMPDIR=build-fuzz \
    xargs -P "$(nproc)" -L 1 bash -c 'fuzz_one "$1" "$2" "$0"' "${1:-60}"
}

release() {  # follows the README in one bare root, builds the image in another and runs it in a third
  local folder
  folder=$(mktemp -d)
  tests/bare_root.sh --out "$folder" "bash apps/demo.sh" "bash tests/run.sh"
  tests/image.sh "$folder"
  ls -l "$folder"
}

case "${1:-}" in
  lint) lint "${2:-}" ;;
  build) build ;;
  test) run_tests thorough ;;
  thorough) run_tests ;;
  asan) sanitized asan ;;
  tsan) TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp" sanitized tsan parallel io engine ;;
  fuzz) fuzz "${2:-}" ;;
  release) release ;;
  cuda) cuda "${2:-}" ;;
  cuda-changed) cuda_changed ;;
  *)
    sed -n '2,10p' "$0" >&2
    exit 2
    ;;
esac
