#pragma once
// BlockTransformer: a transformer whose blocks are alike, so that some of them can be offloaded.
// One with several kinds of blocks has a BlockList for each. ConfiguredModel: its TransformerModel.
#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/meter.h"
#include "kernels/transfer.h"
#include "models/blocks.h"
#include "models/offload/device_window.h"
#include "models/offload/layer_window.h"
#include "models/transformer.h"

namespace weft {

// Blocks that are alike, some of which may be offloaded: on a device to pinned host memory
// (DeviceWindow), on a CPU to the file (LayerWindow). Block::weights() lists the weights of a block
// as std::tie does.
template <class Block>
class BlockList {
 public:
  using LoadBlock = std::function<Block(Stream& stream, int index)>;

  // Loads blocks [begin, end), of which `resident` are on the stream's device at once; 0: all.
  // `load_block` packs the block of an index of the model on a stream. On a CPU it is kept where
  // blocks are offloaded, and another thread calls it.
  void load(Stream& stream, const Range& range, int resident, LoadBlock load_block) {
    begin_ = static_cast<int>(range.begin);
    const auto count = static_cast<int>(range.size());
    if (resident == 0 || resident >= count) {
      for (int i = 0; i < count; ++i) blocks_.push_back(load_block(stream, begin_ + i));
    } else if (host_stream(stream).device() == stream.device()) {
      // One thread reads, so that the others compute: a second team of threads would take turns
      // with the first at every small op.
      const Stream reader = is_dry_run(stream)
                                ? stream
                                : stream_on(stream.device(), 1, Determinism::kFast, &stream.ops());
      file_ = std::make_unique<LayerWindow<Block>>(
          count, resident, [&](int i) { return load_block(stream, begin_ + i); },
          [load_block, own = reader, begin = begin_](int i) mutable {
            return load_block(own, begin + i);
          },
          [](const Block& block) { return bytes_of(block.weights()); },
          is_dry_run(stream) ? ReadPolicy::kOnUse : ReadPolicy::kAhead);
    } else {
      window_ = std::make_unique<DeviceWindow<Block>>(
          stream_on(stream.device(), stream.threads()), count, resident,
          [&](Stream& copies, int i) { return load_block(copies, begin_ + i); },
          [](const Block& block) { return pieces_of(block.weights()); });
    }
  }
  // The bytes of the blocks on the stream's device.
  size_t bytes() const {
    size_t total = 0;
    for (const Block& block : blocks_) total += bytes_of(block.weights());
    if (file_) file_->for_resident([&](const Block& block) { total += bytes_of(block.weights()); });
    if (window_)
      window_->for_resident([&](const Block& block, bool is_slot) {
        if (!is_slot) total += bytes_of(block.weights());
        if (is_slot)
          for (const TensorView& piece : pieces_of(block.weights())) total += piece.bytes();
      });
    return total;
  }
  size_t streamed_bytes() const {
    return file_ ? file_->bytes_per_pass() : window_ ? window_->bytes_per_pass() : 0;
  }
  WeightOffload streamed() const {
    if (!file_) return window_ ? window_->streamed() : WeightOffload{};
    const WindowCounts counts = file_->settled_counts();
    return {counts.bytes, counts.reading_s, counts.waited_s};
  }
  // Runs f(block) with block `index` of the model on the stream's device.
  template <class F>
  void use(Stream& stream, int index, F&& f) const {
    const int at = index - begin_;
    if (file_)
      file_->use(at, f);
    else if (window_)
      window_->use(stream, at, f);
    else
      f(blocks_[at]);
  }

 private:
  int begin_ = 0;
  std::vector<Block> blocks_;                    // if all are resident
  std::unique_ptr<LayerWindow<Block>> file_;     // if some are read from the file
  std::unique_ptr<DeviceWindow<Block>> window_;  // if some are copied from the host
};

// A transformer by its Config. Its blocks are of one kind or of several, each with a list.
template <class Config, class First, class... Others>
class BlockTransformer : public Transformer {
 public:
  const TransformerTraits& traits() const final { return traits_; }
  const TransformerLoad& loaded() const final { return load_; }
  size_t streamed_bytes() const final {
    return list<First>().streamed_bytes() + (size_t{0} + ... + list<Others>().streamed_bytes());
  }
  WeightOffload streamed() const final {
    WeightOffload total = list<First>().streamed();
    ((total += list<Others>().streamed()), ...);
    return total;
  }
  Rope rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start,
            const Conditioning& /*conditioning*/) const override {
    return config_.rope(grid, start);
  }

 protected:
  void set_load(const Config& config, const TransformerLoad& load) {
    config_ = config;
    traits_ = config.traits();
    load_ = load.of(traits_);
  }
  // Loads those of load_.blocks that are of a kind, as BlockList::load does. Each kind has its
  // share of the resident blocks, and at least as many as offloading needs.
  template <class Block = First>
  void load_blocks(Stream& stream, typename BlockList<Block>::LoadBlock load_block,
                   const Range& kind = {0, std::numeric_limits<int>::max()}) {
    const Range all{load_.blocks.begin, load_.blocks.end}, own = intersection(kind, all);
    const int64_t share =
        load_.resident == 0 || load_.resident >= all.size() || own.size() == 0
            ? 0
            : std::max<int64_t>(load_.resident * own.size() / all.size(), kWindowSlots);
    std::get<BlockList<Block>>(lists_).load(stream, own, static_cast<int>(share),
                                            std::move(load_block));
  }
  size_t blocks_bytes() const {
    return list<First>().bytes() + (size_t{0} + ... + list<Others>().bytes());
  }
  template <class Block = First, class F>
  void with_block(Stream& stream, int index, F&& f) const {
    list<Block>().use(stream, index, f);
  }

  Config config_;
  TransformerTraits traits_;
  TransformerLoad load_;

 private:
  template <class Block>
  const BlockList<Block>& list() const {
    return std::get<BlockList<Block>>(lists_);
  }

  std::tuple<BlockList<First>, BlockList<Others>...> lists_;
};

// The TransformerModel of such a transformer.
template <class Config, class Loaded>
class ConfiguredModel : public TransformerModel {
 public:
  explicit ConfiguredModel(const Config& config)
      : TransformerModel(config.traits()), config_(config) {}

  std::string description() const final { return to_string(config_); }
  std::unique_ptr<Transformer> load(Stream& stream, const TensorFile& file,
                                    const TransformerLoad& load) const final {
    return std::make_unique<Loaded>(Loaded::load(stream, file, config_, load));
  }

 protected:
  Config config_;
};

}  // namespace weft
