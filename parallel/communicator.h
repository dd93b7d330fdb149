#pragma once
// Communicator: the messages of a group of ranks. Tags are checked, bytes are counted where they
// are sent, and the last operations are kept for the report of a failure. One Communicator belongs
// to one rank and one thread.
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/arena.h"
#include "kernels/stream.h"
#include "kernels/tensor.h"
#include "parallel/tag.h"
#include "parallel/transport/staging.h"
#include "parallel/transport/transport.h"

namespace weft {

// One end of a message; `view` is contiguous, of the host or of the stream's device as the other
// end's is, and stays untouched until the wait. Empty views are messages of 0 bytes: neither sent
// nor counted.
struct Message {
  int peer = 0;  // rank in this group
  Tag tag{};
  TensorView view{};
};

struct CommCounters {
  struct Count {
    int64_t messages = 0, bytes = 0;  // payload
    bool operator==(const Count&) const = default;
  };
  std::array<Count, static_cast<size_t>(Payload::kCount)> sent{}, received{};
  int64_t waits = 0, waited_ns = 0;
  int64_t enqueued = 0;  // messages that a device moves, counted among `sent` and `received`
  int64_t blocked = 0;   // how often the host waited: for messages, or for what it sends
  void add(const CommCounters& other, int64_t times);
  CommCounters since(const CommCounters& before) const;
  Count total_sent() const { return total(sent); }
  Count total_received() const { return total(received); }
  static Count total(std::span<const Count> counts);
};

class FlightRecorder;

enum class AllReduce : uint8_t {
  kRing,    // 2 (P - 1) hops of 1/P: e (2 n - c_{r+1} - c_{r+2}) bytes sent by rank r
  kStar,    // 2 hops: leaves send n e, the root (rank 0) adds in rank order and sends (P - 1) n e
  kBySize,  // whichever of the two is faster for n values, by chosen()
};
// Resolves kBySize. With a the time of a hop and b the bytes per second of a link, the ring takes
// 2 (P - 1) (a + n e / (P b)), the star 2 a + 2 (P - 1) n e / b; a b is taken for 256 KiB, some
// 30 us at 9 GB/s (TPI-LLM, arXiv 2410.00531, section 3.3).
AllReduce chosen(AllReduce algorithm, int64_t count, int ranks);

// A broadcast of n bytes reaches P ranks in the fastest of three ways. With a and b as above and p
// for the time in which a rank posts a message (16 KiB of the link's):
struct BroadcastWay {
  enum class Shape : uint8_t {
    kStar,   // the root sends to all: a + (P - 1) (p + n / b)
    kTree,   // binomial, of ceil(log2 P) steps of a + p + n / b
    kChain,  // from rank to rank in k pieces: (P - 2 + k) (a + (p + n / b) / k)
  };
  Shape shape = Shape::kStar;
  int pieces = 1;  // k, of a chain
};
BroadcastWay broadcast_way(int64_t bytes, int ranks);

class Communicator {
 public:
  // The whole world of `transport`.
  explicit Communicator(std::shared_ptr<Transport> transport);
  Communicator(Communicator&&) noexcept = default;
  Communicator& operator=(Communicator&&) noexcept = default;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int world_rank(int rank) const { return ranks_[rank]; }

  // A group of world ranks, in the order given, this rank among them; no message is sent. Every
  // member makes it with the same ranks and the same id (1 ... 255, unique per axis of the mesh).
  // Counters and recorder are shared with the world's.
  Communicator group(std::vector<int> world_ranks, int id) const;
  // Lets devices move the group's exchanges, or this rank's messages to and from these ranks, where
  // the transport can (Transport::open_group, open_pairs): all members of the group call the first,
  // both ends of the messages the second, before they post.
  void open_exchanges();
  void open_messages(std::span<const int> to, std::span<const int> from);
  // Takes back this rank's messages that devices move and that nobody has waited for; waits for the
  // others. The other ranks of its messages call it, too (Transport::close_pairs).
  void close_messages(Stream& stream);
  // Gives all ranks of the world the same job, and forgets what its groups have opened: they are
  // about to be made anew. All ranks call it where nothing is under way.
  void begin_anew(Stream& stream);
  // The same ranks for a second thread of this one (Transport::beside). Its counters are its own.
  Communicator beside() const;

  // Begins a job: every rank of the groups that this rank has messages in calls it, equally often.
  // Messages of earlier jobs are discarded and counted (Transport::begin_job), and memory that they
  // held is freed. end_job() frees the memory that the job's messages leave for later ones.
  void begin_job();
  void end_job() noexcept;
  // Lets all ranks of the world go on with the number of jobs of the one that has begun the most,
  // so that ranks of different groups may share one from now on. All ranks of the world call it
  // where nothing is under way, and none returns before all have.
  void align_jobs(Stream& stream);
  int64_t strays() const { return transport_->strays(); }
  // Bytes of memory that messages hold beside their views: staging buffers that wait for their next
  // use, and payloads that came before their receive.
  int64_t held_bytes() const;

