#!/usr/bin/env bash
# Two ranks on two "machines": network namespaces joined by a veth pair of a limited rate, one MPI
# process in each, real TCP between them. Golden cases pass, and a clip of the pocket model equals
# that of two threads and of one rank. Exits with 77 where root, namespaces or mpirun are missing.
# The second machine's steady clock is a day ahead, as those of two hosts differ by their uptimes.
# The machines have IPv4 addresses alone, and in the end IPv6 addresses alone.
# usage: netns.sh WEFT [RATE [MPI_TEST]]    RATE as tc writes it [100mbit]; MPI_TEST is the program
#                                           of tests/parallel/process_test.cc
set -u
weft=$(realpath "$1")
rate=${2:-100mbit}
mpi_test=${3:+$(realpath "$3")}
cd "$(dirname "$0")/.."
skip() { echo "skipped: $*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "needs root"
for tool in ip tc mpirun unshare python3; do
  command -v $tool > /dev/null || skip "no $tool"
done

folder=$(mktemp -d)
a=weft-$$-a b=weft-$$-b
trap 'ip netns del $a 2> /dev/null; ip netns del $b 2> /dev/null
  rm -rf "$folder" /etc/netns/{$a,$b}' EXIT
{
  ip netns add $a && ip netns add $b &&
    # The same name on both sides: MPI takes one list of interfaces for all.
    ip link add weft0 netns $a type veth peer name weft0 netns $b
} 2> "$folder/err" || skip "no namespaces: $(cat "$folder/err")"
# addresses FIRST SECOND BITS: of the machines weft-a and weft-b.
addresses() {
  local space
  for space in $a $b; do
    mkdir -p /etc/netns/$space
    printf '%s\n' "127.0.0.1 localhost" "$1 weft-a" "$2 weft-b" > /etc/netns/$space/hosts
  done
  ip -n $a addr add "$1/$3" dev weft0
  ip -n $b addr add "$2/$3" dev weft0
}
latency="5 ms"
for space in $a $b; do
  # No IPv6 addresses but those that are given.
  ip -n $space link set weft0 addrgenmode none
  ip -n $space link set lo up
  ip -n $space link set weft0 up
  tc -n $space qdisc add dev weft0 root handle 1: tbf rate "$rate" burst 64kb latency 200ms \
    2> "$folder/err" || skip "no tbf: $(cat "$folder/err")"
  tc -n $space qdisc add dev weft0 parent 1: handle 10: netem delay 5ms 2> /dev/null ||
    latency="none added (this kernel has no netem)"
done
echo "link: $rate, latency $latency"
addresses 10.231.0.1 10.231.0.2 24

ahead="--time --monotonic 86400"
unshare $ahead true 2> /dev/null || ahead=
echo "second clock: ${ahead:-the same, this kernel has no time namespaces}"

# mpirun runs in the first namespace and starts its daemon in the second as it would by ssh.
cat > "$folder/agent" << END
#!/bin/sh
shift
exec ip netns exec $b unshare --uts --mount $ahead sh -c \
  "hostname weft-b; mount -t tmpfs none $folder/only-a; \$*"
END
chmod +x "$folder/agent"
mkdir "$folder/only-a"  # on the first machine alone has files
sent() { ip netns exec "$1" cat /sys/class/net/weft0/statistics/tx_bytes; }
faults=0
fault() {
  echo "FAULT: $*"
  faults=$((faults + 1))
}
# two_ranks COMMAND...: one rank on each machine.
two_ranks() {
  timeout -k 5 120 ip netns exec $a unshare --uts sh -c 'hostname weft-a; exec "$@"' sh \
    mpirun --allow-run-as-root -n 2 -host weft-a:1,weft-b:1 \
    --mca plm_rsh_agent "$folder/agent" --mca oob_tcp_if_include weft0 \
    --mca btl tcp,self --mca btl_tcp_if_include weft0 "$@"
}
# fails_apart CODE LINE COMMAND...: as two ranks, which end with the code and the line.
fails_apart() {
  local code=$1 line=$2
  shift 2
  two_ranks "$@" > "$folder/err" 2>&1
  local ended=$?
  [ $ended = "$code" ] || fault "code $ended instead of $code of $*"
  grep -qF -- "$line" "$folder/err" || fault "no '$line' of $*: $(cat "$folder/err")"
}
# apart LEAST_BYTES COMMAND...: as two ranks, of which each sends at least so many bytes.
apart() {
  local least=$1 before_a before_b
  shift
  before_a=$(sent $a) before_b=$(sent $b)
  two_ranks "$@" || fault "code $? of $*"
  for bytes in $(($(sent $a) - before_a)) $(($(sent $b) - before_b)); do
    echo "sent over the link: $bytes bytes"
    [ "$bytes" -ge "$least" ] || fault "fewer bytes than the $least of the messages"
  done
}

[ -z "$mpi_test" ] || apart 100000 "$mpi_test" --gtest_brief=1 '--gtest_filter=Processes.*'

# The same without mpirun: a process in each namespace, by --nodes, whose messages UCX carries.
nodes=10.231.0.1,10.231.0.2
ucx=
! "$weft" doctor | grep -q ' ucx .*UCX' || ucx=yes
# two_nodes COMMAND...: the first status that is not 0.
two_nodes() {
  local status=0 second
  timeout -k 5 120 ip netns exec $b unshare $ahead "$@" --nodes "$nodes" --node-rank 1 &
  second=$!
  timeout -k 5 120 ip netns exec $a "$@" --nodes "$nodes" --node-rank 0 || status=$?
  wait $second || status=$?
  return $status
}
by_nodes() {
  [ -n "$ucx" ] || return 0
  local before=$(sent $b) begun=$SECONDS
  two_nodes "$@" || fault "code $? of $* by --nodes $nodes"
  echo "sent over the link by UCX: $(($(sent $b) - before)) bytes"
  [ $(($(sent $b) - before)) -ge 10000 ] || fault "fewer bytes than the messages have"
  [ $((SECONDS - begun)) -le 10 ] || fault "$((SECONDS - begun)) s of $* by --nodes $nodes"
}
fails_by_nodes() {
  [ -n "$ucx" ] || return 0
  local code=$1 line=$2
  shift 2
  two_nodes "$@" > "$folder/err" 2>&1
  local ended=$?
  [ $ended = "$code" ] || fault "code $ended instead of $code of $* by --nodes $nodes"
  grep -qF -- "$line" "$folder/err" || fault "no '$line' of $* by --nodes: $(cat "$folder/err")"
}
for layout in ulysses=2 cfg=2; do
  by_nodes "$weft" verify tests/golden/pipeline_t2v --layout "$layout" --dtype f32 --threads 1
done

for layout in ulysses=2 cfg=2 tensor=2; do
  apart 10000 "$weft" verify tests/golden/pipeline_t2v --layout "$layout" --dtype f32 --threads 1
done

# The same with the variables that srun sets on two nodes without --ntasks-per-node.
cat > "$folder/as-srun" << 'END'
#!/bin/sh
export SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2 SLURM_STEP_TASKS_PER_NODE="1(x2)"
export SLURM_PROCID=$OMPI_COMM_WORLD_RANK SLURM_NODEID=$OMPI_COMM_WORLD_RANK SLURM_LOCALID=0
for name in SIZE RANK LOCAL_SIZE LOCAL_RANK; do unset OMPI_COMM_WORLD_$name; done
unset OMPI_MCA_btl_tcp_if_include
exec "$@"
END
chmod +x "$folder/as-srun"
apart 10000 "$folder/as-srun" "$weft" verify tests/golden/pipeline_t2v --layout ulysses=2 \
  --dtype f32 --threads 1

# The pocket model: the bits of the same two ranks as threads, and one rank's latents after a step.
# (Over more steps guidance multiplies the rounding of another order of sums.)
clip=("$weft" generate --model models/pocket --prompt "a red ball moves right on a gray floor"
  --seed 1 --num-frames 9 --dtype f32 --threads 1 --keep-latents --quiet)
apart 1000000 "${clip[@]}" --steps 4 --layout ulysses=2 -o "$folder/apart.mp4" > "$folder/log"
cat "$folder/log"
"${clip[@]}" --steps 4 --layout ulysses=2 --ranks 2 -o "$folder/threads.mp4" > "$folder/line"
framehash=$(cut -d' ' -f2 "$folder/line")
grep -q "apart.mp4 $framehash" "$folder/log" || fault "the frames are not those of threads"
# The files say which job was asked for, so the tensors alone are compared.
"$weft" compare --max-rel-l2 0 "$folder"/{apart,threads}.mp4.latents.safetensors > /dev/null ||
  fault "the latents are not those of threads"
"${clip[@]}" --steps 1 -o "$folder/one.mp4" || fault "one rank: code $?"
apart 100000 "${clip[@]}" --steps 1 --layout ulysses=2 -o "$folder/two.mp4"
python3 - "$folder"/{one,two}.mp4.latents.safetensors << 'END' ||
import array, json, math, struct, sys

def latents(path):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8:8 + size])["latents"]["data_offsets"]
    return array.array("f", data[8 + size + begin:8 + size + end])

