#pragma once
// The answers of the routes of images, in the forms of OpenAI's types ImagesResponse,
// ImageGenPartialImageEvent, ImageGenCompletedEvent and those of edits.
#include <cstdint>
#include <string>
#include <vector>

#include "apps/serve/http/http_message.h"
#include "apps/serve/openai/client_failure.h"
#include "apps/serve/openai/image_request.h"
#include "engine/service/job_store.h"
#include "io/json.h"

namespace weft {

struct ImageFacts {
  std::string id{}, format{}, quality{}, seed{};
  std::string revised_prompt{};  // "": the client's own was drawn
  int width = 0, height = 0;
  ImageTask task = ImageTask::kGenerate;
  int index = 0;  // of the picture, from 0
};
ImageFacts image_facts(const StoredJob& job, const ImageRequest& request, size_t index);

// A picture in an answer: `base64`, or where that is empty an address on the server.
Json image_data(const ImageFacts& facts, const std::string& server, const std::string& base64);
std::string images_body(const ImageFacts& facts, const std::vector<Json>& data);

// Events: a picture on its way, counted from 0, and one that is complete.
std::string partial_event(const ImageFacts& facts, const std::string& base64, int number);
std::string completed_event(const ImageFacts& facts, const std::string& base64);

std::string error_event(const ClientFailure& failure);

}  // namespace weft
