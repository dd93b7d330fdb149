#include "engine/job/given_picture.h"

#include <filesystem>

#include "io/picture/picture_reader.h"
#include "io/sha256.h"

namespace weft {

namespace {

std::string hash_of_frame(const Frame& picture) {
  FrameHash hash;
  hash.add(picture);
  return hash.hex();
}

}  // namespace

Frame read_given(const GivenPicture& picture, const std::string& label) {
  Frame frame = read_picture(picture.path);
  if (const std::string hash = hash_of_frame(frame);
      !picture.sha256.empty() && hash != picture.sha256)
    throw Error(ErrorKind::kUsage, label + " is '" + picture.path +
                                       "', whose pixels have the SHA-256 " + hash.substr(0, 16) +
                                       "..., legal: the picture that the job began with (" +
                                       picture.sha256.substr(0, 16) + "...)");
  return frame;
}

void take_facts(GivenPicture& picture, const std::string& label) {
  if (picture.path.empty() || picture.pixels) return;
  picture.path = std::filesystem::absolute(picture.path).lexically_normal().string();
  const Frame frame = read_given(picture, label);
  picture.width = frame.width;
  picture.height = frame.height;
  picture.sha256 = hash_of_frame(frame);
}

}  // namespace weft
