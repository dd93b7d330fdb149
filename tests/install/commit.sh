#!/usr/bin/env bash
# A program's commit follows its checkout: a build after a commit names it, a build without one remakes nothing, and a
# tree that is no checkout names none. usage: commit.sh
set -euo pipefail
root=$(realpath "$(dirname "$0")/../..")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
git() { command git -c user.name=test -c user.email=test@weft.invalid -c commit.gpgsign=false "$@"; }

mkdir -p tree/apps
cp "$root"/apps/commit.{cmake,h} tree/apps/
cat > tree/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.25)
project(tree LANGUAGES CXX)
include(apps/commit.cmake)
weft_add_commit(commit)
add_executable(tell tell.cc)
target_link_libraries(tell PRIVATE commit)
END
printf '#include "apps/commit.h"\n#include <cstdio>\nint main() { std::puts(weft::kCommit); }\n' > tree/tell.cc
sed -i 's/^target_link.*/&\ntarget_include_directories(tell PRIVATE .)/' tree/CMakeLists.txt

built() {  # the commit that a build of $1 names
  cmake -G Ninja -S "$1" -B "$1.build" > log || { cat log >&2; exit 1; }
  build "$1"
}
build() { cmake --build "$1.build" > log || { cat log >&2; exit 1; }; "$1.build/tell"; }
expect() {  # what, is, should be
  [ "$2" = "$3" ] || { echo "FAULT: $1: '$2', not '$3'"; exit 1; }
}

git init -q tree
git -C tree add .
git -C tree commit -q -m one
expect "the first commit" "$(built tree)" "$(git -C tree rev-parse --short HEAD)"
before=$(stat -c %y tree.build/tell)
git -C tree commit -q --allow-empty -m two
expect "the second commit, without configuring" "$(build tree)" "$(git -C tree rev-parse --short HEAD)"
after=$(stat -c %y tree.build/tell)
[ "$before" != "$after" ] || { echo "FAULT: a new commit linked nothing"; exit 1; }
build tree > /dev/null
expect "time of linking after a build without a commit" "$(stat -c %y tree.build/tell)" "$after"

mkdir export
git -C tree archive HEAD | tar -x -C export
expect "an exported tree" "$(built export)" unknown
mkdir tree/inside
git -C tree archive HEAD | tar -x -C tree/inside
expect "an exported tree inside another checkout" "$(built tree/inside)" unknown
echo "commit: 4 builds as they should be"
