#include "apps/serve/jobs/job_submission.h"

#include <algorithm>
#include <optional>

#include "apps/serve/http/access.h"
#include "apps/serve/jobs/job_limits.h"
#include "apps/serve/server_text.h"
#include "engine/service/job_failure.h"
#include "io/sha256.h"

namespace weft {
namespace {

constexpr size_t kLongestKey = 255;  // of Idempotency-Key

// Jobs of the same key belong to one owner, whose name does not tell the key.
std::string owner_of(const HttpRequest& request) {
  const std::string key = stated_key(request);
  return key.empty() ? "" : sha256_hex(key).substr(0, 16);
}

struct Fault {
  std::string message, param;  // the field that the message begins with, if it names one
};

// The text without folders of this machine; a value that the client sent stays as it was.
std::string shown_to(const SentJob& sent, const std::string& text) {
  const size_t begin = text.find('\''), end = text.find('\'', begin + 1);
  if (begin == std::string::npos || end == std::string::npos || end == begin + 1)
    return without_folders(text);
  const bool was_sent =
      sent.fields.find(text.substr(begin + 1, end - begin - 1)) != std::string::npos;
  return was_sent ? text.substr(0, end) + without_folders(text.substr(end)) : without_folders(text);
}

std::string called(const SentJob& sent, const std::string& field) {
  const auto renamed =
      std::ranges::find(sent.renamed, field, &std::pair<std::string, std::string>::first);
  return renamed == sent.renamed.end() ? field : renamed->second;
}

// The field of "reference_2", one picture of several, and of any other field itself.
std::string without_number(const std::string& field) {
  const size_t mark = field.find_last_not_of("0123456789");
  const bool is_numbered = mark != std::string::npos && mark + 1 < field.size() && mark > 0;
  return is_numbered && field[mark] == '_' ? field.substr(0, mark) : field;
}

// The field of the picture or the sound whose file, "<id>.<field>.png", a message names.
std::string field_of_file(const std::string& message, const SentJob& sent) {
  const size_t at = message.find(sent.id + ".");
  if (sent.id.empty() || at == std::string::npos) return "";
  const size_t begin = at + sent.id.size() + 1;
  return without_number(message.substr(begin, message.find_first_of(".' ", begin) - begin));
}

// A refusal in the words of the client: messages begin with a field, or with the flag for it.
Fault fault_of(const std::string& text, const SentJob& sent) {
  Fault fault{.message = shown_to(sent, text), .param = ""};
  const std::string job = std::string(kSentJob) + ": ";
  const size_t begin = fault.message.starts_with(job) ? job.size() : 0;
  const size_t end = std::min(fault.message.find(' ', begin), fault.message.size());
  std::string word = fault.message.substr(begin, end - begin);
  if (word.starts_with("--")) word.erase(0, 2);
  std::ranges::replace(word, '-', '_');
  const auto is_field = [](const std::string& name) {
    return std::ranges::any_of(job_fields(), [&](const JobField& f) { return name == f.name; });
  };
  const std::string named = is_field(word) ? word : without_number(word);
  if (is_field(named) || fault.message.find(" is no field of a job") == end) {
    fault.param = called(sent, named);
    fault.message.replace(begin, end - begin, fault.param + word.substr(named.size()));
  } else if (const std::string field = field_of_file(fault.message, sent); is_field(field)) {
    fault.param = called(sent, field);
  }
  return fault;
}

// Calls `read` and returns the refusal of what it has read; nullopt where it may pass.
std::optional<HttpResponse> refusal_of_job(const SentJob& sent, const std::function<void()>& read) {
  try {
    read();
    return std::nullopt;
  } catch (const JobRefused& refused) {
    return refused.response;
  } catch (const TooDear& error) {
    return error_response(422, "does_not_fit", error.what(), "", error.hints);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kOutput) return storage_response();
    const bool is_media = error.kind() == ErrorKind::kMedia;
    if (!is_media && error.kind() != ErrorKind::kUsage && error.kind() != ErrorKind::kModel) throw;
    const Fault fault = fault_of(error.what(), sent);
    return error_response(400, is_media ? "media_rejected" : "invalid_request", fault.message,
                          fault.param);
  }
}

std::optional<HttpResponse> refusal_of_answer(SubmitAnswer answer) {
  switch (answer) {
    case SubmitAnswer::kConflict:
      return error_response(409, "idempotency_conflict",
                            "Another request was sent with this Idempotency-Key before.");
    case SubmitAnswer::kFull:
      return retry_response(429, "queue_full", "As many jobs wait as this server lets wait.");
    case SubmitAnswer::kOwnerFull:
      return retry_response(429, "rate_limited",
                            "As many jobs wait as this server lets wait of one API key.");
    default:
      return std::nullopt;
  }
}

// The key of one job of a request.
std::string key_of_job(const std::string& key, int number) {
  return number == 0 || key.empty() ? key : key + "#" + std::to_string(number);
}

// The jobs of an earlier request with this key, or the refusal of another request; nullopt where
// they are to be read. What was taken once is not refused because it would not be taken now.
std::optional<std::variant<std::vector<TakenJob>, HttpResponse>> taken_before(
    Service& service, const HttpRequest& request, const std::string& key, int count) {
  if (key.empty()) return std::nullopt;
  const std::string hash = hash_of(request);
  std::vector<TakenJob> taken;
  for (int i = 0; i < count; ++i) {
    const auto known = service.store().earlier(owner_of(request), key_of_job(key, i), hash);
    if (!known) return std::nullopt;
    if (auto refused = refusal_of_answer(known->answer)) return std::move(*refused);
    taken.push_back({known->id, false});
  }
  return taken;
}

}  // namespace

