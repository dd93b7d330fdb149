#!/usr/bin/env bash
# What somebody reads whose machine lacks packages: one line that names them. Root is not needed.
set -u
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
faults=0
expect() {  # what is tried, a pattern that one line of its output must match
  grep -qE "$2" "$folder/out" && return
  echo "FAULT ($1): no line matches '$2' in:"
  sed 's/^/    /' "$folder/out"
  faults=$((faults + 1))
}

# A machine without sudo whose user is not root and that has no package yet.
mkdir "$folder/bin"
for tool in bash sed grep env cat; do ln -s "$(command -v $tool)" "$folder/bin/$tool"; done
printf '#!/bin/sh\necho 1000\n' >"$folder/bin/id"
printf '#!/bin/sh\nexit 1\n' >"$folder/bin/dpkg-query"
chmod +x "$folder/bin/id" "$folder/bin/dpkg-query"
PATH=$folder/bin bash apps/setup.sh tests >"$folder/out" 2>&1
[ $? -eq 1 ] || { echo "FAULT: setup.sh ended with another status than 1"; faults=$((faults + 1)); }
[ "$(wc -l <"$folder/out")" -eq 1 ] || { echo "FAULT: not one line: $(cat "$folder/out")"; faults=$((faults + 1)); }
expect "setup.sh without root" '^setup: .* g\+\+ cmake .* libdnnl-dev .* libgtest-dev '

bash apps/setup.sh nonsense >"$folder/out" 2>&1 && { echo "FAULT: a group that is not legal"; faults=$((faults + 1)); }
expect "setup.sh nonsense" "^setup: no group 'nonsense', legal: "

configure() { cmake -S . -B "$folder/build" -G Ninja "$@" >"$folder/out" 2>&1; }
configure -DBUILD_TESTING=ON -DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON && { echo "FAULT: tests without GoogleTest"; faults=$((faults + 1)); }
expect "no GoogleTest" '^ *GoogleTest is missing: install libgtest-dev '
configure -DBUILD_TESTING=ON -DCMAKE_DISABLE_FIND_PACKAGE_GTest=OFF -DCMAKE_DISABLE_FIND_PACKAGE_Boost=ON && { echo "FAULT: a build without Boost"; faults=$((faults + 1)); }
expect "no Boost" '^ *Boost.Beast is missing: install libboost-dev '
configure -DBUILD_TESTING=OFF -DCMAKE_DISABLE_FIND_PACKAGE_Boost=OFF || { echo "FAULT: a build without tests wants more"; faults=$((faults + 1)); }
expect "without tests" 'The tests are left out \(BUILD_TESTING=OFF\)'
[ "$faults" = 0 ] && echo "setup.sh and CMake name what is missing"
exit $((faults > 0))
