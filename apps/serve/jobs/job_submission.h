#pragma once
// Takes a job that a client sent, in whatever form, into a service.
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "apps/serve/http/http_message.h"
#include "engine/job/job_spec.h"
#include "engine/service/service.h"

namespace weft {

struct SentJob {
  std::string id{};      // that it will have
  std::string fields{};  // JSON: fields of a job (weft.job/v1), whose pictures are data URLs
  // Fields of the job, and files of the server's that hold their pictures and sounds in place of
  // data URLs. The files are moved away.
  std::vector<std::pair<std::string, std::string>> files{};
  std::string client{};  // NewJob::client
  // Fields of the job that the client called by other names, and these names, for messages.
  std::vector<std::pair<std::string, std::string>> renamed{};
  // Several jobs of one request: the number of each is a part of its idempotency key, and is added
  // to the seed.
  int number = 0;
};

// A refusal of a job that is a response of its own, which may come later.
struct JobRefused : std::exception {
  explicit JobRefused(HttpResponse refusal) : response(std::move(refusal)) {}
  HttpResponse response;
};

struct JobServices {
  // Reads a job and saves its files: its id, request, resolved form and output. It throws
  // Error(kUsage) that names the field, its value and what is legal, beginning with kSentJob, and
  // TooDear (job_limits.h); kOutput where a file cannot be saved; JobRefused.
  std::function<NewJob(const SentJob& sent)> read{};
  // Removes what was saved of a job that was not taken.
  std::function<void(const NewJob& job)> remove_files{};
  std::function<bool()> draining{};  // the server takes no more jobs
};
inline constexpr const char* kSentJob = "the job";

struct TakenJob {
  std::string id{};
  bool is_new = true;  // false: the same request was sent before, with the same Idempotency-Key
};
// The job that is now in the store, or the refusal.
std::variant<TakenJob, HttpResponse> take_job(Service& service, const JobServices& services,
                                              const HttpRequest& request, SentJob sent);
// The same of `count` jobs of one request, 1 or more: all of them, or none and the refusal of one.
// `next` makes each once those before it were read, and may throw Error(kOutput).
using NextJob = std::function<SentJob(std::span<const NewJob> before)>;
std::variant<std::vector<TakenJob>, HttpResponse> take_jobs(Service& service,
                                                            const JobServices& services,
                                                            const HttpRequest& request, int count,
                                                            const NextJob& next);
// 507: the disk takes no more files.
HttpResponse storage_response();

std::string new_job_id(const std::string& kind);  // KIND, "_" and 24 random hex digits
bool is_job_id(const std::string& name);

}  // namespace weft
