#include "apps/worker/worker_host.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/serve/http/access.h"
#include "apps/serve/jobs/job_files.h"
#include "apps/serve/server_text.h"
#include "apps/worker/messages.h"
#include "engine/runner/job_errors.h"
#include "engine/service/job_failure.h"
#include "engine/service/sqlite.h"
#include "io/atomic_file.h"
#include "io/text/utf8.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr const char* kWorkerSays = "the worker's message";
constexpr milliseconds kStopLook{50};           // between looks for a job that shall stop
constexpr std::chrono::seconds kStorePause{1};  // where the store cannot be written
constexpr std::chrono::seconds kMeeting{60};    // for a worker to say who it is
constexpr uint16_t kNormal = 1000, kRefused = 4400;

// A file of the folder, by whose text a worker shows that it sees the folder.
class FolderProof {
 public:
  explicit FolderProof(const std::string& folder)
      : path_(fs::absolute(folder) / (".worker-" + random_hex(3))), text_(random_hex(4)) {
    write_file(path_, text_);
  }
  ~FolderProof() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  FolderProof(const FolderProof&) = delete;
  FolderProof& operator=(const FolderProof&) = delete;

  const std::string& path() const { return path_; }
  const std::string& text() const { return text_; }

 private:
  const std::string path_, text_;
};

// A path as messages have it, for a process with another working folder.
std::string shown_path(const std::string& path) { return path_text(fs::absolute(path).string()); }

std::string job_message(const HeldJob& held) {
  const NewJob& job = held.job().job;
  nlohmann::json spec = parse_json(job.resolved, "the stored job");
  change_file_paths(spec, [](const std::string& path) { return shown_path(path_of_text(path)); });
  return worker_message("job", {{"id", job.id},
                                {"spec", spec},
                                {"output", shown_path(job.output)},
                                {"previews", held.wanted_previews()}});
}

std::optional<HttpResponse> key_refusal(const HttpRequest& request, const std::string& key) {
  if (same_secret(stated_key(request), key)) return std::nullopt;
  return error_response(401, "invalid_api_key",
                        "A worker needs the key of the server, as Authorization: Bearer KEY.");
}

}  // namespace

// One worker, and the thread that talks to it.
class WorkerHost::Link {
 public:
  Link(const Settings& settings, std::shared_ptr<WebSocket> socket)
      : settings_(settings), socket_(std::move(socket)), thread_([this] { run(); }) {}
  ~Link() {
    end();
    socket_->close(kNormal, "the server ends");
    thread_.join();
  }

