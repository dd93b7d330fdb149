#pragma once
// The steps of a job with a step cache: decided before the run where they follow from the
// timesteps alone (TeaCache), and reported after it.
#include <vector>

#include "engine/generation/generator.h"
#include "engine/schedules/denoiser.h"

namespace weft {

// Checks the step cache of a request whose other fields are resolved (validate_cache), and fills in
// request.cache.skipped where it has yet to decide. It reads the weights of the time
// MLPs, and decides the same on every rank and machine.
void decide_skips(const OpenModel& model, const Sampler& sampler, Request& request);

// The request without the skipped steps that are decided while it runs (first-block).
Request before_run(Request request);

// Fills in, on the root, which steps of result.request were skipped, where that was decided before
// the run. It changes nothing without a step cache.
void report_skips(const OpenModel& model, const JobFacts& facts, RunResult& result);
// Fills in, on the root, what the last run of result.request has measured, and the steps that it
// has skipped. It changes nothing without a step cache.
void report_cached(const OpenModel& model, const JobFacts& facts, const Denoiser& denoiser,
                   RunResult& result);

}  // namespace weft
