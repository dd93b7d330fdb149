#pragma once
// BlockTransformer: a transformer whose blocks are alike, so that some of them can be offloaded.
#include <functional>
#include <memory>
#include <vector>

#include "kernels/transfer.h"
#include "models/blocks.h"
#include "models/device_window.h"
#include "models/transformer.h"

namespace weft {

// Block::weights() lists the weights of a block as std::tie does.
template <class Block>
class BlockTransformer : public Transformer {
 public:
  const TransformerTraits& traits() const final { return traits_; }
  const TransformerLoad& loaded() const final { return load_; }
  size_t streamed_bytes() const final { return window_ ? window_->bytes_per_pass() : 0; }
  WeightOffload streamed() const final { return window_ ? window_->streamed() : WeightOffload{}; }

 protected:
  // Sets traits_ and load_, with all ranges written out.
  void set_load(const TransformerTraits& traits, const TransformerLoad& load) {
    traits_ = traits;
    load_ = load.of(traits);
  }
  // Loads load_.blocks. `load_block` packs the block of an index of the model on a stream.
  void load_blocks(Stream& stream, const std::function<Block(Stream& stream, int)>& load_block) {
    const auto [begin, end, total] = load_.blocks;
    if (load_.resident > 0 && load_.resident < end - begin)
      window_ = std::make_unique<DeviceWindow<Block>>(
          stream_on(stream.device(), stream.threads()), end - begin, load_.resident,
          [&, begin](Stream& copies, int i) { return load_block(copies, begin + i); },
          [](const Block& block) { return pieces_of(block.weights()); });
    else
      for (int i = begin; i < end; ++i) blocks_.push_back(load_block(stream, i));
  }
  // The bytes of the blocks on the stream's device.
  size_t blocks_bytes() const {
    size_t total = 0;
    for (const Block& block : blocks_) total += bytes_of(block.weights());
    if (window_)
      window_->for_resident([&](const Block& block, bool is_slot) {
        if (!is_slot) total += bytes_of(block.weights());
        if (is_slot)
          for (const TensorView& piece : pieces_of(block.weights())) total += piece.bytes();
      });
    return total;
  }
  // Runs f(block) with block `index` of the model on the stream's device.
  template <class F>
  void with_block(Stream& stream, int index, F&& f) const {
    const int at = index - load_.blocks.begin;
    if (window_)
      window_->use(stream, at, f);
    else
      f(blocks_[at]);
  }

  TransformerTraits traits_;
  TransformerLoad load_;

 private:
  std::vector<Block> blocks_;                    // load_.blocks, if all are resident
  std::unique_ptr<DeviceWindow<Block>> window_;  // load_.blocks, if some are offloaded
};

}  // namespace weft
