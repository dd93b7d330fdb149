#pragma once
// Context: everything a model's forward may use, as one value that the engine makes per pass.
#include "kernels/arena.h"
#include "kernels/stream.h"
#include "parallel/halo.h"
#include "parallel/partition.h"
#include "parallel/pass.h"
#include "parallel/reducer.h"
#include "parallel/token_mixer.h"

namespace weft {

// Sees named intermediate results. `weft verify`, the search for non-finite values and step caches
// are observers. `name` is as in the golden cases ("patch_embedding", "blocks.3", "output").
struct Observer {
  virtual ~Observer() = default;
  virtual void see(Context& context, const char* name, int index, const TensorView& value) = 0;
  // False for an observer that takes the rows in any order: none are copied to show them as the
  // golden cases have them.
  virtual bool in_order() const { return true; }
};

struct Context {
  Stream& stream;
  Arena& arena;
  TokenMixer& mixer;
  Reducer& reducer;
  Halo& halo;
  Pass pass;
  TokenRanges tokens;
  Observer* observer = nullptr;

  // An index >= 0 is appended to the name.
  void observe(const char* name, const TensorView& value, int index = -1) {
    if (observer) observer->see(*this, name, index, value);
  }
};

// Owns the one-rank answer of every seam.
struct SerialSeams {
  FullMixer mixer;
  IdentityReducer reducer;
  IdentityHalo halo;
  Context context(Stream& stream, Arena& arena, Pass pass, TokenRanges tokens,
                  Observer* observer = nullptr) {
    return {stream, arena, mixer, reducer, halo, pass, std::move(tokens), observer};
  }
};

}  // namespace weft
