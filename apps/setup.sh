#!/usr/bin/env bash
# Installs the Debian 12 packages that building needs and that are missing.
# usage: apps/setup.sh [GROUP...]   GROUP adds the packages of one more activity:
#   tests    the test suite     fuzz  the fuzzer     package  making a .deb     bare  tests/bare_root.sh
#   slurm    tests/slurm.sh
set -euo pipefail

packages=(g++ cmake ninja-build mold ccache pkg-config ca-certificates git
  libhwy-dev libdnnl-dev ocl-icd-opencl-dev opencl-c-headers
  nlohmann-json3-dev libcli11-dev libsentencepiece-dev libicu-dev libonig-dev libssl-dev libsqlite3-dev libboost-dev
  libavcodec-dev libavfilter-dev libavformat-dev libavutil-dev libswresample-dev libswscale-dev libpng-dev
  libjpeg62-turbo-dev libwebp-dev ffmpeg)
optional=(libopenmpi-dev openmpi-bin libucx-dev)  # Without them ranks are threads only.
# The CUDA build (-DWEFT_CUDA=ON) takes nvcc, cudart, cuBLASLt, cuDNN and NCCL (libcudnn9-dev-cuda-13 and
# libnccl-dev of NVIDIA's repository) from an installed CUDA toolkit.
for group in "$@"; do
  case $group in
    tests)
      packages+=(libgtest-dev libboost-context-dev clang-format python3 python3-jsonschema python3-yaml iproute2 espeak-ng
        python3-websockets curl openssl)
      optional+=(chromium chromium-driver python3-selenium)  # Without them the pages' test is skipped.
      ;;
    fuzz) packages+=(clang libclang-rt-14-dev libomp-dev) ;;
    package) packages+=(dpkg-dev file) ;;
    bare) packages+=(mmdebstrap) ;;
    slurm) packages+=(slurmctld slurmd slurm-client) ;;
    *)
      echo "setup: no group '$group', legal: tests fuzz package bare slurm" >&2
      exit 2
      ;;
  esac
done

absent() {  # prints those of the named packages that are not installed
  local installed
  installed=$({ dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true; } | sed -n 's/ installed$//p')
  printf '%s\n' "$@" | grep -vxF "${installed:-none}" || true
}
mapfile -t missing < <(absent "${packages[@]}")
mapfile -t wished < <(absent "${optional[@]}")
[ $((${#missing[@]} + ${#wished[@]})) -gt 0 ] || exit 0

root=()
if [ "$(id -u)" -ne 0 ]; then
  root=(sudo)
  # Where nobody can type a password, sudo must not need one.
  if ! command -v sudo >/dev/null || { ! [ -t 0 ] && ! sudo -n true 2>/dev/null; }; then
    [ ${#missing[@]} -gt 0 ] || exit 0
    echo "setup: neither root nor sudo here; have these packages installed first: ${missing[*]}" >&2
    exit 1
  fi
fi
install() {
  echo "setup: installing $*" >&2
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}
"${root[@]}" apt-get update -qq || [ ${#missing[@]} -eq 0 ]
[ ${#missing[@]} -eq 0 ] || install "${missing[@]}"
[ ${#wished[@]} -eq 0 ] || install "${wished[@]}" || echo "setup: continuing without ${wished[*]}" >&2
