#!/usr/bin/env bash
# Follows apps/guide/library.md in a scratch home and uses what is installed there and nothing else: the program draws a
# clip with the model that it finds by name, and the example, built with find_package(weft), draws the same frames.
# usage: installed.sh BUILD_FOLDER
set -euo pipefail
build=$(realpath "$1") source=$(realpath "$(dirname "$0")/../..")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
prefix=$folder/weft guide=$source/apps/guide/library.md
cd "$folder"
ln -s "$build" build
unset WEFT_MODEL_DIRS
export CMAKE_GENERATOR=Ninja

fault() { echo "FAULT: $*"; exit 1; }
quietly() { "$@" > log 2>&1 || { cat log; fault "$*"; }; }

# The commands are the guide's indented lines up to its last section, which installs packages.
sed '/^## Debian packages/,$d' "$guide" | sed -n 's/^    //p' > commands
[ "$(wc -l < commands)" -eq 6 ] || fault "$guide has $(wc -l < commands) commands, not 6"
HOME=$folder quietly bash -ec 'set -x; . ./commands'
frames=$(tail -n 1 log)
[ -s ball.mp4 ] || fault "the guide's first clip is missing"
while read -r line; do
  grep -qxF "$line" example/CMakeLists.txt || fault "the example's CMakeLists.txt does not have the guide's line $line"
done < <(sed -n '/^```cmake/,/^```/p' "$guide" | grep -v '^```')

for file in share/doc/weft/{LICENSE,NOTICE} share/man/man1/weft.1 share/bash-completion/completions/weft \
  share/zsh/vendor-completions/_weft share/fish/vendor_completions.d/weft.fish lib/systemd/system/weft.service \
  share/weft/deploy/Containerfile; do
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

clip=$("$prefix/bin/weft" generate --model pocket --prompt "a big red ball, moving left on a navy background" \
  --num-frames 5 --steps 4 --seed 7 --dtype f32 --progress none -q -o clip.mp4)
hash=$(cut -d ' ' -f 2 <<< "$clip")
[ "$frames" = "5 frames, hash $hash" ] || fault "the example drew '$frames', the program '$clip'"
size=$((3 * 128 * 128))
written=$(for frame in frame{0..4}.ppm; do tail -c $size "$frame"; done | sha256sum | cut -d ' ' -f 1)
[ "$written" = "$hash" ] || fault "the example wrote other pixels than the program: $written, $hash"

ffmpeg -loglevel error -f lavfi -i sine=300:r=16000:d=1 tone.wav
"$prefix/bin/weft" stream --model pocket_avatar --render tone.wav -q -o tone.mp4 | grep -qE '^tone.mp4 [0-9a-f]{64} ' ||
  fault "weft stream drew no movie with the installed avatar"
echo "installed: the example draws the program's frames, $hash"