  struct Message {
    bool is_binary = false;
    std::string data{};
  };
  void hear(Message message) {
    const std::lock_guard lock(mutex_);
    messages_.push_back(std::move(message));
    changed_.notify_all();
  }
  void end() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    changed_.notify_all();
  }
  bool may_draw() const { return may_draw_; }
  bool is_over() const {
    const std::lock_guard lock(mutex_);
    return is_over_;
  }

 private:
  void run() {
    try {
      if (meet()) serve();
    } catch (const std::exception& error) {  // a message that no worker sends, as a rule
      refuse(without_folders(error.what()));
    }
    may_draw_ = false;
    if (is_ready_ && settings_.heard) settings_.heard(name_, WorkerEvent::kGone);
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }

  void say(const char* type, Json fields = Json::object()) {
    socket_->send_text(worker_message(type, std::move(fields)));
  }
  void refuse(const std::string& why) {
    say("refused", {{"message", why}});
    socket_->close(kRefused, "refused");
  }
  // True where nothing more will come.
  bool closed() const {
    const std::lock_guard lock(mutex_);
    return is_closed_ && messages_.empty();
  }
  // The next message; nullopt where none came in time, or none will.
  std::optional<Message> next(milliseconds patience) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [&] { return is_closed_ || !messages_.empty(); });
    if (messages_.empty()) return std::nullopt;
    Message message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }

  // Learns who the worker is, and waits until it is ready. False where it is not to be.
  bool meet() {
    if (const std::string why = learn(); !why.empty()) {
      refuse(why);
      return false;
    }
    return await_ready();
  }
  // Returns why this is no worker of the server; "" where it is one.
  std::string learn() {
    const FolderProof proof(settings_.folder);
    say("welcome", {{"protocol", kWorkerProtocol},
                    {"folder", shown_path(settings_.folder)},
                    {"file", path_text(proof.path())}});
    const std::optional<Message> first = next(kMeeting);
    if (!first) return "it did not say who it is";
    const nlohmann::json hello = read_worker_message(first->data);
    const int64_t protocol = json_int(hello, "protocol", kWorkerSays);
    if (protocol != kWorkerProtocol)
      return "its protocol is " + std::to_string(protocol) +
             ", legal: " + std::to_string(kWorkerProtocol) + ", that of the server's version";
    name_ = json_string(hello, "name", kWorkerSays);
    program_ = json_string(hello, "program", kWorkerSays);
    if (json_string(hello, "seen", kWorkerSays) == proof.text()) return "";
    return "it does not see the folder of the results, " + shown_path(settings_.folder) +
           "; legal: a worker of this machine, or of one that has the folder mounted under the "
           "same path";
  }
  bool await_ready() {
    while (!closed())
      if (const auto message = next(kStopLook))
        if (!message->is_binary && read_worker_message(message->data).at("type") == "ready") {
          is_ready_ = may_draw_ = true;
          if (settings_.heard) settings_.heard(name_, WorkerEvent::kReady);
          return true;
        }
    return false;
  }

  void serve() {
    const auto take = [this] {
      return settings_.take(name_, program_, [this] { return closed(); });
    };
    while (!worker_ends_) {
      std::unique_ptr<HeldJob> held;
      try {
        held = take();
      } catch (const DatabaseError&) {  // the service warns of it
        std::this_thread::sleep_for(kStorePause);
        continue;
      }
      if (!held) break;
      draw(*held);
    }
    say("end");
    socket_->close(kNormal, "no more jobs");
  }

  // Gives the job to the worker, and tells what comes back.
  void draw(HeldJob& held) {
    const std::string& id = held.job().job.id;
    try {
      JobFiles::await_writer(held.job().job, held.stop());
      const std::string left = settings_.result_left ? settings_.result_left(held.job()) : "";
      if (!left.empty()) return held.complete(left);
    } catch (...) {  // the fault of the job, not of the worker
      return held.fail(current_error());
    }
    socket_->send_text(job_message(held));
    for (bool told = false;;) {
      if (held.stop() && !std::exchange(told, true)) say("stop", {{"id", id}});
      if (closed())
        return held.fail({ErrorKind::kComm, "the connection to the worker " + name_ + " ended"});
      const std::optional<Message> message = next(kStopLook);
      if (message && !hear_of_job(held, *message)) return;
    }
  }

  // False where the job has ended.
  bool hear_of_job(HeldJob& held, const Message& message) {
    if (message.is_binary) {
      held.listener().preview(read_preview_message(message.data));
      return true;
    }
    const nlohmann::json told = read_worker_message(message.data);
    const std::string type = told.at("type");
    if (type == "progress") {
      held.listener().progress(read_progress(json_field(told, "progress", kWorkerSays)));
    } else if (type == "warning") {
      held.listener().warning(json_string(told, "line", kWorkerSays));
    } else if (json_string(told, "id", kWorkerSays) != held.job().job.id) {
      throw Error(ErrorKind::kModel, "the message is about another job");
    } else if (type == "done") {
      worker_ends_ = json_bool_or(told, "ends", kWorkerSays, false);
      nlohmann::json result = json_field(told, "result", kWorkerSays);
      result["path"] = path_text(held.job().job.output);  // it names no other file of this machine
      held.complete(result.dump());
      if (settings_.heard) settings_.heard(name_, WorkerEvent::kDrew);
      return false;
    } else if (type == "failed") {
      worker_ends_ = json_bool_or(told, "ends", kWorkerSays, false);
      held.fail(read_error(told));
      return false;
    }
    return true;
  }

  const Settings& settings_;
  const std::shared_ptr<WebSocket> socket_;
  std::string name_, program_;
  bool is_ready_ = false, worker_ends_ = false;
  std::atomic<bool> may_draw_{false};
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<Message> messages_;
  bool is_closed_ = false, is_over_ = false;
  std::thread thread_;  // last, because it uses the members above
};

WorkerHost::WorkerHost(Settings settings) : settings_(std::move(settings)) {}
WorkerHost::~WorkerHost() = default;

std::shared_ptr<WorkerHost::Link> WorkerHost::open(std::shared_ptr<WebSocket> socket) {
  const auto link = std::make_shared<Link>(settings_, std::move(socket));
  const std::lock_guard lock(mutex_);
  std::erase_if(links_, [](const auto& old) { return old->is_over(); });
  links_.push_back(link);
  return link;
}

int WorkerHost::drawing() {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(
      std::ranges::count_if(links_, [](const auto& link) { return link->may_draw(); }));
}

WebSocketRoute WorkerHost::route() {
  const auto refuse = [this](const HttpRequest& request) {
    return key_refusal(request, settings_.key);
  };
  const auto accept = [this](const HttpRequest&, std::shared_ptr<WebSocket> socket) {
    // The link holds the socket, and the socket's callbacks know the link only as long as it lives.
    const std::weak_ptr<Link> weak = open(std::move(socket));
    const auto hear = [weak](Link::Message message) {
      if (const auto link = weak.lock()) link->hear(std::move(message));
    };
    WebSocketHandler handler;
    handler.text = [hear](std::string_view text) { hear({.data = std::string(text)}); };
    handler.binary = [hear](std::string_view bytes) {
      hear({.is_binary = true, .data = std::string(bytes)});
    };
    handler.closed = [weak](uint16_t) {
      if (const auto link = weak.lock()) link->end();
    };
    handler.draining = [] {};  // the service ends the jobs, and the link then closes
    return handler;
  };
  return {.path = kWorkerPath, .refuse = refuse, .open = accept};
}

}  // namespace weft
