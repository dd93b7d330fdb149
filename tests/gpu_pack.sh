#!/usr/bin/env bash
# Packs what tests/gpu.sh needs on a bare x86-64 machine with a GPU of compute capability 9.0, where neither a compiler
# nor Debian's packages are: binaries and the libraries that they load, in gpu/, beside the golden cases that it runs.
# Everything else is taken out of the working tree (git sparse-checkout), so that tree and gpu/ can travel in 60 MiB.
#   tests/gpu_pack.sh           builds and packs; refuses changes that are not committed
#   tests/gpu_pack.sh --undo    brings the whole tree back and removes gpu/, also after a pack that was interrupted
# Run on a Debian 12 with CUDA's toolkit where apps/setup.sh tests has passed.
set -euo pipefail
cd "$(dirname "$0")/.."
most=60  # MiB

undo() {
  git sparse-checkout disable
  git config --unset core.sparseCheckout || true
  git config --unset core.sparseCheckoutCone || true
  rm -rf gpu
}

case "${1:-}" in
  '') ;;
  --undo) undo; exit ;;
  *) sed -n '2,7p' "$0" >&2; exit 2 ;;
esac
if [ -n "$(git status --porcelain)" ]; then
  echo "gpu_pack: there are changes that are not committed; git status names them" >&2
  exit 1
fi

build=build-gpu/build
cmake -G Ninja -S . -B $build -DWEFT_CUDA=ON -DWEFT_MPI=OFF -DWEFT_MEDIA=OFF -DCMAKE_UNITY_BUILD=ON -DBUILD_TESTING=ON \
  -DWEFT_CUDA_ARCHITECTURES=90a-real >/dev/null
cmake --build $build --target weft cuda_test weft_ops_bench

staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
mkdir -p "$staging/bin" "$staging/lib" gpu
for binary in weft tests/cuda/cuda_test tests/bench/weft_ops_bench; do
  strip -o "$staging/bin/${binary##*/}" "$build/$binary"
done
# The machine has glibc, the compilers' run-time libraries but OpenMP's, and CUDA's; those are the toolkit's here.
ldd "$staging"/bin/* | awk '$3 ~ /^\// {print $3}' | sort -u |
  grep -vE '/(libc|libm|libdl|libpthread|librt|libstdc\+\+|libgcc_s|libcublas(Lt)?|libcudnn|libnccl|libcudart)\.so' |
  xargs -I{} cp -L {} "$staging/lib/"
strip "$staging"/lib/*
tar -C "$staging" -c bin lib | xz -T0 -6 >gpu/pack.tar.xz
git rev-parse --short HEAD >gpu/commit

{ printf '/%s\n' .gitignore tests/gpu.sh tests/gpu_steps.py tests/gpu_pack.sh tests/bench/torch_step.py
  python3 tests/gpu_steps.py cases | sed 's|^|/|'; } | git sparse-checkout set --no-cone --stdin
size=$( { git ls-files; find gpu -type f; } | while read -r file; do [ ! -f "$file" ] || stat -c %s "$file"; done |
  awk '{n += $1} END {print int(n / 1048576) + 1}')
echo "$size MiB will travel: the tree and gpu/ (tests/gpu_pack.sh --undo brings the rest back)"
if [ "$size" -gt $most ]; then
  undo
  echo "gpu_pack: that is more than $most MiB; the tree is whole again" >&2
  exit 1
fi
