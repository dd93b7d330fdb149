#!/usr/bin/env bash
# Installs a build to a scratch folder, and uses what is there and nothing else: the program draws a clip with the model
# that it finds by name, and the installed example, built with find_package(weft), draws the same frames.
# usage: installed.sh BUILD_FOLDER
set -euo pipefail
build=$(realpath "$1") source=$(realpath "$(dirname "$0")/../..")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
prefix=$folder/prefix
cd "$folder"
unset WEFT_MODEL_DIRS WEFT_MODEL_PATH

fault() { echo "FAULT: $*"; exit 1; }
quietly() { "$@" > log 2>&1 || { cat log; fault "$*"; }; }

quietly cmake --install "$build" --prefix "$prefix"
for file in share/doc/weft/{LICENSE,NOTICE} share/man/man1/weft.1 share/bash-completion/completions/weft \
  share/zsh/vendor-completions/_weft share/fish/vendor_completions.d/weft.fish share/weft/pocket/model_index.json; do
  [ -s "$prefix/$file" ] || fault "$file is not installed"
done
[ -z "$(find "$prefix" -name '*.py' -o -type d -empty)" ] || fault "a recipe or an empty folder is installed"
! grep -rl -e "$source" -e "$build" "$prefix/lib" --include='*.cmake' || fault "the CMake files name the source or build"

version=$("$prefix/bin/weft" --version)
for words in 'commit ([0-9a-f]{7,40}|unknown)$' '^licence: Apache-2.0'; do
  grep -qE "$words" <<< "$version" || fault "--version says: $version"
done

# Every installed header includes installed ones alone.
find "$prefix/include/weft" -name '*.h' -printf '#include <weft/%P>\n' | sort > headers.cc
[ "$(wc -l < headers.cc)" -gt 50 ] || fault "$(wc -l < headers.cc) headers are installed"
quietly c++ -std=c++20 -fsyntax-only "-I$prefix/include" "-I$prefix/include/weft" headers.cc

cp -r "$prefix/share/doc/weft/example" .
quietly cmake -G Ninja -S example -B example-build "-DCMAKE_PREFIX_PATH=$prefix"
quietly cmake --build example-build
frames=$(example-build/frames)
clip=$("$prefix/bin/weft" generate --model pocket --prompt "a big red ball, moving left on a navy background" \
  --num-frames 5 --steps 4 --seed 7 --dtype f32 --progress none -q -o clip.mp4)
hash=$(cut -d ' ' -f 2 <<< "$clip")
[ "$frames" = "5 frames, hash $hash" ] || fault "the example drew '$frames', the program '$clip'"
size=$((3 * 128 * 128))
written=$(for frame in frame{0..4}.ppm; do tail -c $size "$frame"; done | sha256sum | cut -d ' ' -f 1)
[ "$written" = "$hash" ] || fault "the example wrote other pixels than the program: $written, $hash"
echo "installed: the example draws the program's frames, $hash"
