#!/usr/bin/env bash
# Everything of the CUDA backend that wants a GPU, on a bare machine with one: nvcc 13, CMake, ninja,
# Python with torch. CUDA's libraries may be those of Python wheels; of Debian's packages none need be
# there if gpu/bundle.tar.xz is (tests/gpu_bundle.sh).
#   tests/gpu.sh [STAGE...]   build ops verify ranks sanitize bench; default: all, in this order
# Prints one table of what passed and failed and adds JSON lines to $OUT (default build-gpu/results).
set -uo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-build-gpu/results}
mkdir -p build-gpu "$out"
stages=("$@")
[ $# -gt 0 ] || stages=(build ops verify ranks sanitize bench)
table=()
failed=0

step() {  # name, command...: its output goes to a log, its verdict to the table
  local name=$1 begun=$SECONDS verdict=ok
  shift
  "$@" >"$out/$name.log" 2>&1 || { verdict=FAILED; failed=1; }
  table+=("$(printf '%-28s %-7s %4d s  %s' "$name" "$verdict" $((SECONDS - begun)) "$(tail -n 1 "$out/$name.log" | cut -c1-90)")")
  echo "${table[-1]}"
}

unpack() {
  [ -d build-gpu/root ] || [ ! -f gpu/bundle.tar.xz ] && return 0
  mkdir -p build-gpu/root
  python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' \
    gpu/bundle.tar.xz build-gpu/root
}

environment() {  # what configuring and running need to find the bundle and the wheels
  local root=$PWD/build-gpu/root lib wheel
  if [ -d "$root" ]; then
    lib=$root/usr/lib/x86_64-linux-gnu
    export LD_LIBRARY_PATH=$lib:${LD_LIBRARY_PATH:-}
    export CMAKE_PREFIX_PATH=$root/usr:$lib PKG_CONFIG_SYSROOT_DIR=$root
    export PKG_CONFIG_LIBDIR=$lib/pkgconfig:$root/usr/share/pkgconfig
    command -v pkg-config >/dev/null || export PKG_CONFIG=$root/usr/bin/pkgconf
    export CPLUS_INCLUDE_PATH=$root/usr/include LIBRARY_PATH=$lib:${LIBRARY_PATH:-}
  fi
  # The wheels' headers and libraries under the names that a linker asks for.
  local hints=$PWD/build-gpu/cuda
  mkdir -p "$hints/include" "$hints/lib"
  for wheel in $(python3 -c 'import glob, os, site
for place in site.getsitepackages(): print(*glob.glob(os.path.join(place, "nvidia", "*")))'); do
    for header in "$wheel"/include/*; do
      [ -e "$header" ] && ln -sfn "$header" "$hints/include/$(basename "$header")"
    done
    for lib in "$wheel"/lib/lib*.so*; do
      [ -e "$lib" ] || continue
      ln -sf "$lib" "$hints/lib/$(basename "$lib")"
      ln -sf "$lib" "$hints/lib/$(basename "${lib%%.so*}").so"
    done
  done
  # Behind the toolkit's own, which come first where it has them.
  export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:$hints/lib
  export CMAKE_INCLUDE_PATH=$hints/include CMAKE_LIBRARY_PATH=$hints/lib
  export CPLUS_INCLUDE_PATH=${CPLUS_INCLUDE_PATH:+$CPLUS_INCLUDE_PATH:}$hints/include
}

build() {
  local arch=90a-real
  nvidia-smi --query-gpu=compute_cap --format=csv,noheader | grep -q '^9.0' || arch=native
  cmake -G Ninja -S . -B build-gpu/build -DWEFT_CUDA=ON -DWEFT_MPI=OFF \
    -DWEFT_MEDIA="$([ -d build-gpu/root ] && echo OFF || echo ON)" \
    -DWEFT_CUDA_ARCHITECTURES="$arch" && cmake --build build-gpu/build --target weft cuda_test weft_ops_bench
}

weft=${WEFT:-build-gpu/build/weft}
cases() {  # golden cases of the given stages
  grep -lE "\"stage\": *\"($1)\"" tests/golden/*/case.json | xargs -n 1 dirname
}

verify() { "$weft" verify --device cuda --dtype "$1" tests/golden/*/ && echo "all cases, $1"; }

ranks() {  # layout, dtype, cases: those that it can split, on ranks that share the one device
  local count passed=0 refused=0 status folder said
  count=$(($(tr ',' '\n' <<<"$1" | sed 's/.*=//' | paste -sd '*')))
  for folder in $3; do
    said=$("$weft" verify --device cuda --ranks "$count" --layout "$1" --dtype "$2" "$folder" 2>&1)
    status=$?
    case $status in
      0) passed=$((passed + 1)) ;;
      2) refused=$((refused + 1)) ;;  # no legal layout of that case
      *) echo "$folder: $said"; return 1 ;;
    esac
  done
  echo "$passed cases, $refused cannot be split so"
  [ "$passed" -gt 0 ]
}

sanitize() {  # tool: a subset of the ops under compute-sanitizer
  compute-sanitizer --tool "$1" --error-exitcode 7 build-gpu/build/tests/cuda/cuda_test \
    --gtest_filter='Norm*:Rope*:Attention*:CudaTransfer*:Copy*:Conv*:Linear.*' --gtest_brief=1
}

bench_line() {  # a JSON line with device and commit, to the results
  local line
  line=$("$@" | tail -n 1) || return 1
  python3 - "$line" "$*" <<'PY' | tee -a "$out/gpu.jsonl"
import json, subprocess, sys
line = json.loads(sys.argv[1])
ask = lambda *command: subprocess.run(command, capture_output=True, text=True).stdout.strip()
line["device_name"] = ask("nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,power.draw", "--format=csv,noheader")
line["commit"] = ask("git", "rev-parse", "--short", "HEAD") or "unknown"
line["command"] = sys.argv[2]
print(json.dumps(line))
PY
}

bench_dit() {  # config, tokens, blocks: ours, PyTorch's, ours again
  bench_line "$weft" bench dit --device cuda --dtype bf16 --config "$1" --tokens "$2" --blocks "$3" --repeat 3 --json &&
    bench_line python3 tests/bench/torch_step.py --config "$1" --tokens "$2" --blocks "$3" --repeat 3
}

ops_lines() { build-gpu/build/tests/bench/weft_ops_bench "" 0 cuda | tee -a "$out/ops.jsonl"; }

summary() {
  python3 - "$out/gpu.jsonl" <<'PY'
import json, sys
ours, theirs = {}, {}
for text in open(sys.argv[1]):
    line = json.loads(text)
    key = (line.get("config"), line.get("tokens"), line.get("blocks"))
    if line["bench"] == "dit" and "resident" not in line and "rel_l2" not in line: ours[key] = line
    if line["bench"] == "torch_step": theirs[key] = line
print(f"{'forward':34} {'seconds':>9} {'share':>6} {'graph':>9} {'host/step':>9} {'torch/ours':>10}")
for key, line in ours.items():
    torch = theirs.get(key)
    ratio = f"{torch['seconds'] / line['seconds']:.3f}" if torch else "-"
    print(f"{str(key):34} {line['seconds']:9.4f} {line['share']:6.3f} {line['graph_seconds']:9.4f} "
          f"{line['graph_host_seconds'] / line['graph_seconds']:9.4f} {ratio:>10}")
PY
}

unpack && environment
for stage in "${stages[@]}"; do
  case $stage in
    build) step build build ;;
    ops) step ops build-gpu/build/tests/cuda/cuda_test --gtest_brief=1 ;;
    verify) for dtype in f32 bf16; do step "verify_$dtype" verify $dtype; done ;;
    ranks)
      for dtype in f32 bf16; do
        for layout in ulysses=2 ring=2 token_ring=2 layers=2 cfg=2 tensor=2 ulysses=3 ring=4 layers=2,ring=2; do
          step "ranks_${layout}_$dtype" ranks $layout $dtype "$(cases 'transformer|pipeline|llm|text_encoder|vae_decode' | tr '\n' ' ')"
        done
      done
      ;;
    sanitize) for tool in memcheck racecheck; do step "sanitize_$tool" sanitize $tool; done ;;
    bench)
      step bench_ops ops_lines
      step bench_attention bench_line "$weft" bench attention --device cuda --dtype bf16 --json
      step bench_attention_fp8 bench_line "$weft" bench attention --device cuda --dtype bf16 --attention fp8 --json
      step bench_1.3b_480p bench_dit wan2.1-1.3b 32760 30
      step bench_1.3b_fp8 bench_line "$weft" bench dit --device cuda --dtype bf16 --config wan2.1-1.3b \
        --tokens 32760 --blocks 30 --weights fp8 --attention fp8 --repeat 3 --json
      step bench_14b_480p bench_dit wan2.1-14b 32760 40
      step bench_14b_720p bench_dit wan2.1-14b 75600 8
      step bench_streamed bench_line "$weft" bench dit --device cuda --dtype bf16 --config wan2.1-14b \
        --tokens 32760 --blocks 12 --resident-layers 4 --repeat 3 --json
      step bench_vae bench_line "$weft" bench vae --device cuda --dtype bf16 --json
      step bench_text bench_line "$weft" bench text --device cuda --dtype bf16 --json
      summary
      ;;
    *)
      sed -n '2,7p' "$0" >&2
      exit 2
      ;;
  esac
done
echo
printf '%s\n' "${table[@]}"
exit $failed
