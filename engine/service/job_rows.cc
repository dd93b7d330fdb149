#include "engine/service/job_rows.h"

#include <algorithm>
#include <iterator>

namespace weft {
namespace {

constexpr const char* kStateNames[] = {"queued", "running",   "completed",
                                       "failed", "cancelled", "expired"};

}  // namespace

const std::string kSelectJob =
    "SELECT id, program, owner, request, resolved, client, path, idempotency_key, request_hash, "
    "priority, state, attempt, worker, cancel_requested, discarded, progress, result, error, "
    "warnings, "
    "created, "
    "started, finished, expires, "
    "CASE state WHEN 'queued' THEN (SELECT COUNT(*) FROM job AS other WHERE "
    "other.state = 'queued' AND other.program = job.program AND "
    "(other.priority, -other.seq) >= (job.priority, -job.seq)) ELSE 0 END, "
    "CASE state WHEN 'queued' THEN (SELECT COUNT(*) FROM job AS other WHERE "
    "other.state = 'queued' AND other.program = job.program) ELSE 0 END "
    "FROM job JOIN output ON output.job = job.seq AND variant = 0 ";

StoredJob job_of(const Query& query) {
  int column = 0;
  const auto text = [&] { return query.text(column++); };
  const auto integer = [&] { return query.integer(column++); };
  const auto small = [&] { return static_cast<int>(query.integer(column++)); };
  StoredJob stored;
  NewJob& job = stored.job;
  for (std::string* field : {&job.id, &job.program, &job.owner, &job.request, &job.resolved,
                             &job.client, &job.output, &job.idempotency_key, &job.request_hash})
    *field = text();
  job.priority = small();
  stored.state = state_of(text());
  stored.attempt = small();
  stored.worker = text();
  stored.cancel_requested = integer() != 0;
  stored.discarded = integer() != 0;
  for (std::string* field : {&stored.progress, &stored.result, &stored.error, &stored.warnings})
    *field = text();
  for (int64_t* field :
       {&stored.created_ms, &stored.started_ms, &stored.finished_ms, &stored.expires_ms})
    *field = integer();
  stored.position = small();
  stored.depth = small();
  return stored;
}

const char* to_string(JobState state) { return kStateNames[static_cast<int>(state)]; }

JobState state_of(const std::string& name) {
  const auto found = std::ranges::find(kStateNames, name);
  CHECK(found != std::end(kStateNames), name);
  return static_cast<JobState>(found - std::begin(kStateNames));
}

void insert_event(Database& database, int64_t seq, int64_t at_ms, const JobEvent& event, int kept) {
  const auto number =
      run(database,
          "INSERT INTO event SELECT ?1, COALESCE(MAX(n), 0) + 1, ?2, ?3, ?4 FROM event "
          "WHERE job = ?1 RETURNING n",
          seq, at_ms, event.type, event.data);
  run(database, "DELETE FROM event WHERE job = ? AND n <= ?", seq, *number - kept);
}

}  // namespace weft
