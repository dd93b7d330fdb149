#include "apps/live/live_faces.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "apps/serve/server_text.h"
#include "kernels/check.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kRound{200}, kPositionEvery{1000};

const StreamError kNoRoom{.code = "overloaded",
                          .message =
                              "Too much sound or text waits to be spoken; this part "
                              "was dropped.",
                          .retryable = true,
                          .fatal = false};

}  // namespace

struct LiveFaces::Entry {
  std::string token;
  std::string mood, caption;
  MediaContainer container;
  std::unique_ptr<LiveFace> face;
  // Guarded by LiveFaces::mutex_.
  std::weak_ptr<Client> client;
  Clock::time_point left{};  // when the client went; zero while it is there
  Clock::time_point told{};  // when the position was told
  bool is_greeted = false, is_shown = false;
  Clock::time_point began = Clock::now();
};

struct LiveFaces::Client {
  std::shared_ptr<WebSocket> socket;
  Clock::time_point opened = Clock::now();
  std::atomic<bool> closing = false;
  EntryPtr entry{};  // guarded by LiveFaces::mutex_
};

LiveFaces::LiveFaces(FaceStage& stage, LiveSettings settings, ServerState& state)
    : stage_(stage),
      settings_(std::move(settings)),
      state_(state),
      looks_after_([this] { look_after(); }) {}

LiveFaces::~LiveFaces() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
    changed_.notify_all();
  }
  looks_after_.join();
  for (auto& [token, entry] : entries_) entry->face->end();
}

int LiveFaces::faces() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(entries_.size());
}

LiveFaces::EntryPtr LiveFaces::entry_of(const ClientPtr& client) const {
  const std::lock_guard lock(mutex_);
  return client->entry;
}

WebSocketHandler LiveFaces::open(std::shared_ptr<WebSocket> socket) {
  const auto client = std::make_shared<Client>();
  client->socket = std::move(socket);
  const std::lock_guard lock(mutex_);
  clients_.push_back(client);
  return {.text = [this, client](std::string_view message) { take_text(client, message); },
          .binary = [this, client](std::string_view message) { take_sound(client, message); },
          .closed = [this, client](uint16_t code) { closed(client, code); },
          .draining = [this] { changed_.notify_all(); }};
}

void LiveFaces::refuse(const ClientPtr& client, const StreamError& error, uint16_t code) {
  client->socket->send_text(to_message(error));
  if (!error.fatal) return;
  client->closing = true;
  client->socket->close(code, error.code);
  state_.log.write(LogLevel::kWarning, "client_refused", "A client was refused.",
                   {{"code", error.code}});
}

void LiveFaces::take_text(const ClientPtr& client, std::string_view message) {
  if (client->closing) return;
  try {
    act(client, read_client_message(message));
  } catch (const Error& error) {
    refuse(client, {.code = "bad_message", .message = error.what(), .fatal = true});
  }
}

void LiveFaces::take_sound(const ClientPtr& client, std::string_view message) {
  if (client->closing) return;
  try {
    const EntryPtr entry = entry_of(client);
    if (!entry)
      throw Error(ErrorKind::kUsage,
                  "a connection begins with sound; legal: session_init or session_resume");
    const auto* bytes = reinterpret_cast<const uint8_t*>(message.data());
    if (!entry->face->speak(read_sound_packet({bytes, message.size()}))) refuse(client, kNoRoom);
  } catch (const Error& error) {
    refuse(client, {.code = "bad_message", .message = error.what(), .fatal = true});
  }
}

void LiveFaces::closed(const ClientPtr& client, uint16_t code) {
  const std::lock_guard lock(mutex_);
  std::erase(clients_, client);
  const EntryPtr entry = std::exchange(client->entry, nullptr);
  if (!entry || entry->client.lock() != client) return;
  entry->client.reset();
  entry->left = Clock::now();
  entry->face->detach();
  // Whoever says good-bye does not come back.
  if (code == 1000) entry->face->end();
  changed_.notify_all();
}

void LiveFaces::act(const ClientPtr& client, const ClientMessage& message) {
  const EntryPtr entry = entry_of(client);
  const auto* init = std::get_if<SessionInit>(&message);
  const auto* back = std::get_if<SessionResume>(&message);
  if ((init || back) && entry)
    throw Error(ErrorKind::kUsage, "the session has begun; legal: its messages");
  if (!init && !back && !entry)
    throw Error(ErrorKind::kUsage,
                "the first message begins no session; legal: session_init, session_resume");
  if (init) return begin(client, *init);
  if (back) return resume(client, *back);
  steer(client, *entry->face, message);
}

