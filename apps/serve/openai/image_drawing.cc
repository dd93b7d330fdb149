#include "apps/serve/openai/image_drawing.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <deque>
#include <memory>
#include <optional>

#include "apps/serve/jobs/job.h"
#include "apps/serve/openai/image_answer.h"
#include "apps/serve/server_text.h"
#include "io/input_file.h"
#include "io/json.h"
#include "io/picture/picture_fit.h"
#include "io/picture/picture_reader.h"

namespace weft {
namespace {

constexpr std::chrono::milliseconds kSendAgain{20};
constexpr size_t kSlowReader = 64 << 10;  // queued bytes of a reader that loses partial images
constexpr size_t kLargestPicture = size_t{1} << 30;

// Waits for the jobs of a request. All but the constructor runs on the desk.
class DrawingWatch : public std::enable_shared_from_this<DrawingWatch> {
 public:
  DrawingWatch(Service& service, WorkQueue& desk, ImageDrawing drawing)
      : service_(service),
        desk_(desk),
        drawing_(std::move(drawing)),
        images_(drawing_.jobs.size()) {}

  void respond_to(const HttpResponse::Respond& respond) {
    respond_ = respond;
    post(
        [](DrawingWatch& self) { self.late(); },
        WorkQueue::Clock::now() + std::chrono::milliseconds(std::llround(drawing_.seconds * 1000)));
    watch_all();
  }
  void send_to(const std::shared_ptr<EventStream>& stream) {
    stream_ = stream;
    watch_all();
  }
  // Nobody waits for the answer any more. It may have been given.
  void left() {
    if (!is_done_) end();
  }
  // Calls one of these. What it throws refuses the request.
  template <class Call>
  void guarded(Call call) {
    try {
      call(*this);
    } catch (const std::exception&) {  // its text may name paths
      refuse({.status = 500, .code = "internal", .message = "The server failed to answer."});
    }
  }

 private:
  struct Image {
    bool is_over = false;
    int partial_images = 0;  // that were told
    Json data{};             // of the answer
  };

  // Runs `call` on the desk, if this still lives then.
  template <class Call>
  void post(Call call, WorkQueue::Clock::time_point when = {}) {
    desk_.post(
        [weak = weak_from_this(), call] {
          if (const auto self = weak.lock(); self && !self->is_done_) self->guarded(call);
        },
        when);
  }

  void watch_all() {
    for (size_t i = 0; i < images_.size(); ++i) {
      // Watches call this on a thread of the service, which must not end a watch.
      const auto preview_waits = std::make_shared<std::atomic<bool>>(false);
      const auto heard = [weak = weak_from_this(), &desk = desk_, i,
                          preview_waits](const JobEvent& event) {
        const bool is_end = event.type == "end";
        if (!is_end && (event.type != "preview" || preview_waits->exchange(true))) return;
        desk.post([weak, i, is_end, preview_waits] {
          if (!is_end) *preview_waits = false;
          const auto self = weak.lock();
          if (!self || self->is_done_) return;
          self->guarded([&](DrawingWatch& it) { is_end ? it.over(i) : it.tell_previews(i); });
        });
      };
      watches_.push_back(service_.watch(drawing_.jobs[i].id, 0, heard));
      if (!watches_.back()) post([i](DrawingWatch& self) { self.over(i); });
    }
  }

  void over(size_t index) {
    Image& image = images_[index];
    if (image.is_over) return;
    image.is_over = true;
    const std::optional<StoredJob> job = service_.store().find(drawing_.jobs[index].id);
    if (const auto failure = client_failure(job)) return refuse(*failure);
    tell_previews(index);
    const std::string bytes =
        drawing_.request.as_url ? "" : image_bytes(output_of(*job)->path, drawing_.request.file);
    const ImageFacts facts = image_facts(*job, drawing_.request, index);
    if (stream_) {
      unsent_.push_back(completed_event(facts, base64_text(bytes)));
    } else {
      image.data = image_data(facts, drawing_.address, base64_text(bytes));
    }
    if (!std::ranges::all_of(images_, &Image::is_over)) return stream_ ? send() : void();
    is_last_ = true;
    if (stream_) return send();
    std::vector<Json> data;
    for (Image& each : images_) data.push_back(std::move(each.data));
    end();
    respond_({.body = images_body(facts, data)});
  }

