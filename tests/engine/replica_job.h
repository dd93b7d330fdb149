#pragma once
// Runs a small generation on several ranks, and computes the bytes of every kind that each of them
// must send, from the methods' formulas.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "io/text/text_clean.h"
#include "io/text/tokenizer.h"
#include "models/umt5/encoder.h"
#include "models/wan/transformer.h"
#include "models/wan/vae.h"
#include "parallel/methods/bands.h"
#include "parallel/methods/ring.h"
#include "parallel/methods/tensor_parallel.h"
#include "parallel/methods/token_ring.h"
#include "parallel/methods/ulysses.h"
#include "parallel/transport/local.h"
#include "tests/engine/small_job.h"
#include "tests/parallel/byte_formulas.h"

namespace weft::test {

struct VideoTap final : PipelineTap {
  std::vector<float> video;
  void tap(const char* name, const TensorView& value) override {
    if (std::string(name) == "video")
      video.assign(value.as<float>(), value.as<float>() + value.count());
  }
};

// Runs the job as one rank of a replica. Returns the video on the root.
inline std::vector<float> run_rank(RankPlacement placement, const GeneratorOptions& options) {
  Generator generator(kModel, options, std::move(placement));
  VideoTap tap;
  RunOptions run;
  run.tap = &tap;
  generator.run(job(), nullptr, run);
  return std::move(tap.video);
}
inline std::vector<float> run_rank(RankPlacement placement, DType dtype) {
  return run_rank(std::move(placement), options_of(dtype));
}

// The same with threads of this process: the root's video and every rank's counters.
struct Outcome {
  std::vector<float> video;
  std::vector<CommCounters> counters;
};
inline Outcome run_threads(const Layout& layout,
                           const std::function<GeneratorOptions(int rank)>& options_of_rank,
                           const LocalOptions& options = {}) {
  Outcome outcome;
  outcome.counters.resize(layout.ranks());
  run_ranks(
      layout.ranks(),
      [&](Communicator& world) {
        std::vector<float> video =
            run_rank(RankPlacement::of(world, layout), options_of_rank(world.rank()));
        if (world.rank() == 0) outcome.video = std::move(video);
        outcome.counters[world.rank()] = world.counters();
      },
      options);
  return outcome;
}
inline Outcome run_threads(const Layout& layout, DType dtype, const LocalOptions& options = {}) {
  return run_threads(
      layout, [&](int) { return options_of(dtype); }, options);
}

// The bytes that a rank sends of each kind in the whole job, from the methods' formulas.
class Formula {
 public:
  Formula(const Generator& generator, const Layout& layout, int rank, DType dtype)
      : placement_(layout, rank),
        mesh_(layout),
        wan_(WanConfig::from_json_file(kModel + "/transformer/config.json")),
        text_(Umt5Config::from_json_file(kModel + "/text_encoder/config.json")),
        vae_(WanVaeConfig::from_json_file(kModel + "/vae/config.json")),
        dtype_(dtype),
        element_(static_cast<int64_t>(size_of(dtype))),
        tokens_(generator.facts(generator.resolve(job())).sequence().tokens) {
    const auto tokenizer = SentencePieceTokenizer::load(kModel + "/tokenizer/spiece.model");
    const int longest = static_cast<int>(generator.limits().text_length);
    for (const std::string& prompt : {job().prompt, *job().negative_prompt}) {
      const auto ids = tokenizer.encode(clean_prompt(prompt), longest);
      ids_.push_back(static_cast<int64_t>(ids.size()));
      rows_.push_back(ids_.back() + (ids_.back() < longest ? 1 : 0));
    }
    sequence();
    tensor();
    text();
    stages();
    decode();
  }

  int64_t operator[](Payload kind) const {
    const auto found = bytes_.find(kind);
    return found == bytes_.end() ? 0 : found->second;
  }

 private:
  int rank() const { return placement_.rank(); }
  int branches() const { return mesh_.layout()[Axis::kCfg] == 2 ? 1 : 2; }
  int64_t layers() const {
    const BlockRange blocks = placement_.blocks(wan_.layers);
    return blocks.end - blocks.begin;
  }
  int64_t forwards() const { return int64_t{job().steps} * branches(); }
  Range range_of(int rank) const { return placement_.tokens_of(rank, tokens_).ranges[0]; }

  AttendShape shape(int64_t heads) const {
    return {.heads = heads, .kv_heads = heads, .head_dim = wan_.head_dim, .dtype = dtype_};
  }

  void sequence() {
    const Layout& layout = mesh_.layout();
    const int64_t heads =
        partition(wan_.heads, layout[Axis::kTensor], mesh_.at(Axis::kTensor, rank())).size();
    const std::vector<int> row = mesh_.along({Axis::kUlysses}, rank());
    std::vector<Range> own;
    for (int member : row) own.push_back(range_of(member));
    const int place = mesh_.at(Axis::kUlysses, rank());
    if (row.size() > 1) {
      const int64_t all = ulysses_sent_bytes(own, place, shape(heads));
      // On the way back each rank sends its own heads of the others' tokens.
      const int64_t mine = partition(heads, layout[Axis::kUlysses], place).size();
      int64_t others = 0;
      for (const Range& range : own) others += range.size();
      const int64_t out = mine * (others - own[place].size()) * wan_.head_dim * element_;
      bytes_[Payload::kHeadsIn] = forwards() * layers() * (all - out);
      bytes_[Payload::kHeadsOut] = forwards() * layers() * out;
    }
    const int64_t local = partition(heads, layout[Axis::kUlysses], place).size();
    for (Axis axis : {Axis::kRing, Axis::kTokenRing}) {
      if (layout[axis] == 1) continue;
      std::vector<Range> blocks;
      for (int member : mesh_.along({axis}, rank())) {
        const std::vector<int> members = mesh_.along({Axis::kUlysses}, member);
        blocks.push_back({range_of(members.front()).begin, range_of(members.back()).end});
      }
      const int at = mesh_.at(axis, rank());
      if (axis == Axis::kRing) {
        bytes_[Payload::kKeyValue] +=
            forwards() * layers() * ring_sent_bytes(blocks, at, shape(local));
      } else {
        const int64_t all = token_ring_sent_bytes(blocks, at, shape(local));
        int64_t others = 0;
        for (const Range& range : blocks) others += range.size();
        const int64_t states = (others - blocks[at].size()) * local * (wan_.head_dim + 1) * 4;
        bytes_[Payload::kState] = forwards() * layers() * states;
        bytes_[Payload::kQuery] = forwards() * layers() * (all - states);
      }
    }
  }

