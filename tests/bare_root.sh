#!/usr/bin/env bash
# Runs commands as on a new machine: a Debian 12 that holds nothing but apt, with a clone of this repository
# (its last commit) in /root/weft. Needs root.
# usage: tests/bare_root.sh [--put FILE]... [--out FOLDER] COMMAND...
#   COMMAND       one argument each, run by bash in /root/weft; the first that fails ends the run with its status
#   --put FILE    copies FILE to /root first
#   --out FOLDER  copies /root/weft/outputs to FOLDER afterwards
# The root is made once and kept in ${XDG_CACHE_HOME:-~/.cache}/weft/bare-root.tar; every run unpacks it anew.
# Compiled files are shared through ccache's folder, also with builds elsewhere; packages are not kept. Mounts belong to a namespace of the
# run's own, so that none can outlive it.
set -euo pipefail
cd "$(dirname "$0")/.."
files=() out=
while [ $# -gt 0 ]; do
  case $1 in
    --put) files+=("$2"); shift 2 ;;
    --out) out=$2; shift 2 ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || { sed -n '2,11p' tests/bare_root.sh >&2; exit 2; }
[ "$(id -u)" -eq 0 ] || { echo "bare_root: needs root, for mounts and device nodes" >&2; exit 2; }
bash apps/setup.sh bare

cache=${XDG_CACHE_HOME:-$HOME/.cache}
kept=$cache/weft/bare-root.tar compiled=${CCACHE_DIR:-$cache/ccache}
mkdir -p "$cache/weft" "$compiled"
if [ ! -s "$kept" ]; then
  # Debian's own sources as this machine names them, and no others.
  sources=/etc/apt/sources.list.d/debian.sources
  [ -e "$sources" ] || sources=
  mmdebstrap --quiet --variant=apt --mode=root --include=ca-certificates bookworm "$kept.part.tar" $sources
  mv "$kept.part.tar" "$kept"
fi

root=$(mktemp -d "${TMPDIR:-/tmp}/weft-bare.XXXXXX")
trap 'rm -rf --one-file-system "$root"' EXIT
tar -C "$root" --exclude='./dev/*' -xf "$kept"
# The machine's way to the network: names, proxies and the certificates that it trusts.
cp /etc/resolv.conf /etc/hosts "$root/etc/"
cp /etc/apt/apt.conf.d/* "$root/etc/apt/apt.conf.d/" 2>/dev/null || true
cp /etc/pip.conf "$root/etc/" 2>/dev/null || true
cp -r /etc/ssl/certs/. "$root/etc/ssl/certs/"
mkdir -p "$root/usr/local/share/ca-certificates"
cp -r /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/" 2>/dev/null || true
git clone --quiet "$PWD" "$root/root/weft"
[ ${#files[@]} -eq 0 ] || cp "${files[@]}" "$root/root/"

# Runs as the first process of the namespaces; its arguments are the root, ccache's folder and the commands.
inside() {
  local root=$1 compiled=$2 name
  shift 2
  mount --bind "$root" "$root"  # a mount point, as programs expect of /
  mount -t tmpfs none "$root/dev"
  mkdir "$root/dev/shm" "$root/dev/pts"
  mount -t tmpfs none "$root/dev/shm"
  mount -t devpts none "$root/dev/pts" -o newinstance,ptmxmode=666
  ln -s pts/ptmx "$root/dev/ptmx"
  for name in null zero full random urandom tty; do cp -a "/dev/$name" "$root/dev/"; done
  ln -s /proc/self/fd "$root/dev/fd"
  ln -s /proc/self/fd/0 "$root/dev/stdin"
  ln -s /proc/self/fd/1 "$root/dev/stdout"
  ln -s /proc/self/fd/2 "$root/dev/stderr"
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mkdir -p "$root/root/.cache/ccache"
  mount --bind "$compiled" "$root/root/.cache/ccache"
  for command in "$@"; do
    echo "bare_root: $command"
    SECONDS=0
    chroot "$root" /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
      ${CI:+CI="$CI"} CCACHE_BASEDIR=/root/weft CCACHE_NOHASHDIR=1 bash -c 'cd /root/weft && bash -c "$1"' bash "$command" || return
    echo "bare_root: took $SECONDS s"
  done
}
export -f inside
status=0
unshare --mount --pid --fork --propagation private bash -euc 'inside "$@"' bash "$root" "$compiled" "$@" </dev/null || status=$?
if [ -n "$out" ] && [ -d "$root/root/weft/outputs" ]; then
  mkdir -p "$out"
  cp -r "$root/root/weft/outputs/." "$out/"
fi
exit $status
