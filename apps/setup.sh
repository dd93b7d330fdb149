#!/usr/bin/env bash
# Installs what building needs and is missing (Debian 12). `setup.sh tests` adds what the tests need.
set -euo pipefail

packages=(g++ cmake ninja-build ccache pkg-config ca-certificates
  libhwy-dev libdnnl-dev ocl-icd-opencl-dev opencl-c-headers
  nlohmann-json3-dev libcli11-dev libsentencepiece-dev libicu-dev libssl-dev
  libavcodec-dev libavformat-dev libavutil-dev libswscale-dev libpng-dev ffmpeg)
[ "${1:-}" = tests ] && packages+=(libgtest-dev clang-format python3 git)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || {
    echo "setup: run as root, or install these packages first: ${missing[*]}" >&2
    exit 1
  }
  root=(sudo)
fi
echo "setup: installing ${missing[*]}" >&2
"${root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${root[@]}" apt-get install -y -qq --no-install-recommends \
  "${missing[@]}" >/dev/null
