// The Communicator's collectives. All consist of point-to-point messages, so that bytes are counted
// where they are sent.
#include "kernels/copy.h"
#include "kernels/pointwise.h"
#include "parallel/communicator.h"
#include "parallel/partition.h"

namespace weft {

namespace {

TensorView flat(const TensorView& x) { return TensorView(x.data, x.dtype, {x.count()}, x.device); }

Tag with_hop(Tag tag, int hop) {
  tag.hop += hop;
  return tag;
}

}  // namespace

void Communicator::all_to_all_v(Stream& stream, const Tag& tag, std::span<const TensorView> in,
                                std::span<const TensorView> out) {
  CHECK(static_cast<int>(in.size()) == size() && static_cast<int>(out.size()) == size(), "parts",
        in.size(), out.size(), "of", size());
  std::vector<Message> sends, receives;
  for (int hop = 1; hop < size(); ++hop) {  // ranks start with different peers
    const int to = (rank_ + hop) % size(), from = (rank_ + size() - hop) % size();
    sends.push_back({to, tag, in[to]});
    receives.push_back({from, tag, out[from]});
  }
  Pending pending = post(stream, sends, receives);
  if (in[rank_].count() > 0 && in[rank_].data != out[rank_].data)
    copy(stream, in[rank_], out[rank_]);
  wait(pending);
}

void Communicator::all_gather_v(Stream& stream, const Tag& tag, const TensorView& in,
                                std::span<const TensorView> out) {
  std::vector<TensorView> same(size(), in);
  all_to_all_v(stream, tag, same, out);
}

void Communicator::gather_v(Stream& stream, const Tag& tag, const TensorView& in,
                            const std::function<TensorView(int rank)>& landing,
                            const std::function<void(int rank, const TensorView& rows)>& landed) {
  if (rank_ != 0) {
    if (in) send(stream, 0, tag, in);
    return;
  }
  for (int rank = 0; rank < size(); ++rank) {
    const TensorView rows = landing(rank);
    if (!rows || rows.count() == 0) continue;
    if (rank != 0)
      receive(stream, rank, tag, rows);
    else if (rows.data != in.data)
      copy(stream, in, rows);
    if (landed) landed(rank, rows);
  }
}

namespace {

// P - 1 hops around the ring, with the tag's number and those after it. Each chunk that arrives is
// sent on in the next hop. Before that it is added to the own one (rank r first sends chunk r, and
// chunk r + 1 is complete at the end), or it replaces the own one (rank r first sends chunk r + 1).
enum class Arrival : uint8_t { kAdd, kReplace };
void ring(Communicator& communicator, Stream& stream, Arena& arena, const Tag& tag,
          const TensorView& x, Arrival arrival) {
  const int ranks = communicator.size(), rank = communicator.rank();
  const int first = rank + (arrival == Arrival::kReplace);
  const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  const Arena::Scope scope(arena);
  const TensorView scratch = arena.alloc(DType::kF32, {partition(x.count(), ranks, 0).size()});
  const auto chunk = [&](int index) {
    const Range range = partition(x.count(), ranks, ((index % ranks) + ranks) % ranks);
    return x.slice(0, range.begin, range.size());
  };
  for (int hop = 0; hop + 1 < ranks; ++hop) {
    const TensorView out = chunk(first - hop), in = chunk(first - hop - 1);
    const TensorView landing = arrival == Arrival::kAdd ? scratch.slice(0, 0, in.count()) : in;
    const Message send{next, with_hop(tag, hop), out};
    const Message receive{previous, with_hop(tag, hop), landing};
    communicator.exchange(stream, {&send, 1}, {&receive, 1});
    if (arrival == Arrival::kAdd && in.count() > 0) add(stream, in, landing, in);
  }
}

}  // namespace

AllReduce chosen(AllReduce algorithm, int64_t count, int ranks) {
  if (algorithm != AllReduce::kBySize) return algorithm;
  constexpr double kHop = 256 << 10;  // bytes that a link carries in the time of a hop
  const double bytes = 4.0 * static_cast<double>(count), hops = ranks - 1;
  const double ring = 2 * hops * (kHop + bytes / ranks), star = 2 * kHop + 2 * hops * bytes;
  return star < ring ? AllReduce::kStar : AllReduce::kRing;
}

void Communicator::all_reduce(Stream& stream, Arena& arena, const Tag& tag, const TensorView& x,
                              AllReduce algorithm) {
  CHECK(x.dtype == DType::kF32 && x.contiguous(), x.to_string_shape());
  if (size() == 1) return;
  const TensorView all = flat(x);
  if (chosen(algorithm, x.count(), size()) == AllReduce::kRing) {
    ring(*this, stream, arena, tag, all, Arrival::kAdd);
    ring(*this, stream, arena, with_hop(tag, size()), all, Arrival::kReplace);
    return;
  }
  if (rank_ != 0) {
    send(stream, 0, tag, all);
    receive(stream, 0, with_hop(tag, 1), all);
    return;
  }
  const Arena::Scope scope(arena);
  const TensorView parts = arena.alloc(DType::kF32, {size() - 1, all.count()});
  std::vector<Message> messages;
  for (int rank = 1; rank < size(); ++rank)
    messages.push_back({rank, tag, parts.select(0, rank - 1)});
  exchange(stream, {}, messages);
  for (int rank = 1; rank < size(); ++rank) add(stream, all, parts.select(0, rank - 1), all);
  for (Message& message : messages) message = {message.peer, with_hop(tag, 1), all};
  exchange(stream, messages, {});
}

void Communicator::broadcast(Stream& stream, const Tag& tag, const TensorView& view, int root) {
  if (rank_ != root) {
    receive(stream, root, tag, view);
    return;
  }
  std::vector<Message> sends;
  for (int rank = 0; rank < size(); ++rank)
    if (rank != root) sends.push_back({rank, tag, view});
  exchange(stream, sends, {});
}

void Communicator::barrier(Stream& stream, const Tag& tag) {
  uint8_t token = 0, arrived = 0;
  const TensorView out(&token, DType::kU8, {1}), in(&arrived, DType::kU8, {1});
  // Dissemination (Hensgen et al. 1988): after hop k every rank has heard of 2^(k + 1) ranks.
  for (int hop = 0, distance = 1; distance < size(); ++hop, distance *= 2) {
    const Message send{(rank_ + distance) % size(), with_hop(tag, hop), out};
    const Message receive{(rank_ + size() - distance) % size(), with_hop(tag, hop), in};
    exchange(stream, {&send, 1}, {&receive, 1});
  }
}

}  // namespace weft
