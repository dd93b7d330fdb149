#pragma once
// A request of the routes of images: how many pictures, in which form, and the job of each.
#include <span>
#include <string>

#include "apps/serve/jobs/sent_files.h"
#include "apps/serve/openai/client_request.h"
#include "io/picture/picture_writer.h"

namespace weft {

// kEdit begins from pictures that the client sends.
enum class ImageTask : uint8_t { kGenerate, kEdit };

// The file that a client gets of a picture.
struct ImageFile {
  PictureFormat format = PictureFormat::kPng;
  int compression = 100;  // the quality of JPEG and WebP
};

struct ImageRequest {
  ImageTask task = ImageTask::kGenerate;
  ClientRequest client{};  // the job of the first picture, without an id
  int count = 1;           // 1 ... 10
  ImageFile file{};
  bool as_url = false;  // pictures by address, else inside the answer
  bool streamed = false;
  int partial_images = 0;  // 0 ... 3, of a stream
};
// ClientFault.
ImageRequest image_request(const HttpRequest& request, const ClientModel& model, ImageTask task);

// The jobs of a request, one after another. What the client sent is decoded and kept once: the
// further jobs have links of the files of the first.
class ImageJobs {
 public:
  explicit ImageJobs(ImageRequest& request);  // takes client.job away
  // A NextJob.
  SentJob next(std::span<const NewJob> before);

 private:
  SentJob job_;
  LinkedFiles links_{};
};

// NewJob::client of a job of these routes, and what it says; PNG where it says nothing.
std::string image_client_text(const ImageFile& file);
ImageFile image_file_of(const std::string& client_text);

// The quality of the answer: OpenAI's type knows no other names than low, medium, high, xhigh, max.
std::string answered_quality(const std::string& asked);

}  // namespace weft
