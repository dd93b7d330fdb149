#!/usr/bin/env bash
# Packs what building needs and a bare CUDA machine lacks (headers, shared objects, package files of
# the Debian packages, without FFmpeg) into one archive of under 50 MiB, default gpu/bundle.tar.xz.
# tests/gpu.sh unpacks it. Run on a Debian 12 where apps/setup.sh tests has passed.
set -euo pipefail
cd "$(dirname "$0")/.."
bundle=${1:-gpu/bundle.tar.xz}

packages=(libhwy-dev libdnnl-dev ocl-icd-opencl-dev opencl-c-headers nlohmann-json3-dev libcli11-dev
  libsentencepiece-dev libicu-dev libonig-dev libssl-dev libgtest-dev
  "$(dpkg-query -S /usr/include/boost/beast.hpp | cut -d: -f1)")

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
put() {  # files at their places below the root, links with what they point to
  local file
  for file in "$@"; do
    [ -f "$file" ] || continue
    mkdir -p "$root$(dirname "$file")"
    cp -a "$file" "$root$file"
    if [ -L "$file" ]; then put "$(realpath -s "$(dirname "$file")/$(readlink "$file")")"; fi
  done
}

# Headers, and what CMake and pkg-config read. Static archives but GoogleTest's stay behind.
for package in "${packages[@]}"; do
  mapfile -t files < <(dpkg -L "$package" | grep -E \
    '^/usr/(include/|lib/.*/(cmake|pkgconfig)/|lib/cmake/|share/(cmake|pkgconfig)/|lib/.*\.so$|lib/.*/libg(test|mock).*\.a$)')
  put "${files[@]}"
done

# Shared objects that those need, by the names they are asked for; the C and C++ run-times are the
# machine's own.
needs() {  # what a file is linked to, but those
  ldd "$1" | awk '$2 == "=>" && $3 !~ /\/lib(c|m|dl|pthread|rt|gcc_s|stdc\+\+|gomp)\.so/ {
    sub("^/lib/", "/usr/lib/", $3); print $3}'
}
for library in dnnl hwy hwy_contrib sentencepiece icuuc onig crypto OpenCL; do
  path=/usr/lib/x86_64-linux-gnu/lib$library.so
  soname=$(objdump -p "$path" | awk '/SONAME/ {print $2}')
  mapfile -t needed < <(needs "$path")
  put "$path" "/usr/lib/x86_64-linux-gnu/$soname" "${needed[@]}"
done

# A pkg-config for machines without one.
mapfile -t needed < <(needs /usr/bin/pkgconf)
put /usr/bin/pkgconf "${needed[@]}"

mkdir -p "$(dirname "$bundle")"
tar -C "$root" -c . | xz -T0 -6 >"$bundle"
size=$(stat -c %s "$bundle")
echo "$bundle: $((size / 1048576)) MiB"
[ "$size" -lt $((50 << 20)) ] || { echo "gpu_bundle: the archive must stay under 50 MiB" >&2; exit 1; }