one, two = map(latents, sys.argv[1:])
assert len(one) == len(two) > 0
error = math.sqrt(sum((x - y) ** 2 for x, y in zip(one, two)) / sum(x * x for x in one))
print(f"latents of the pocket model: rel. L2 {error:.3g} from one rank's, bound 1e-5")
sys.exit(not error <= 1e-5)
END
  fault "the clip is not one rank's"

# The first rank reads the picture; the second machine has no such file.
cp tests/io/pictures/rgb.png "$folder/only-a/"
clip=("$weft" generate --model tests/golden/pipeline_ti2v_5b/model --prompt "a red ball" --seed 1
  --image "$folder/only-a/rgb.png" --num-frames 5 --size 64x64 --steps 2 --dtype f32 --threads 1
  --layout ulysses=2 --quiet)
apart 10000 "${clip[@]}" -o "$folder/shown-apart.mp4" > "$folder/log"
"${clip[@]}" --ranks 2 -o "$folder/shown.mp4" > "$folder/line"
grep -q "shown-apart.mp4 $(cut -d' ' -f2 "$folder/line")" "$folder/log" ||
  fault "the frames from a picture are not those of threads"

# The first rank offers an address that leads nowhere before the right one, and then alone. (MPI
# itself tries such addresses for minutes.)
ip -n $a link add dead0 type veth peer name dead1
ip -n $a addr add 10.98.0.1/24 dev dead0
ip -n $a link set dead1 up
ip -n $a link set dead0 up
ip -n $b route add 10.98.0.0/24 via 10.231.0.99
verify=("$weft" verify tests/golden/pipeline_t2v --layout cfg=2 --dtype f32 --threads 1)
apart 10000 "${verify[@]}" --interface 10.98.0.1,weft0
by_nodes "${verify[@]}"
by_nodes "${verify[@]}" --interface 10.98.0.1,weft0
echo "10.98.0.1 weft-two" >> /etc/netns/$b/hosts
echo "10.231.0.1 weft-two" | tee -a /etc/netns/$a/hosts >> /etc/netns/$b/hosts
nodes=weft-two,weft-b by_nodes "${verify[@]}"
ip -n $b route replace prohibit 10.98.0.0/24
fails_apart 6 "connecting to rank 0 at 10.98.0.1:" "${verify[@]}" --interface dead0
fails_by_nodes 6 "connecting to rank 0 at 10.98.0.1:" "${verify[@]}" --interface dead0
fails_apart 2 "--interface is 'weft9', legal: " "${verify[@]}" --interface weft9

ip -n $a link del dead0
for space in $a $b; do ip -n $space addr flush dev weft0; done
addresses fd00:231::1 fd00:231::2 64
sleep 2  # until no other machine can claim the addresses
apart 10000 "${verify[@]}"
apart 10000 "${verify[@]}" --interface fd00:231::/64
nodes=fd00:231::1,fd00:231::2
by_nodes "${verify[@]}"
by_nodes "${verify[@]}" --interface fd00:231::/64
nodes=weft-a,weft-b by_nodes "${verify[@]}"
exit $((faults > 0))
