#include "apps/serve/openai/thumbnail.h"

#include <algorithm>

#include "io/media/image.h"
#include "io/media/video.h"

namespace weft {
namespace {

constexpr int64_t kLastFrame = 40;  // that is read up to, as all before it are decoded, too

HttpResponse picture_of(const ThumbnailSource& source) {
  try {
    VideoReader reader(source.path);
    Frame frame, next;
    for (int64_t left = std::min(source.frames / 2, kLastFrame); left >= 0 && reader.next(next);
         --left)
      std::swap(frame, next);
    HttpResponse response{.content_type = "image/png"};
    response.headers = {{"ETag", source.tag},
                        {"Cache-Control", "private, no-cache"},
                        {"Content-Disposition", "attachment; filename=\"thumbnail.png\""}};
    response.body = encode_png(frame, {});
    return response;
  } catch (const std::exception&) {
    return error_response(404, "not_found", "The file of the video is no longer there.");
  }
}

}  // namespace

HttpResponse thumbnail_response(WorkQueue& tasks, const HttpRequest& request,
                                const ThumbnailSource& source) {
  ThumbnailSource tagged = source;
  tagged.tag = '"' + source.tag + "-thumbnail\"";
  if (has_tag(request, tagged.tag)) {
    HttpResponse same{.status = 304};
    same.headers = {{"ETag", tagged.tag}};
    return same;
  }
  return tasks.answer([tagged] { return picture_of(tagged); });
}

}  // namespace weft