  // A picture that is over may still have previews that were not told.
  void tell_previews(size_t index) {
    if (index >= drawing_.previews.size()) return;
    const auto kept = drawing_.previews[index]->take();
    const std::optional<StoredJob> job = service_.store().find(drawing_.jobs[index].id);
    if (kept.empty() || !job || stream_->queued_bytes() > kSlowReader) return;
    const ImageFacts facts = image_facts(*job, drawing_.request, index);
    const ImageFile& file = drawing_.request.file;
    for (const auto& png : kept) {
      const Frame small = decode_picture("preview", *png);
      const Frame full = resized(small, facts.width, facts.height, ResizeFilter::kBicubic);
      const std::string bytes = encode_picture(full, file.format, file.compression);
      stream_->send(partial_event(facts, base64_text(bytes), images_[index].partial_images++));
    }
  }

  // Sends what waits; the rest once the client has taken some of it.
  void send() {
    while (!unsent_.empty() && stream_->send(unsent_.front())) unsent_.pop_front();
    if (!unsent_.empty())
      return post([](DrawingWatch& self) { self.send(); }, WorkQueue::Clock::now() + kSendAgain);
    if (!is_last_) return;
    end();
    stream_->close();
  }

  void late() {
    refuse({.status = 504,
            .code = "deadline_exceeded",
            .message = "The pictures were not ready in time."});
  }

  void refuse(const ClientFailure& failure) {
    end();
    if (stream_) {
      stream_->send(error_event(failure));
      stream_->close();
    } else {
      respond_(failure_response(failure));
    }
  }

  // Jobs that still wait or run are of no use to anyone then.
  void end() {
    is_done_ = true;
    watches_.clear();
    if (!drawing_.is_own) return;
    for (size_t i = 0; i < images_.size(); ++i)
      if (!images_[i].is_over && drawing_.jobs[i].is_new) cancel(drawing_.jobs[i].id);
  }
  void cancel(const std::string& id) {
    try {
      service_.cancel(id);
    } catch (const std::exception&) {  // the disk is full: the job is drawn for nobody
    }
  }

  Service& service_;
  WorkQueue& desk_;
  const ImageDrawing drawing_;
  std::vector<Image> images_;
  std::vector<std::shared_ptr<Service::Watch>> watches_;
  HttpResponse::Respond respond_;        // unless it is streamed
  std::shared_ptr<EventStream> stream_;  // where it is
  std::deque<std::string> unsent_;       // events that must not be lost
  bool is_last_ = false;                 // nothing comes after what is unsent
  bool is_done_ = false;
};

// A connection keeps this while it waits. Its end, for whatever reason, tells the watch.
class Waiting {
 public:
  Waiting(WorkQueue& desk, std::shared_ptr<DrawingWatch> watch)
      : desk_(desk), watch_(std::move(watch)) {}
  ~Waiting() {
    desk_.post([watch = watch_] { watch->left(); });
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  WorkQueue& desk_;
  const std::shared_ptr<DrawingWatch> watch_;
};

}  // namespace

HttpResponse drawing_response(Service& service, WorkQueue& desk, ImageDrawing drawing) {
  const bool streamed = drawing.request.streamed;
  const auto watch = std::make_shared<DrawingWatch>(service, desk, std::move(drawing));
  const auto begin = [&desk, watch](auto start) {
    desk.post([watch, start] { watch->guarded(start); });
    return [waiting = std::make_shared<Waiting>(desk, watch)] {};
  };
  // This is sent where the server drains before the jobs are over.
  HttpResponse response = retry_response(503, "draining", "The server is about to end.");
  if (streamed) {
    response = {.content_type = "text/event-stream"};
    response.events = [begin](const std::shared_ptr<EventStream>& stream) {
      return begin([stream](DrawingWatch& it) { it.send_to(stream); });
    };
  } else {
    response.later = [begin](const HttpResponse::Respond& respond) {
      return begin([respond](DrawingWatch& it) { it.respond_to(respond); });
    };
  }
  return response;
}

std::string image_bytes(const std::string& path, const ImageFile& file) {
  if (file.format == PictureFormat::kPng)
    return read_input_file(path, kLargestPicture, ErrorKind::kOutput);
  return encode_picture(read_picture(path), file.format, file.compression);
}

}  // namespace weft
