#!/usr/bin/env bash
# Installs what building needs and is missing (Debian 12). `setup.sh tests` adds what the tests need,
# `setup.sh fuzz` what the fuzzer needs, `setup.sh package` what making a .deb needs.
set -euo pipefail

packages=(g++ cmake ninja-build ccache pkg-config ca-certificates
  libhwy-dev libdnnl-dev ocl-icd-opencl-dev opencl-c-headers
  nlohmann-json3-dev libcli11-dev libsentencepiece-dev libicu-dev libpcre2-dev libssl-dev
  libavcodec-dev libavformat-dev libavutil-dev libswscale-dev libpng-dev ffmpeg)
[ "${1:-}" = fuzz ] && packages+=(clang libclang-rt-14-dev libomp-dev)
[ "${1:-}" = package ] && packages+=(dpkg-dev file git)
[ "${1:-}" = tests ] && packages+=(libgtest-dev libboost-context-dev clang-format python3 python3-jsonschema git)

optional=(libopenmpi-dev openmpi-bin)  # without them ranks are threads only
# The CUDA build (-DWEFT_CUDA=ON) takes nvcc, cudart, cuBLASLt, cuDNN and NCCL (libcudnn9-dev-cuda-13 and
# libnccl-dev of NVIDIA's repository) from an installed CUDA toolkit.

absent() {  # of the packages named
  local package
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || echo "$package"
  done
}
mapfile -t missing < <(absent "${packages[@]}")
mapfile -t wished < <(absent "${optional[@]}")
[ $((${#missing[@]} + ${#wished[@]})) -eq 0 ] && exit 0

root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || {
    [ ${#missing[@]} -eq 0 ] && exit 0
    echo "setup: run as root, or install these packages first: ${missing[*]}" >&2
    exit 1
  }
  root=(sudo)
fi
install() {
  echo "setup: installing $*" >&2
  DEBIAN_FRONTEND=noninteractive "${root[@]}" apt-get install -y -qq --no-install-recommends \
    "$@" >/dev/null
}
"${root[@]}" apt-get update -qq || [ ${#missing[@]} -eq 0 ]
[ ${#missing[@]} -eq 0 ] || install "${missing[@]}"
[ ${#wished[@]} -eq 0 ] || install "${wished[@]}" || echo "setup: going on without ${wished[*]}" >&2
