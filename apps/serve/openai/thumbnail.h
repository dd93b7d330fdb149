#pragma once
// Pictures of results, which a thread of its own reads from the files.
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "apps/serve/http/http_message.h"

namespace weft {

struct ThumbnailSource {
  std::string path{};
  int64_t frames = 0;  // of the clip; its picture is the one in the middle, or an earlier one
  std::string tag{};   // of the picture
};

class Thumbnails {
 public:
  Thumbnails();
  // Answers with a PNG, or with 429 where many pictures are being read.
  HttpResponse answer(const HttpRequest& request, const ThumbnailSource& source);

 private:
  struct Task {
    ThumbnailSource source;
    HttpResponse::Respond respond;
  };
  bool add(Task task);
  void work(const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Task> tasks_;
  std::jthread thread_;  // declared last, because it uses the members above
};

}  // namespace weft
