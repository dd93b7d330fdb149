#include "engine/session/picture_messages.h"

#include <string>
#include <utility>

#include "kernels/check.h"

namespace weft {
namespace {

// One for each message of a segment. Messages of one tag keep their order.
constexpr Tag kAboutPictures{.kind = Payload::kControl, .topic = Topic::kDecode, .hop = 1},
    kPixels{.kind = Payload::kFrames, .topic = Topic::kDecode, .hop = 2},
    kPicturesTaken{.kind = Payload::kControl, .topic = Topic::kDecode, .hop = 3};

// It comes before the pictures of a segment.
struct AboutPictures {
  int64_t count = -1;  // of pictures; -1: no segment follows
  int64_t number = 0, begin = 0, end = 0;
  int64_t epoch = 0, first = 0;
  double decode_s = 0;
};
static_assert(sizeof(AboutPictures) == 56);

TensorView view_of(AboutPictures& about) {
  return {&about, DType::kU8, {int64_t{sizeof(AboutPictures)}}};
}

std::vector<Message> messages_of(int peer, std::vector<Frame>& pictures) {
  std::vector<Message> messages;
  for (Frame& picture : pictures)
    messages.push_back(
        {peer, kPixels, {picture.rgb.data(), DType::kU8, {std::ssize(picture.rgb)}}});
  return messages;
}

}  // namespace

void PictureSender::send(StreamPictures&& pictures) {
  await_permit();
  sent_ = std::move(pictures);
  AboutPictures about{.count = std::ssize(sent_.pictures),
                      .number = sent_.segment.number,
                      .begin = sent_.segment.frames.begin,
                      .end = sent_.segment.frames.end,
                      .epoch = sent_.segment.epoch,
                      .first = sent_.first,
                      .decode_s = sent_.decode_s};
  ranks_.send(stream_, 0, kAboutPictures, view_of(about));
  pending_ = ranks_.post(stream_, messages_of(0, sent_.pictures), {});
  is_under_way_ = true;
}

void PictureSender::await_permit() {
  if (!is_under_way_) return;
  is_under_way_ = false;
  ranks_.wait(pending_);
  int64_t taken = 0;
  ranks_.receive(stream_, 0, kPicturesTaken, {&taken, DType::kI64, {1}});
  CHECK(taken == sent_.segment.number, "block", taken, "was taken, not", sent_.segment.number);
}

void PictureSender::finish() {
  await_permit();
  AboutPictures end;
  ranks_.send(stream_, 0, kAboutPictures, view_of(end));
}

PictureReceiver::PictureReceiver(const Communicator& ranks, int decoder, int width, int height,
                                 TakePictures take)
    : ranks_(ranks.beside()),
      decoder_(decoder),
      width_(width),
      height_(height),
      take_(std::move(take)),
      thread_([this] { run(); }) {}

PictureReceiver::~PictureReceiver() {
  if (thread_.joinable()) thread_.join();
}

void PictureReceiver::finish() {
  thread_.join();
  if (error_) std::rethrow_exception(error_);
}

void PictureReceiver::run() {
  try {
    receive_all();
  } catch (const std::exception& error) {
    error_ = std::current_exception();
    ranks_.abort("rank 0 failed: " + std::string(error.what()));
  }
}

void PictureReceiver::receive_all() {
  Stream stream = Stream::cpu(1);
  for (AboutPictures about;;) {
    ranks_.receive(stream, decoder_, kAboutPictures, view_of(about));
    if (about.count < 0) return;
    StreamPictures made{.segment = {.number = about.number,
                                    .frames = {about.begin, about.end},
                                    .epoch = static_cast<uint32_t>(about.epoch)},
                        .first = about.first,
                        .decode_s = about.decode_s,
                        .pictures = std::vector<Frame>(about.count, Frame(width_, height_))};
    ranks_.exchange(stream, {}, messages_of(decoder_, made.pictures));
    take_(std::move(made));
    ranks_.send(stream, decoder_, kPicturesTaken, {&about.number, DType::kI64, {1}});
  }
}

}  // namespace weft
