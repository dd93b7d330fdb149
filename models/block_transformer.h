#pragma once
// BlockTransformer: a transformer whose blocks are alike, so that some of them can be offloaded.
// One with several kinds of blocks has a BlockList for each.
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/meter.h"
#include "kernels/transfer.h"
#include "models/blocks.h"
#include "models/device_window.h"
#include "models/layer_window.h"
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

// A transformer whose blocks are all alike.
template <class Block>
class BlockTransformer : public Transformer {
 public:
  const TransformerTraits& traits() const final { return traits_; }
  const TransformerLoad& loaded() const final { return load_; }
  size_t streamed_bytes() const final { return blocks_.streamed_bytes(); }
  WeightOffload streamed() const final { return blocks_.streamed(); }

 protected:
  // Sets traits_ and load_, with all ranges written out.
  void set_load(const TransformerTraits& traits, const TransformerLoad& load) {
    traits_ = traits;
    load_ = load.of(traits);
  }
  // Loads load_.blocks, as BlockList::load does.
  void load_blocks(Stream& stream, typename BlockList<Block>::LoadBlock load_block) {
    blocks_.load(stream, {load_.blocks.begin, load_.blocks.end}, load_.resident,
                 std::move(load_block));
  }
  size_t blocks_bytes() const { return blocks_.bytes(); }
  template <class F>
  void with_block(Stream& stream, int index, F&& f) const {
    blocks_.use(stream, index, f);
  }

  TransformerTraits traits_;
  TransformerLoad load_;

 private:
  BlockList<Block> blocks_;  // load_.blocks
};

}  // namespace weft
