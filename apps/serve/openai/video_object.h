#pragma once
// A stored job as OpenAI's clients see a video.
#include <optional>
#include <string>

#include "engine/service/service.h"
#include "io/json.h"

namespace weft {

inline constexpr const char* kVideoKind = "video";  // ids are "video_" and 24 hex digits

// The part of a job that its route alone knows (NewJob::client).
struct VideoClient {
  std::string model{}, quality{}, seconds{}, remixed_from{};
  std::string fields{};  // JSON: what the client asked for but for its prompt and its files
};
std::string to_text(const VideoClient& client);
VideoClient video_client(const StoredJob& job);

// {"id", "object": "video", ...}. `live` is what the job does now, if it runs here.
Json video_json(const StoredJob& job, const std::optional<LiveJob>& live);

// queued, in_progress, completed or failed: OpenAI's clients end at any other status.
const char* video_status(JobState state);
int video_percent(const StoredJob& job, const std::optional<LiveJob>& live);
// Milliseconds after which it is worth asking again; 0: it is over.
int video_poll_ms(const StoredJob& job, const std::optional<LiveJob>& live);

}  // namespace weft
