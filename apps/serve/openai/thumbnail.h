#pragma once
// Pictures of results, which are read from the files.
#include <cstdint>
#include <string>

#include "apps/serve/http/http_message.h"
#include "apps/serve/http/work_queue.h"

namespace weft {

struct ThumbnailSource {
  std::string path{};
  int64_t frames = 0;  // of the clip; its picture is the one in the middle, or an earlier one
  std::string tag{};   // of the clip
};

// Answers with a PNG, which `tasks` makes.
HttpResponse thumbnail_response(WorkQueue& tasks, const HttpRequest& request,
                                const ThumbnailSource& source);

}  // namespace weft
