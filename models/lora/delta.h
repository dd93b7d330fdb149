#pragma once
// LoraDelta: what the factors of a module of a LoRA file add to a matrix. LoRA: B A. LoKr and LoHa
// (Yeh et al. 2023, LyCORIS): the Kronecker product of two matrices, and the product of two
// low-rank matrices value by value.
#include <cstdint>
#include <memory>
#include <string>

#include "models/lora/lora_file.h"
#include "parallel/partition.h"

namespace weft {

class LoraDelta {
 public:
  virtual ~LoraDelta() = default;
  // Adds `factor` times the values [begin, end), counted over the rows, to `out`. Every value is
  // the same whatever the range is.
  virtual void add(Range values, float factor, float* out) const = 0;
};

// A delta as the header of its file describes it.
struct DeltaForm {
  LoraMethod method = LoraMethod::kNone;
  int64_t rows = 0, columns = 0;
  int64_t rank = 0;    // by which alpha is divided; 0: alpha does not count
  std::string said{};  // the factors with their extents, for messages
};

// Error(kModel) names a factor that is missing, of another method than the others, or of extents
// that do not fit theirs.
DeltaForm delta_form(const LoraFile& lora, const LoraModule& module);
std::shared_ptr<const LoraDelta> read_delta(const LoraFile& lora, const LoraModule& module);

}  // namespace weft