HttpResponse storage_response() {
  return error_response(507, "insufficient_storage", "The server's disk takes no more files.");
}

std::string new_job_id(const std::string& kind) { return kind + "_" + random_hex(3); }

bool is_job_id(const std::string& name) {
  constexpr size_t kDigits = 24;
  const size_t mark = name.find('_');
  if (mark == std::string::npos || mark == 0 || name.size() - mark - 1 != kDigits) return false;
  return name.find_first_not_of("0123456789abcdef", mark + 1) == std::string::npos;
}

std::variant<TakenJob, HttpResponse> take_job(Service& service, const JobServices& services,
                                              const HttpRequest& request, SentJob sent) {
  auto taken = take_jobs(service, services, request, 1, [&](auto) { return std::move(sent); });
  if (auto* refused = std::get_if<HttpResponse>(&taken)) return std::move(*refused);
  return std::get<std::vector<TakenJob>>(taken).front();
}

std::variant<std::vector<TakenJob>, HttpResponse> take_jobs(Service& service,
                                                            const JobServices& services,
                                                            const HttpRequest& request, int count,
                                                            const NextJob& next) {
  if (services.draining()) return retry_response(503, "draining", "The server is about to end.");
  const std::string& key = request.header("idempotency-key");
  if (key.size() > kLongestKey)
    return error_response(400, "invalid_request",
                          "Idempotency-Key has " + std::to_string(key.size()) +
                              " bytes, legal: at most " + std::to_string(kLongestKey));
  if (auto before = taken_before(service, request, key, count)) return std::move(*before);
  std::vector<NewJob> jobs;
  const auto remove_files = [&] {
    for (const NewJob& job : jobs) services.remove_files(job);
  };
  std::vector<JobStore::Submitted> submitted;
  try {
    while (std::ssize(jobs) < count) {
      SentJob one;
      NewJob job;
      const auto read = [&] {
        one = next(jobs);
        job = services.read(one);
      };
      if (auto refused = refusal_of_job(one, read)) {
        remove_files();
        return *refused;
      }
      job.client = one.client;
      job.owner = owner_of(request);
      if (!key.empty()) {
        job.idempotency_key = key_of_job(key, one.number);
        job.request_hash = hash_of(request);
      }
      jobs.push_back(std::move(job));
    }
    submitted = service.submit_all(jobs);
  } catch (...) {  // the disk is full, the store is locked, ...
    remove_files();
    throw;
  }
  if (auto refused = refusal_of_answer(submitted.back().answer)) {
    remove_files();
    return *refused;
  }
  std::vector<TakenJob> taken;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const bool is_new = submitted[i].answer == SubmitAnswer::kNew;
    if (!is_new) services.remove_files(jobs[i]);
    taken.push_back({submitted[i].id, is_new});
  }
  return taken;
}

}  // namespace weft
