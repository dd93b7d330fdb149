#pragma once
// The settings of the clip whose files fail.
#include "io/media/video.h"

namespace weft::test {

// 32x16, on one thread.
inline VideoSettings small_clip() {
  VideoSettings settings;
  settings.width = 32;
  settings.height = 16;
  settings.threads = 1;
  settings.deterministic = true;
  return settings;
}

}  // namespace weft::test