void LiveFaces::steer(const ClientPtr& client, LiveFace& face, const ClientMessage& message) {
  bool taken = true;
  if (const auto* text = std::get_if<SpeakText>(&message)) {
    taken = face.speak(text->text);
  } else if (const auto* change = std::get_if<ChangeCaption>(&message)) {
    try {
      taken = face.change_caption(stage_.caption(change->caption, change->mood));
    } catch (const Error& error) {
      refuse(client, {.code = "bad_request", .message = error.what()});
    }
  } else if (const auto* listen = std::get_if<Listen>(&message)) {
    face.listen(listen->on);
  } else if (std::holds_alternative<Pause>(message) || std::holds_alternative<Resume>(message)) {
    face.pause(std::holds_alternative<Pause>(message));
  } else if (std::holds_alternative<Flush>(message)) {
    face.flush();
  } else {
    client->closing = true;
    face.end();
    client->socket->close(1000, "closed");
  }
  if (!taken) refuse(client, kNoRoom);
}

// The request of a first message, whose values the server can serve. Error(kUsage).
FaceRequest LiveFaces::checked(const SessionInit& init) const {
  const VideoSettings& video = stage_.movie.video;
  const std::string size = std::to_string(video.width) + "x" + std::to_string(video.height);
  const auto only = [](const char* field, const std::string& value, const std::string& legal) {
    if (value != legal)
      throw Error(ErrorKind::kUsage, std::string("session_init: ") + field + " is \"" + value +
                                         "\", legal for this server: \"" + legal + "\"");
  };
  if (init.model) only("model", *init.model, settings_.model);
  if (init.size) only("size", *init.size, size);
  if (init.fps) only("fps", std::to_string(*init.fps), std::to_string(video.fps_num));
  return {.caption = stage_.caption(init.caption, init.mood),
          .seed = init.seed.value_or(stage_.session.seed),
          .container = init.container,
          .rate = init.rate};
}

void LiveFaces::begin(const ClientPtr& client, const SessionInit& init) {
  FaceRequest request;
  try {
    request = checked(init);
  } catch (const Error& error) {
    return refuse(client, {.code = "bad_request", .message = error.what(), .fatal = true});
  }
  const std::lock_guard lock(mutex_);
  if (draining_)
    return refuse(client,
                  {.code = "draining",
                   .message = "The server is about to end.",
                   .retryable = true,
                   .fatal = true},
                  1012);
  if (static_cast<int>(entries_.size()) >= settings_.most_faces)
    return refuse(client,
                  {.code = "overloaded",
                   .message = "All " + std::to_string(settings_.most_faces) +
                              " faces of this server are taken.",
                   .retryable = true,
                   .fatal = true},
                  1013);
  const EntryPtr entry = std::make_shared<Entry>();
  entry->token = random_hex(4);
  entry->caption = request.caption;
  entry->mood = init.mood.value_or(settings_.mood);
  entry->container = request.container;
  entry->client = client;
  client->entry = entries_[entry->token] = entry;
  entry->face = std::make_unique<LiveFace>(stage_, request, [this, weak = std::weak_ptr(entry)] {
    const std::lock_guard guard(mutex_);
    const EntryPtr alive = weak.lock();
    if (!alive) return;
    alive->is_greeted = true;
    if (const ClientPtr there = alive->client.lock())
      there->socket->send_text(greeting(*alive, false));
  });
  entry->face->attach(client->socket, -1);
  state_.log.write(LogLevel::kInfo, "session_began", "A face was made for a client.");
}

void LiveFaces::resume(const ClientPtr& client, const SessionResume& resume) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(resume.token);
  if (found == entries_.end() || found->second->face->over())
    return refuse(client, {.code = "unknown_session",
                           .message = "There is no session of this token any more; begin a new one "
                                      "with session_init.",
                           .retryable = true});
  const EntryPtr entry = found->second;
  if (const ClientPtr before = entry->client.lock()) {
    before->closing = true;
    before->entry = nullptr;
    before->socket->close(1000, "resumed by another connection");
  }
  entry->client = client;
  entry->left = {};
  client->entry = entry;
  if (entry->is_greeted) client->socket->send_text(greeting(*entry, true));
  entry->face->attach(client->socket, resume.time_us);
  state_.log.write(LogLevel::kInfo, "session_resumed", "A client came back.");
}

