#pragma once
// This file knows how jobs and their events stand in the tables of a JobStore.
#include <string>

#include "engine/service/job_store.h"
#include "engine/service/sqlite.h"

namespace weft {

// Begins a query for job_of(); the table `job` is joined with others. A WHERE follows.
extern const std::string kSelectJob;
StoredJob job_of(const Query& query);

JobState state_of(const std::string& name);

// Adds an event to the job with this `seq`, and removes those before the last `kept`.
void insert_event(Database& database, int64_t seq, int64_t at_ms, const JobEvent& event, int kept);

}  // namespace weft
