// The Communicator's collectives. All consist of point-to-point messages, so that bytes are counted
// where they are sent.
#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/copy.h"
#include "kernels/pointwise.h"
#include "parallel/communicator.h"
#include "parallel/partition.h"

namespace weft {

namespace {

constexpr int64_t kHopBytes = 256 << 10;  // a link carries so many in the time of a hop

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
    const Message own{0, tag, in};
    if (in) exchange(stream, {&own, 1}, {});
    return;
  }
  for (int rank = 0; rank < size(); ++rank) {
    const TensorView rows = landing(rank);
    if (!rows || rows.count() == 0) continue;
    const Message part{rank, tag, rows};
    if (rank != 0)
      exchange(stream, {}, {&part, 1});
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
  const double bytes = 4.0 * static_cast<double>(count), hops = ranks - 1;
  const double ring = 2 * hops * (kHopBytes + bytes / ranks),
               star = 2.0 * kHopBytes + 2 * hops * bytes;
  return star < ring ? AllReduce::kStar : AllReduce::kRing;
}

void Communicator::all_reduce(Stream& stream, Arena& arena, const Tag& tag, const TensorView& x,
                              AllReduce algorithm) {
  CHECK(x.dtype == DType::kF32 && x.contiguous(), x.to_string_shape());
  if (size() == 1 || sum_by_library(stream, tag, x)) return;
  const TensorView all = flat(x);
  if (chosen(algorithm, x.count(), size()) == AllReduce::kRing) {
    ring(*this, stream, arena, tag, all, Arrival::kAdd);
    ring(*this, stream, arena, with_hop(tag, size()), all, Arrival::kReplace);
    return;
  }
  if (rank_ != 0) {
    const Message part{0, tag, all}, sum{0, with_hop(tag, 1), all};
    exchange(stream, {&part, 1}, {});
    exchange(stream, {}, {&sum, 1});
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

BroadcastWay broadcast_way(int64_t bytes, int ranks) {
  using enum BroadcastWay::Shape;
  if (ranks <= 2) return {kStar};
  constexpr double kPost = 16 << 10;  // bytes that a link carries while a message is posted
  const double size = kPost + static_cast<double>(bytes), before = ranks - 2;
  const double star = kHopBytes + (ranks - 1) * size;
  const double tree = std::bit_width(static_cast<unsigned>(ranks - 1)) * (kHopBytes + size);
  // Pieces of less than half a hop do not pay.
  const double most = static_cast<double>(bytes) / (kHopBytes / 2.0);
  const int pieces = static_cast<int>(std::min(std::sqrt(before * size / kHopBytes), most));
  const double chain = (before + pieces) * (kHopBytes + size / std::max(1, pieces));
  if (pieces > 1 && chain < std::min(star, tree)) return {kChain, pieces};
  return {tree < star ? kTree : kStar};
}

namespace {

// Each piece that arrives from the previous rank is sent on to the next one.
void broadcast_along_chain(Communicator& communicator, Stream& stream, const Tag& tag,
                           const TensorView& view, int pieces, int root) {
  const int ranks = communicator.size(), rank = communicator.rank();
  const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  const TensorView all = flat(view);
  const auto post = [&](int piece, bool receives) {
    const Range range = partition(all.count(), pieces, piece);
    const Message one{receives ? previous : next, with_hop(tag, piece),
                      all.slice(0, range.begin, range.size())};
    const std::span<const Message> message(&one, 1), none;
    return communicator.post(stream, receives ? none : message, receives ? message : none);
  };
  std::vector<Communicator::Pending> receives, sends;
  for (int piece = 0; piece < pieces && rank != root; ++piece)
    receives.push_back(post(piece, true));
  for (int piece = 0; piece < pieces; ++piece) {
    if (rank != root) communicator.wait(receives[piece]);
    if (next != root) sends.push_back(post(piece, false));
  }
  for (Communicator::Pending& send : sends) communicator.wait(send);
}

}  // namespace

void Communicator::broadcast(Stream& stream, const Tag& tag, const TensorView& view, int root) {
  const auto [shape, pieces] = broadcast_way(static_cast<int64_t>(view.bytes()), size());
  if (shape == BroadcastWay::Shape::kChain)
    return broadcast_along_chain(*this, stream, tag, view, pieces, root);
  const bool star = shape == BroadcastWay::Shape::kStar;
  const auto rank_at = [&](int place) { return (place + root) % size(); };
  const int place = (rank_ + size() - root) % size();
  // In step j of the tree each of the first 2^j places sends to the one that is 2^j further.
  const int step = std::bit_width(static_cast<unsigned>(place));
  const Message arrival{rank_at(star || place == 0 ? 0 : place - (1 << (step - 1))), tag, view};
  if (place > 0) exchange(stream, {}, {&arrival, 1});
  std::vector<Message> sends;
  for (int further = star ? 1 : 1 << step; place + further < size();
       further = star ? further + 1 : 2 * further)
    if (!star || place == 0) sends.push_back({rank_at(place + further), tag, view});
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
