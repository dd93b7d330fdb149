#pragma once
// KnownModel: a published model that the sizes of a transformer tell, and its licence.
#include <cstdint>
#include <span>

#include "models/transformer.h"

namespace weft {

struct KnownModel {
  const char* name;
  // The transformer's (TransformerTraits). Fine-tuned models have the same.
  int64_t width;
  int blocks;
  bool reads_guidance;
  const char* licence;           // of the weights, as their authors name it
  const char* restriction = "";  // of commercial use; "": none

  bool is_free() const { return *restriction == '\0'; }
};

// Returns the model of these sizes; null where no published one has them.
const KnownModel* known_model(std::span<const KnownModel> known, const TransformerTraits& traits);

}  // namespace weft