  void tensor() {
    const int parts = mesh_.layout()[Axis::kTensor], part = mesh_.at(Axis::kTensor, rank());
    const auto sum = [&](int64_t count) {
      return tensor_sent_bytes(count, parts, part, AllReduce::kRing);
    };
    const int64_t n = range_of(rank()).size();
    bytes_[Payload::kPartial] += forwards() * layers() * 3 * sum(n * wan_.width());
    bytes_[Payload::kStatistic] += forwards() * layers() * 3 * sum(n);
    for (int branch = 0; branch < 2; ++branch)  // the prompt's keys are computed once per prompt
      if (placement_.computes(branch)) bytes_[Payload::kStatistic] += layers() * sum(rows_[branch]);
  }

  void text() {
    const int parts = placement_.text_parts(text_.traits());
    for (int64_t ids : ids_) {
      if (placement_.encodes_text(text_.traits()))
        bytes_[Payload::kPartial] +=
            text_.num_layers * 2 *
            tensor_sent_bytes(ids * text_.d_model, parts, rank(), AllReduce::kBySize);
      const int readers = mesh_.layout().ranks() - parts + 1;  // the root and those after the parts
      if (rank() == 0 || rank() >= parts)
        bytes_[Payload::kText] +=
            broadcast_sent(ids * text_.d_model * 4, readers, std::max(0, rank() - parts + 1), 0)
                .bytes;
    }
  }

  void stages() {
    const Layout& layout = mesh_.layout();
    const int stages = layout[Axis::kLayers];
    const bool last = mesh_.at(Axis::kLayers, rank()) == stages - 1;
    const int64_t n = range_of(rank()).size();
    const int64_t latent = n * wan_.out_channels * 4 * 4;  // patches of 2 x 2
    if (!last) {
      bytes_[Payload::kHidden] = forwards() * n * wan_.width() * element_;
      return;
    }
    if (layout[Axis::kCfg] == 2) bytes_[Payload::kVelocity] = job().steps * latent;
    if (stages > 1) bytes_[Payload::kLatent] += (job().steps - 1) * latent;
    bytes_[Payload::kLatent] += (stages * layout.sequence() - 1) * latent;
  }

  void decode() {
    const int64_t rows = job().height / vae_.spatial_factor(),
                  width = job().width / vae_.spatial_factor();
    const int64_t own = placement_.band(rows).size();
    if (own == 0) return;
    const int64_t frames = vae_.traits().latent_frames(job().frames);
    const int64_t channels = vae_.decoder_base_dim * vae_.dim_mult.back();
    if (placement_.bands(rows) > 1)
      bytes_[Payload::kKeyValue] +=
          frames * band_attention_bytes(own, width, channels, placement_.bands(rows), 4);
    if (rank() > 0)  // f32: run_rank() has a tap
      bytes_[Payload::kFrames] =
          job().frames * 3 * own * vae_.spatial_factor() * job().width * int64_t{4};
  }

  RankPlacement placement_;
  Mesh mesh_;
  WanConfig wan_;
  Umt5Config text_;
  WanVaeConfig vae_;
  DType dtype_;
  int64_t element_, tokens_;
  std::vector<int64_t> ids_, rows_;
  std::map<Payload, int64_t> bytes_;
};

// Returns one line for each rank and kind whose bytes differ from the formula. tests/models checks
// the halo bytes (kHalo) per convolution; here only their sums are compared: sent equals received.
inline std::vector<std::string> byte_faults(const Layout& layout, DType dtype,
                                            const std::vector<CommCounters>& counters) {
  const Generator generator(kModel, options_of(dtype));
  std::vector<std::string> faults;
  const int halo = static_cast<int>(Payload::kHalo);
  int64_t halo_sent = 0, halo_received = 0;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const Formula formula(generator, layout, rank, dtype);
    halo_sent += counters[rank].sent[halo].bytes;
    halo_received += counters[rank].received[halo].bytes;
    for (int kind = 0; kind < static_cast<int>(Payload::kCount); ++kind) {
      const auto traffic = static_cast<Payload>(kind);
      const int64_t sent = counters[rank].sent[kind].bytes;
      if (kind != halo && sent != formula[traffic])
        faults.push_back(to_string(layout) + " " + std::string(to_string(dtype)) + ": rank " +
                         std::to_string(rank) + " sent " + std::to_string(sent) + " bytes of " +
                         std::string(to_string(traffic)) + ", by the formula " +
                         std::to_string(formula[traffic]));
    }
  }
  if (halo_sent != halo_received ||
      (halo_sent == 0) != (layout.vae_ranks == 1 || layout.decode_rank >= 0))
    faults.push_back(to_string(layout) + ": halo bytes sent " + std::to_string(halo_sent) +
                     ", received " + std::to_string(halo_received));
  return faults;
}

}  // namespace weft::test
