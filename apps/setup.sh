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
        python3-venv python3-websockets curl openssl)
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
install() {
  echo "setup: installing $*" >&2
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}
install_packages() {
  local missing wished root=()
  mapfile -t missing < <(absent "${packages[@]}")
  mapfile -t wished < <(absent "${optional[@]}")
  [ $((${#missing[@]} + ${#wished[@]})) -gt 0 ] || return 0
  if [ "$(id -u)" -ne 0 ]; then
    root=(sudo)
    # Where nobody can type a password, sudo must not need one.
    if ! command -v sudo >/dev/null || { ! [ -t 0 ] && ! sudo -n true 2>/dev/null; }; then
      [ ${#missing[@]} -gt 0 ] || return 0
      echo "setup: neither root nor sudo here; have these packages installed first: ${missing[*]}" >&2
      exit 1
    fi
  fi
  "${root[@]}" apt-get update -qq || [ ${#missing[@]} -eq 0 ]
  [ ${#missing[@]} -eq 0 ] || install "${missing[@]}"
  [ ${#wished[@]} -eq 0 ] || install "${wished[@]}" || echo "setup: continuing without ${wished[*]}" >&2
}

# OpenAI's own client for tests/openai_client.py, from PyPI, in a folder of its own below the user's cache.
install_client() {
  local wanted folder version
  wanted=$(dirname "$0")/../tests/openai_requirements.txt
  version=$(sed -n 's/^openai==\([^ ]*\).*/\1/p' "$wanted")
  folder=${XDG_CACHE_HOME:-$HOME/.cache}/weft/openai-$version
  ! cmp -s "$wanted" "$folder/installed.txt" || return 0
  echo "setup: installing openai $version of PyPI in $folder" >&2
  rm -rf "$folder"
  if /usr/bin/python3 -m venv "$folder" &&
    "$folder/bin/python" -m pip install -q --disable-pip-version-check --only-binary :all: --require-hashes -r "$wanted"; then
    cp "$wanted" "$folder/installed.txt"
  else
    rm -rf "$folder"
    echo "setup: WITHOUT OpenAI's client, which PyPI did not give: the test openai_client is left out" >&2
  fi
}

install_packages
for group in "$@"; do
  [ "$group" != tests ] || install_client
done
