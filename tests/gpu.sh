#!/usr/bin/env bash
# Everything of the CUDA backend that wants a GPU, on a bare machine with one: nvcc 13, CMake, ninja,
# Python with torch. CUDA's libraries may be those of Python wheels; of Debian's packages none need be
# there if gpu/bundle.tar.xz is (tests/gpu_bundle.sh).
#   tests/gpu.sh [STAGE...]   build doctor ops bench parts verify ranks sanitize; default: all, in this order
# $OUT (default build-gpu/results) gets table.txt, log.txt, gpu.jsonl, ops.jsonl and the binaries,
# build.tar.xz: as gpu/build.tar.xz they spare a fresh machine the build. A step runs for its limit,
# all of them for LIMIT (default: no limit); what ends so is TIME in the table. Ends with 1
# where something failed, 3 where only time ran out. WEFT=binary TINY=1 tries it without a GPU.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
self=tests/gpu.sh
out=${OUT:-build-gpu/results}
root=$PWD/build-gpu/root hints=$PWD/build-gpu/cuda
libraries=$root/usr/lib/x86_64-linux-gnu
toolkit=$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")
toolkit=${toolkit%/bin/nvcc}
mkdir -p build-gpu "$out"
weft=${WEFT:-build-gpu/build/weft}
tiny=(--model models/pocket)  # extents that an emulated device has the time for
ops_test=build-gpu/build/tests/cuda/cuda_test ops_bench=build-gpu/build/tests/bench/weft_ops_bench
failed=0 late=0

step() {  # name, seconds at most, function and arguments: its end goes to the log, a row to the table
  local name=$1 most=$2 begun=$SECONDS log=build-gpu/step.log verdict=ok status row
  local left=$((${LIMIT:-86400} - SECONDS))
  shift 2
  if [ "$left" -gt 5 ]; then
    timeout -k 5 "$((left < most ? left : most))" "$BASH" "$self" run "$@" >"$log" 2>&1 &
    wait $!
    status=$?
    kill -KILL -- -$! 2>/dev/null  # whoever of its group wanted to end in peace
  else
    echo 'no time left' >"$log"
    status=124
  fi
  case $status in
    0) ;;
    124 | 137) verdict=TIME late=1 ;;
    *) verdict=FAILED failed=1 ;;
  esac
  row=$(printf '%-24s %-6s %4d s  %s' "$name" "$verdict" $((SECONDS - begun)) "$(tail -n 1 "$log" | cut -c1-90)")
  echo "$row" | tee -a "$out/table.txt"
  { echo "==== $name: $verdict"; tail -c 600000 "$log"; } >>"$out/log.txt"
}

