#include "apps/serve/openai/thumbnail.h"

#include <algorithm>

#include "io/media/image.h"
#include "io/media/video.h"

namespace weft {
namespace {

constexpr size_t kMostWaiting = 16;
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

Thumbnails::Thumbnails() : thread_([this](const std::stop_token& stop) { work(stop); }) {}

HttpResponse Thumbnails::answer(const HttpRequest& request, const ThumbnailSource& source) {
  ThumbnailSource tagged = source;
  tagged.tag = '"' + source.tag + "-thumbnail\"";
  if (has_tag(request, tagged.tag)) {
    HttpResponse same{.status = 304};
    same.headers = {{"ETag", tagged.tag}};
    return same;
  }
  HttpResponse response = retry_response(503, "not_ready", "The server is about to end.");
  response.later = [this, tagged](const HttpResponse::Respond& respond) {
    if (!add({tagged, respond}))
      respond(retry_response(429, "rate_limited", "Many pictures are being read.", 1));
    return std::function<void()>();
  };
  return response;
}

bool Thumbnails::add(Task task) {
  {
    const std::lock_guard lock(mutex_);
    if (tasks_.size() >= kMostWaiting) return false;
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
  return true;
}

void Thumbnails::work(const std::stop_token& stop) {
  for (;;) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait(lock, stop, [this] { return !tasks_.empty(); })) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task.respond(picture_of(task.source));
  }
}

}  // namespace weft
