#pragma once
// Previews of a job between its steps: small pictures of what the latent will show.
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "engine/preview/preview_fit.h"
#include "io/media/frame.h"
#include "models/registry.h"

namespace weft {

// One picture per latent frame, about as large as a postage stamp.
struct Preview {
  int step = 0, total = 0;  // denoise steps done
  double fps = 0;           // of the pictures
  std::vector<Frame> frames{};
};

// The fit for previews of a model. Error(kUsage) that names the script which makes one where the
// VAE has none.
PreviewFit preview_fit_of(const ModelDirectory& directory);

// The pictures of the colours [3, F, h, w] f32 in [-1, 1] that a PreviewFit gives, enlarged by a
// whole factor to sides of at most 320 pixels (never above the video's, whose sides are `scale`
// times the latent's).
std::vector<Frame> preview_pictures(const TensorView& colours, int64_t scale);

// The preview after `done` of `total` steps of a video with so many frames per second.
Preview preview_of(const TensorView& colours, const VaeTraits& vae, int done, int total,
                   double fps);

// The PNG of the middle picture.
std::string preview_png(const Preview& preview);

// Decides which previews are made, so that they take at most a share of the time: the first is, and
// later ones where what all of them took stays below it.
class PreviewBudget {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr double kShare = 0.01;

  explicit PreviewBudget(double share = kShare, Clock::time_point begun = Clock::now())
      : share_(share), begun_(begun) {}

  // Calls `make` if there is time for it, or `wanted` is true.
  template <class Make>
  void spend(bool wanted, Make&& make) {
    const Clock::time_point begin = Clock::now();
    if (made_ && !wanted &&
        spent_ + last_ > share_ * std::chrono::duration<double>(begin - begun_).count())
      return;
    make();
    made_ = true;
    last_ = std::chrono::duration<double>(Clock::now() - begin).count();
    spent_ += last_;
  }

 private:
  const double share_;
  const Clock::time_point begun_;
  bool made_ = false;
  double spent_ = 0, last_ = 0;  // seconds
};

}  // namespace weft