  class Pending {
   public:
    Pending() = default;
    Pending(Pending&&) = default;
    Pending& operator=(Pending&&) = default;
    bool empty() const { return parts_.empty(); }
    // Takes the first message that is left out of it: receives come before sends, both in the order
    // of the post without those of 0 bytes. It is waited for on its own.
    Pending take_first();

   private:
    friend class Communicator;
    struct Part {
      std::optional<Staging::Buffer> staged{};  // used for device memory; outlives the transfer
      std::shared_ptr<Transfer> transfer{};     // one for all messages that are enqueued together
      bool enqueued = false;
      TagBits tag{};
      int64_t bytes = 0;
      int peer = 0;  // world rank
      bool receive = false;
      uint64_t number = 0;  // in the flight recorder
      TensorView view{};
    };
    std::vector<Part> parts_;
    std::optional<Stream> stream_;  // copies to and from staged buffers
  };

  // Posts receives and sends, in one of the orders that their ranks agree on. It blocks only where
  // device memory is sent by a transport that takes host memory, until the stream has written it.
  // wait() ends all of them; the stream's later work sees what arrived. A header other than the
  // expected one is an Error(kComm) with both tags.
  Pending post(Stream& stream, std::span<const Message> sends, std::span<const Message> receives,
               PostOrder order = PostOrder::kGroup);
  void wait(Pending& pending);
  void exchange(Stream& stream, std::span<const Message> sends, std::span<const Message> receives);
  // Single messages, in the order of their pair of ranks.
  void send(Stream& stream, int peer, const Tag& tag, const TensorView& view);
  void receive(Stream& stream, int peer, const Tag& tag, const TensorView& view);
  // Sleeps until a message has come that receive() can take (Transport::await_message).
  void await(int peer, const Tag& tag) const;

  // in[p] goes to rank p, out[p] comes from it; the own part is copied. Views contiguous.
  void all_to_all_v(Stream& stream, const Tag& tag, std::span<const TensorView> in,
                    std::span<const TensorView> out);
  // Every rank's `in` arrives in out[its rank]; out[own] may be `in`.
  void all_gather_v(Stream& stream, const Tag& tag, const TensorView& in,
                    std::span<const TensorView> out);
  // The rows of all ranks arrive on rank 0, one rank's after another's. There `landing` returns the
  // place of a rank's rows (an empty view where it sends none), and `landed` is called when they
  // are in it. The own part is copied, unless its place is `in`. Views contiguous.
  void gather_v(Stream& stream, const Tag& tag, const TensorView& in,
                const std::function<TensorView(int rank)>& landing,
                const std::function<void(int rank, const TensorView& rows)>& landed = {});
  // x (f32, any shape, contiguous) = sum over ranks, the same bits on all of them, in place.
  // Scratch from `arena`. Uses hops 0 ... 2 P - 1 after the tag's. Where the transport adds by a
  // library (Transport::enqueue_sum), the values count as one message, sent and received.
  void all_reduce(Stream& stream, Arena& arena, const Tag& tag, const TensorView& x,
                  AllReduce algorithm);
  // The root's view arrives in all ranks' views, contiguous and of one size, as broadcast_way()
  // says. The pieces of a chain use hops from the tag's on.
  void broadcast(Stream& stream, const Tag& tag, const TensorView& view, int root);
  void barrier(Stream& stream, const Tag& tag);

  void abort(std::string_view why) noexcept;
  // Error(kComm) where the job has ended. Devices tell their streams' host nothing of it: results
  // that they computed from messages are good only where this returns after the stream's sync().
  void require_job() const;
  const CommCounters& counters() const;
  void reset_counters();
  // Counts messages that a recorded graph moves, so many times more.
  void count_again(const CommCounters& once, int times);
  const FlightRecorder& recorder() const;
  Transport& transport() const { return *transport_; }

 private:
  struct Shared;  // counters, recorder and staging, one per rank
  Communicator(std::shared_ptr<Transport> transport, std::shared_ptr<Shared> shared,
               std::vector<int> ranks, int rank, int group);
  Pending::Part make_part(const Message& message, bool receive);
  bool sum_by_library(Stream& stream, const Tag& tag, const TensorView& x);
  void enqueue(Stream& stream, PostOrder order, std::span<Pending::Part*> parts);
  void post_through_transport(Stream& stream, Pending& pending);
  TagBits tag_bits(const Tag& tag) const;  // group 0 is the world, whose messages have no job

  std::shared_ptr<Transport> transport_;
  std::shared_ptr<Shared> shared_;
  std::vector<int> ranks_;  // world ranks
  int rank_ = 0, group_ = 0;
};

}  // namespace weft
