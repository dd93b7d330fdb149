#pragma once
// A request of the routes of images: how many pictures, in which form, and the job of each.
#include <string>
#include <vector>

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

// The jobs of a request. A seed that the client names is that of the first; each further picture
// has the next one. Every job has files of its own: copies lie beside the originals, whose paths
// `copies` receives.
std::vector<SentJob> image_jobs(const ImageRequest& request, std::vector<std::string>& copies);

// NewJob::client of a job of these routes, and what it says; PNG where it says nothing.
std::string image_client_text(const ImageFile& file);
ImageFile image_file_of(const std::string& client_text);

// The quality of the answer: OpenAI's type knows no other names than low, medium, high, xhigh, max.
std::string answered_quality(const std::string& asked);

}  // namespace weft
