#pragma once
// The steps of a job with a step cache: decided before the run, reported after it.
#include <vector>

#include "engine/denoising/denoiser.h"
#include "engine/generation/generator.h"

namespace weft {

// Checks the step cache of a request whose other fields are resolved (validate_cache), and fills in
// request.cache.skipped where it has yet to decide. It reads the weights of the time
// MLPs, and decides the same on every rank and machine.
void decide_skips(const Components& parts, const Sampler& sampler, Request& request);

// Every n-th skipped step is audited; 0: none.
void mark_audited(DenoisePlanConfig& config, int every);

// On the root, what the last run of a resolved request has measured. Empty without a step cache.
std::vector<CachedStep> cached_steps(const Components& parts, const Sampler& sampler,
                                     const Request& request, const Denoiser& denoiser);

}  // namespace weft