prepare() {  # unpacks what was brought; names the wheels' headers and libraries as compilers ask for them
  local wheel file name
  if [ -f gpu/bundle.tar.xz ] && [ ! -d "$root" ]; then unpack gpu/bundle.tar.xz "$root"; fi
  if [ -f gpu/build.tar.xz ] && [ ! -d build-gpu/build ]; then unpack gpu/build.tar.xz build-gpu/build; fi
  if [ -d "$root" ]; then  # pkgconf alone finds its library there: other programs keep their own
    printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s/usr/bin/pkgconf "$@"\n' "$libraries" "$root" >build-gpu/pkg-config
    chmod +x build-gpu/pkg-config
  fi
  mkdir -p "$hints/include" "$hints/lib"
  for wheel in $(python3 -c 'import glob, os, site
for place in site.getsitepackages(): print(*glob.glob(os.path.join(place, "nvidia", "*")))'); do
    for file in "$wheel"/include/{cublas,cudnn,nccl}*; do  # the toolkit's own where it has them
      name=${file##*/}
      [ ! -e "$file" ] || [ -e "$toolkit/include/$name" ] || ln -sfn "$file" "$hints/include/$name"
    done
    for file in "$wheel"/lib/lib{cublas,cudnn,nccl,nvrtc,nvJitLink}*.so*; do
      name=${file##*/}
      if [ ! -e "$file" ] || [ -e "$toolkit/lib64/$name" ]; then continue; fi
      ln -sf "$file" "$hints/lib/$name"
      ln -sf "$file" "$hints/lib/${name%%.so*}.so"
    done
  done
}

unpack() {  # archive, folder
  mkdir -p "$2"
  python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$1" "$2"
}

# cuDNN asks for nvrtc by name, so the toolkit's are on the path too.
with_libraries() {
  LD_LIBRARY_PATH=$libraries:$hints/lib:$toolkit/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$@"
}

build() {
  local capability arch=90a-real found=()
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1) || capability=9.0
  [ "$capability" = 9.0 ] || arch=native
  export CMAKE_INCLUDE_PATH=$hints/include CMAKE_LIBRARY_PATH=$hints/lib CPLUS_INCLUDE_PATH=$hints/include
  if [ -d "$root" ]; then
    export CMAKE_PREFIX_PATH=$root/usr:$libraries PKG_CONFIG=$PWD/build-gpu/pkg-config PKG_CONFIG_SYSROOT_DIR=$root
    export PKG_CONFIG_LIBDIR=$libraries/pkgconfig:$root/usr/share/pkgconfig
    export CPLUS_INCLUDE_PATH=$root/usr/include:$root/usr/include/x86_64-linux-gnu:$hints/include LIBRARY_PATH=$libraries
    found=(-DWEFT_MEDIA=OFF)
  fi
  cmake -G Ninja -S . -B build-gpu/build -DWEFT_CUDA=ON -DWEFT_MPI=OFF "${found[@]}" \
    -DCMAKE_EXE_LINKER_FLAGS="-Wl,-rpath-link,$libraries:$hints/lib" \
    -DWEFT_CUDA_ARCHITECTURES="$arch" && cmake --build build-gpu/build --target weft cuda_test weft_ops_bench || return 1
  python3 - build-gpu/build "$out/build.tar.xz" weft tests/cuda/cuda_test tests/bench/weft_ops_bench <<'PY'
import subprocess, sys, tarfile
folder, archive, *names = sys.argv[1:]
with tarfile.open(archive, "w:xz", preset=1) as tar:
    for name in names:
        subprocess.run(["strip", "-o", folder + "/stripped", f"{folder}/{name}"], check=True)
        tar.add(folder + "/stripped", name)
PY
  with_libraries "$weft" --version
}

count_tests() { awk '/\[       OK/ {n++} {print} END {print n + 0 " tests passed; " $0}'; }
ops() { with_libraries "$ops_test" | count_tests; }

doctor() { with_libraries "$weft" doctor --device cuda; }

verify() { with_libraries "$weft" verify --device cuda --dtype "$1" tests/golden/*/; }

ranks_of_case() {  # ranks, layout, dtype, case
  local said
  said=$(with_libraries timeout 90 "$weft" verify --device cuda --ranks "$1" --layout "$2" --dtype "$3" "$4" 2>&1)
  case $? in
    0) echo passed ;;
    2) echo refused ;;  # no legal layout of that case
    *) echo "$4: $said" | tail -n 5 ;;
  esac
}

ranks() {  # layout, dtype, cases: on ranks that share the one device; eight cases at once
  local count said passed refused
  count=$(($(tr ',' '\n' <<<"$1" | sed 's/.*=//' | paste -sd '*')))
  said=$(printf '%s\n' "${@:3}" | xargs -P 8 -n 1 "$BASH" "$self" run ranks_of_case "$count" "$1" "$2")
  passed=$(grep -c '^passed$' <<<"$said") refused=$(grep -c '^refused$' <<<"$said")
  grep -v -e '^passed$' -e '^refused$' <<<"$said"
  echo "$passed cases of $(($# - 2)), $refused cannot be split so"
  [ "$passed" -gt 0 ] && [ $((passed + refused)) -eq $(($# - 2)) ]
}

sanitize() {  # tool: a subset of the ops under compute-sanitizer
  PATH=$PATH:$toolkit/bin with_libraries compute-sanitizer --tool "$1" --error-exitcode 7 "$ops_test" \
    --gtest_filter='Norm*:Rope*:Attention*:CudaTransfer*:Copy*:Conv*:Linear.*' | count_tests
}

lines() {  # file, command...: its JSON lines with device and commit to the file, figures to the log
  local file=$1
  shift
  with_libraries "$@" | python3 -c '
import json, subprocess, sys
def ask(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""
about = {"device_name": ask("nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,power.draw", "--format=csv,noheader"),
         "commit": ask("git", "rev-parse", "--short", "HEAD") or "unknown", "command": " ".join(sys.argv[2:])}
figures = ("op", "tokens", "method", "seconds", "seconds_per_latent_frame", "graph_seconds", "us", "share", "ratio",
           "read_share", "of_upload", "gflops", "gbs", "gflop_s", "gb_s", "gemm_gflops", "copy_gbs", "prefill_tokens_per_s")
with open(sys.argv[1], "a") as out:
    for text in sys.stdin:
        if not text.startswith("{"):
            print(text, end="")
            continue
        line = json.loads(text)
        print(json.dumps(line | about), file=out, flush=True)
        print(" ".join(f"{key} {line[key]:.4g}" if isinstance(line[key], float) else f"{key} {line[key]}"
                       for key in figures if key in line), flush=True)
' "$out/$file" "$@"
}

ours() { lines gpu.jsonl "$weft" bench "$@" --device cuda --json; }
torch_step() { lines gpu.jsonl python3 tests/bench/torch_step.py "$@"; }

summary() {
  python3 - "$out/gpu.jsonl" <<'PY'
import json, sys
ours, theirs, lines = {}, {}, [json.loads(text) for text in open(sys.argv[1])]
for line in lines:
    key = (line.get("config"), line.get("tokens"), line.get("blocks"))
    if line["bench"] == "dit" and "resident" not in line and "rel_l2" not in line: ours[key] = line
    if line["bench"] == "torch_step": theirs[key] = line
print(f"{'forward':34} {'seconds':>9} {'share':>6} {'graph':>9} {'host/step':>9} {'torch/ours':>10}")
for key, line in ours.items():
    torch = theirs.get(key)
    ratio = f"{torch['seconds'] / line['seconds']:.3f}" if torch else "-"
    print(f"{str(key):34} {line['seconds']:9.4f} {line['share']:6.3f} {line['graph_seconds']:9.4f} "
          f"{line['graph_host_seconds'] / line['graph_seconds']:9.4f} {ratio:>10}")
# Device memory of one forward and what it needs: as weft plan predicts it, as the program counts, and by
# how much the driver's count grew (code that libraries load among it).
print(f"\n{'memory, GiB':34} {'planned':>9} {'taken':>9} {'driver':>9} {'planned/taken':>13} {'planned/driver':>14}")
for line in lines:
    if "planned_device_bytes" not in line: continue
    planned, taken, driver = (line[key] / 2**30 for key in
                              ("planned_device_bytes", "device_peak_bytes", "device_grown_bytes"))
    key = (line["config"], line["tokens"], line["blocks"], *[line[k] for k in ("resident",) if k in line])
    print(f"{str(key):34} {planned:9.3f} {taken:9.3f} {driver:9.3f} {planned / taken:13.4f} {planned / driver:14.4f}")
PY
}

copies() {  # what ops that only move memory do of a copy's bandwidth in the same run
  python3 - "$out/ops.jsonl" <<'PY'
import json, sys
lines = [json.loads(text) for text in open(sys.argv[1])]
copy = {line["dtype"]: line["gb_s"] for line in lines if line["op"] == "copy"}
print(f"\n{'op':22} {'dtype':5} {'shape':>24} {'us':>10} {'GB/s':>8} {'of copy':>8}")
for line in lines:
    if line["gflop_s"] or line["dtype"] not in copy: continue
    print(f"{line['op']:22} {line['dtype']:5} {line['shape']:>24} {line['us']:10.1f} {line['gb_s']:8.1f} "
          f"{line['gb_s'] / copy[line['dtype']]:8.3f}")
PY
}

bench_dit() {  # name, arch, tokens, blocks: ours, and PyTorch's step
  local size=(--arch "$2" --tokens "$3" --blocks "$4" --repeat 3)
  step "dit_$1" 180 ours dit --dtype bf16 "${size[@]}" ${TINY:+"${tiny[@]}"}
  [ -z "${TINY:-}" ] || size+=(--device cpu --eager)
  step "torch_$1" 180 torch_step "${size[@]}"
}

bench() {  # what is compared with PyTorch's step and with floors
  local long=32760 longest=75600 blocks=(30 40 8) few=(--repeat 5) vae=(--size 1280x720) stream=(--blocks 12 --resident-layers 4)
  if [ -n "${TINY:-}" ]; then
    long=32 longest=48 blocks=(2 2 2) few=(--repeat 1) vae=(--size 16x16 --num-frames 5) stream=(--blocks 3 --resident-layers 2)
  fi
  bench_dit 1.3b_480p wan2.1-1.3b $long "${blocks[0]}"
  bench_dit 14b_480p wan2.1-14b $long "${blocks[1]}"
  bench_dit 14b_720p wan2.1-14b $longest "${blocks[2]}"
  step attention 90 ours attention --dtype bf16 "${few[@]}" ${TINY:+--tokens 32}
  step vae_720p 150 ours vae --dtype bf16 "${vae[@]}"
  step attention_fp8 90 ours attention --dtype bf16 --attention fp8 "${few[@]}" ${TINY:+--tokens 32}
  step dit_1.3b_fp8 120 ours dit --dtype bf16 --tokens $long --blocks "${blocks[0]}" --weights fp8 --attention fp8 --repeat 3 \
    ${TINY:+"${tiny[@]}"}
  step dit_1.3b_fp8_tensor 120 ours dit --dtype bf16 --tokens $long --blocks "${blocks[0]}" --weights fp8-tensor --attention fp8 --repeat 3 \
    ${TINY:+"${tiny[@]}"}
  step streamed 120 ours dit --dtype bf16 --arch wan2.1-14b --tokens $long "${stream[@]}" --repeat 3 ${TINY:+"${tiny[@]}"}
  summary | tee -a "$out/table.txt"
}

parts() {  # what stands beside a transformer's forward, and every op
  local long=32760
  [ -z "${TINY:-}" ] || long=8
  step text 90 ours text --dtype bf16 ${TINY:+--tokens 2 --blocks 1 --repeat 1}
  step llm 90 ours llm --dtype bf16 ${TINY:+--tokens 8 --repeat 1 --model tests/golden/llm_qwen3_tied/model}
  step load 120 ours load --dtype bf16 --repeat 2 ${TINY:+"${tiny[@]}"}
  step layouts 120 ours layouts --dtype bf16 --repeat 3 --tokens $long ${TINY:+"${tiny[@]}"}
  [ -n "${WEFT:-}" ] || step ops_bench 180 lines ops.jsonl "$ops_bench" "" 0 cuda
  [ ! -s "$out/ops.jsonl" ] || copies | tee -a "$out/table.txt"
}

if [ "${1:-}" = run ]; then  # a step of this script's own
  shift
  "$@"
  exit
fi
stages=("$@")
[ $# -gt 0 ] || stages=(build doctor ops bench parts verify ranks sanitize)
for stage in "${stages[@]}"; do
  case $stage in
    build | doctor | ops | bench | parts | verify | ranks | sanitize) ;;
    *)
      sed -n '2,9p' "$self" >&2
      exit 2
      ;;
  esac
done
prepare
case " ${stages[*]} " in  # a machine that lost its build gets it again
  *" build "*) ;;
  *) [ -x "$weft" ] || stages=(build "${stages[@]}") ;;
esac
mapfile -t split < <(grep -lE '"stage": *"(transformer|pipeline|pipeline_i2v|llm|text_encoder|vae_decode)"' tests/golden/*/case.json |
  xargs -n 1 dirname)
[ -z "${TINY:-}" ] || split=(tests/golden/{dit_wan_tiny_sharded,dit_wan_tiny,pipeline_t2v,llm_qwen3_tied})
for stage in "${stages[@]}"; do
  case $stage in
    build) step build 580 build ;;
    doctor) step doctor 120 doctor ;;
    ops) step ops 300 ops ;;
    verify) for dtype in f32 bf16; do step "verify_$dtype" 280 verify $dtype; done ;;
    ranks)
      for dtype in f32 bf16; do
        for layout in ulysses=2 ring=2 token_ring=2 layers=2 cfg=2 tensor=2 ulysses=3 ring=4 layers=2,ring=2; do
          step "ranks_${layout}_$dtype" 120 ranks $layout $dtype "${split[@]}"
        done
      done
      ;;
    bench) bench ;;
    parts) parts ;;
    sanitize) for tool in memcheck racecheck; do step "sanitize_$tool" 280 sanitize $tool; done ;;
  esac
done
[ $failed -eq 0 ] || exit 1
[ $late -eq 0 ] || exit 3
