#pragma once
// StoredTensors: what a TensorFile that derives its values from another file knows of its tensors
// besides these values.
#include <optional>
#include <string>
#include <vector>

#include "kernels/stored_blocks.h"
#include "kernels/tensor.h"

namespace weft {

class TensorFile;

class StoredTensors {
 public:
  virtual ~StoredTensors() = default;

  // The type of the blocks in which a tensor is stored; nullopt where they are not of one type, or
  // of none that is known here.
  virtual std::optional<BlockType> blocks(const std::string& name) const = 0;
  // Reads whole blocks of such a tensor to `out` [bytes] kU8, from block `first` on, counted over
  // all of its dimensions.
  virtual void read_blocks(const std::string& name, int64_t first, const TensorView& out) const = 0;
  // The scales by which the values of such a tensor are multiplied: one, one per index of the first
  // dimension, or none.
  virtual std::vector<float> scales(const std::string& /*name*/) const { return {}; }

  // The rank of the product up * down that is added to a matrix, and is neither in its blocks nor
  // in its values in base(); 0: none.
  virtual int64_t product_rank(const std::string& /*name*/) const { return 0; }
  // Reads the rows of up [.., rank] f32 from `row` on, and the columns of down [rank, ..] f32 from
  // `column` on.
  virtual void read_product(const std::string& /*name*/, int64_t /*row*/, const TensorView& /*up*/,
                            int64_t /*column*/, const TensorView& /*down*/) const {}
  // The file to which the products are added; null: there are none.
  virtual const TensorFile* base() const { return nullptr; }
};

}  // namespace weft