// Tells the client that its face can be shown.
std::string LiveFaces::greeting(const Entry& entry, bool resumed) const {
  const VideoSettings& video = stage_.movie.video;
  const SessionConfig& session = stage_.session;
  const int64_t segment = int64_t{session.segment_frames} * session.pictures;
  return server_message("session_ready",
                        {{"session_id", entry.token.substr(0, 8)},
                         {"resume_token", entry.token},
                         {"resumed", resumed},
                         {"model", settings_.model},
                         {"width", video.width},
                         {"height", video.height},
                         {"fps", double(video.fps_num) / video.fps_den},
                         {"block_ms", segment * 1000 * video.fps_den / video.fps_num},
                         {"container", name_of(entry.container)},
                         {"caption", entry.caption},
                         {"mood", entry.mood},
                         {"moods", settings_.moods},
                         {"resume_seconds", double(settings_.resume.count()) / 1000},
                         {"limits",
                          {{"message_bytes", kMessageBytes},
                           {"text_bytes", kSpokenBytes},
                           {"sound_seconds", SoundInbox::kMostSeconds}}}});
}

void LiveFaces::drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
  for (const ClientPtr& client : clients_)
    client->socket->send_text(server_message(
        "session_closing", {{"reason", "the server restarts"}, {"retry_after_ms", 1000}}));
  changed_.notify_all();
}

// The thread that looks after the clients.

void LiveFaces::look_after() {
  std::vector<EntryPtr> ended;
  std::unique_lock lock(mutex_);
  while (!stops_) {
    for (const ClientPtr& client : clients_) look_after(*client);
    take_ended(ended);
    state_.metrics.set("weft_sessions", static_cast<double>(entries_.size()));
    lock.unlock();
    // Whoever ends a face waits for its threads, so that must not be the server's thread.
    std::erase_if(ended, [](const EntryPtr& entry) { return entry.use_count() == 1; });
    lock.lock();
    if (!stops_) changed_.wait_for(lock, kRound);
  }
}

void LiveFaces::look_after(const Client& client) {
  const Clock::time_point now = Clock::now();
  if (client.closing) return;
  const bool is_late = !client.entry && now - client.opened >= settings_.first_message;
  if (draining_ && !(client.entry && client.entry->face->speaks()))
    return client.socket->close(1012, "the server restarts");
  if (is_late) return client.socket->close(1008, "no session_init came");
  if (!client.entry) return;
  Entry& entry = *client.entry;
  if (now - entry.told >= kPositionEvery) tell_position(entry);
  if (const double factor = entry.face->realtime_factor(); factor > 0)
    state_.metrics.set("weft_realtime_factor", factor);
  if (entry.is_shown || entry.face->sent().packets == 0) return;
  entry.is_shown = true;
  state_.metrics.observe("weft_time_to_first_frame_seconds",
                         std::chrono::duration<double>(now - entry.began).count());
}

void LiveFaces::tell_position(Entry& entry) {
  const std::optional<int> position = entry.face->position();
  if (!position || *position == 0) return;
  entry.told = Clock::now();
  if (const ClientPtr client = entry.client.lock())
    client->socket->send_text(server_message(
        "queue_status",
        {{"position", *position}, {"depth", stage_.runner.token().wanted()}, {"eta_s", nullptr}}));
}

// Moves out the faces that ended and those whose clients did not come back.
void LiveFaces::take_ended(std::vector<EntryPtr>& ended) {
  const Clock::time_point now = Clock::now();
  for (auto at = entries_.begin(); at != entries_.end();) {
    const EntryPtr entry = at->second;
    const bool is_alone = entry->client.expired();
    const bool is_late = is_alone && (draining_ || now - entry->left > settings_.resume);
    if (!entry->face->over() && !is_late) {
      ++at;
      continue;
    }
    if (const ClientPtr client = entry->client.lock()) client->entry = nullptr;
    at = entries_.erase(at);
    const SessionCounts counts = entry->face->counts();
    state_.metrics.add("weft_frames_generated_total", {}, double(counts.slots));
    state_.log.write(LogLevel::kInfo, "session_ended", "A face was ended.",
                     {{"slots", std::to_string(counts.slots)},
                      {"interruptions", std::to_string(counts.interruptions)}});
    ended.push_back(entry);
  }
}

}  // namespace weft
