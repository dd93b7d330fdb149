#!/usr/bin/env bash
# Packs what tests/gpu.sh needs on a bare x86-64 machine with a GPU of compute capability 9.0, where neither a compiler
# nor Debian's packages are: binaries and the libraries that they load, in gpu/, beside the golden cases that it runs.
# Everything else is taken out of the working tree (git sparse-checkout), so that tree and gpu/ can travel in 60 MiB.
#   tests/gpu_pack.sh           builds and packs; refuses changes that are not committed
#   tests/gpu_pack.sh --undo    brings the whole tree back and removes gpu/, also after a pack that was interrupted
#   tests/gpu_pack.sh --check   does both in a clone, and starts the packed binaries in a bare Debian root (needs root)
# Run on a Debian 12 with CUDA's toolkit where apps/setup.sh tests has passed.
set -euo pipefail
cd "$(dirname "$0")/.."
most=60  # MiB
build=build-gpu/build
binaries=(weft tests/cuda/cuda_test tests/bench/weft_ops_bench)
cuda_libraries='lib(cublas(Lt)?|cudnn|nccl)\.so'

undo() {
  local key own
  git sparse-checkout disable
  own=$(git rev-parse --git-path config.worktree)
  for key in core.sparseCheckout core.sparseCheckoutCone index.sparse; do git config --worktree --unset $key || true; done
  if [ -e "$own" ] && [ -z "$(git config --file "$own" --list)" ]; then  # nobody else's settings lie there
    rm "$own"
    git config --unset extensions.worktreeConfig || true
  fi
  rm -rf gpu "$(git rev-parse --git-path info/sparse-checkout)"
}

compile() {
  cmake --preset gpu -DWEFT_CUDA_ARCHITECTURES=90a-real >/dev/null
  cmake --build $build --target "${binaries[@]##*/}" | grep -v '^ptxas info\|bytes stack frame\|^$' || [ "${PIPESTATUS[0]}" = 0 ]
}

libraries() {  # the shared objects that the binaries load
  ldd "${binaries[@]/#/$build/}" | awk '$3 ~ /^\// {print $3}' | sort -u
}

# The machine has glibc, the compiler's run-time libraries but OpenMP's, and CUDA's libraries.
collect() {  # folder
  local binary
  mkdir -p "$1/bin" "$1/lib"
  for binary in "${binaries[@]}"; do strip -o "$1/bin/${binary##*/}" "$build/$binary"; done
  libraries | grep -vE "/(lib(c|m|dl|pthread|rt|stdc\+\+|gcc_s)\.so|$cuda_libraries)" | xargs -I{} cp -L {} "$1/lib/"
  strip "$1"/lib/*
}

narrow() {  # takes the rest out of the tree, and refuses what is too large
  local size
  { printf '/%s\n' .gitignore tests/gpu.sh tests/gpu_steps.py tests/gpu_pack.sh tests/bench/torch_step.py \
      models/pocket/language/
    python3 tests/gpu_steps.py cases | sed 's|^|/|'; } | git sparse-checkout set --no-cone --stdin
  size=$({ git ls-files; find gpu -type f; } | while read -r file; do [ ! -f "$file" ] || stat -c %s "$file"; done |
    awk '{n += $1} END {print int(n / 1048576) + 1}')
  echo "$size MiB will travel: the tree and gpu/ (tests/gpu_pack.sh --undo brings the rest back)"
  [ "$size" -gt $most ] || return 0
  undo
  echo "gpu_pack: that is more than $most MiB; the tree is whole again" >&2
  return 1
}

check() {
  local clone=$staging/clone
  tar -C "$staging" -cf "$staging/pack.tar" bin lib
  mapfile -t others < <(libraries | grep -E "/$cuda_libraries")
  tests/bare_root.sh --put "$staging/pack.tar" $(printf -- '--put %s ' "${others[@]}") \
    "tar -C /root -xf /root/pack.tar" "LD_LIBRARY_PATH=/root/lib:/root /root/bin/weft doctor" \
    "LD_LIBRARY_PATH=/root/lib:/root /root/bin/cuda_test --gtest_list_tests | tail -n 1"
  git clone -q --shared . "$clone"
  mkdir "$clone/gpu"
  cp gpu/pack.tar.xz "$clone/gpu/"
  rm -r gpu
  (
    cd "$clone"
    before=$(git config --list --local; ls -A . .git/info | grep -vx gpu)
    narrow
    undo
    if [ -n "$(git status --porcelain --ignored)" ] ||
      [ "$before" != "$(git config --list --local; ls -A . .git/info)" ]; then
      echo "gpu_pack: --undo left a trace" >&2
      git status --short --ignored >&2
      exit 1
    fi
  )
}

case "${1:-}" in
  '' | --check) ;;
  --undo) undo; exit ;;
  *) sed -n '2,8p' "$0" >&2; exit 2 ;;
esac
if [ "${1:-}" != --check ] && [ -n "$(git status --porcelain)" ]; then
  echo "gpu_pack: there are changes that are not committed; git status names them" >&2
  exit 1
fi
compile
staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
collect "$staging"
mkdir -p gpu
tar -C "$staging" -c bin lib | xz -T0 -6 >gpu/pack.tar.xz
git rev-parse --short HEAD >gpu/commit
if [ "${1:-}" = --check ]; then check; else narrow; fi
