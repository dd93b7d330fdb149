#pragma once
// GivenPicture: a picture that conditions a job, as a fact of the job and as pixels.
#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "io/media/frame.h"
#include "kernels/tensor.h"

namespace weft {

enum class PictureFit : uint8_t;  // io/picture/picture_fit.h

struct GivenPicture {
  std::string path{};             // of its file
  std::string sha256{};           // of its pixels (FrameHash); "" until the file has been read
  int64_t width = 0, height = 0;  // of the pixels
  // Pixels [3, H, W] f32 in [0, 1] in place of a file: of the clip's size, or a reference picture
  // of any size.
  std::shared_ptr<const Tensor> pixels{};

  bool given() const { return pixels || !path.empty(); }
  // Width and height; 0 where the file has not been read.
  std::array<int64_t, 2> size() const {
    return pixels ? std::array{pixels->view()[2], pixels->view()[1]} : std::array{width, height};
  }
};

// Reads the file. Error(kUsage) where its pixels are not those of the hash, if there is one; kMedia
// for a file that is no picture. `label` names the picture in messages.
Frame read_given(const GivenPicture& picture, const std::string& label);
// Reads the file and fills in hash and size.
void take_facts(GivenPicture& picture, const std::string& label);

}  // namespace weft
